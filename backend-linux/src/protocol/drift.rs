//! Changes that others made to the router, counted for whoever mends them.

use crate::net::DriftWatch;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::watch;

/// Wait before the kernel is asked anew after an error.
const AGAIN: Duration = Duration::from_secs(5);

/// What others have changed since this control began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// Bursts of changes.
    pub count: u64,
    /// What the last one began with, for people.
    pub what: String,
}

/// Counts for ever. Without notifications the slow timer is what finds a change.
pub(super) async fn count(told: watch::Sender<Drift>) {
    loop {
        let error = match DriftWatch::open() {
            Ok(mut watch) => loop {
                match watch.next().await {
                    Ok(what) => {
                        tracing::info!(what, "the router was changed by somebody else");
                        told.send_modify(|drift| *drift = Drift { count: drift.count + 1, what });
                    }
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        tracing::warn!(%error, "changes by others are not noticed at once");
        tokio::time::sleep(AGAIN).await;
    }
}
