//! The records.

use super::{SimWorld, at_once};
use holdfast_core::{
    error::StoreError,
    record::{Change, Records},
    world::{Durability, Store},
};
use std::future::pending;

impl Store for SimWorld {
    async fn read<T: Send>(&self, read: impl FnOnce(&Records) -> T + Send) -> T {
        let result = self
            .step::<T, StoreError>("store.read", String::new(), at_once, |node| Ok(read(node.disk.records())))
            .await;
        match result {
            Ok(value) => value,
            // Reading the records in memory cannot fail; a fault that says so is a mistake of its plan.
            Err(_) => pending().await,
        }
    }

    async fn transact<T: Send, E: Send>(
        &self,
        durability: Durability,
        decide: impl FnOnce(&Records) -> Result<(Vec<Change>, T), E> + Send,
    ) -> Result<Result<T, E>, StoreError> {
        self.step("store.transact", format!("{durability:?}"), at_once, |node| {
            match decide(node.disk.records()) {
                Ok((changes, value)) => node.disk.commit(durability, changes).map(|()| Ok(value)),
                Err(refusal) => Ok(Err(refusal)),
            }
        })
        .await
    }
}
