//! The World of Holdfast as a seeded simulation
