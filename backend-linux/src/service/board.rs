//! How the services are, for whoever asks the control.

use holdfast_core::observed::ServiceObserved;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The last word of each service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<BTreeMap<String, ServiceObserved>>>);

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ServiceObserved>> {
        // Every change is one insertion: a panic elsewhere leaves nothing half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces what is known of a service.
    pub fn set(&self, state: ServiceObserved) {
        self.lock().insert(state.name.clone(), state);
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<ServiceObserved> {
        self.lock().values().cloned().collect()
    }
}
