//! Real kills on a real node
