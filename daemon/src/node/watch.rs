//! Every process that the records name is watched by pidfd: its end is noticed when it happens.

use holdfast_core::{id::ProcessRef, record::Records};
use holdfast_linux::process::ProcessWatch;
use std::collections::{BTreeMap, BTreeSet};
use tokio::{sync::mpsc, task::AbortHandle};

/// Deaths that may wait to be looked at; a watcher that finds the queue full waits in its own task.
const DEATHS_LEN_MAX: usize = 64;

/// The watches of one daemon.
#[derive(Debug)]
pub struct Watches {
    /// By process: its watcher, or `None` once its death was reported, so that it is reported once.
    watched: BTreeMap<ProcessRef, Option<AbortHandle>>,
    sender: mpsc::Sender<ProcessRef>,
    deaths: mpsc::Receiver<ProcessRef>,
}

/// What the records say is to be watched, with what each is to people.
pub fn wanted(records: &Records) -> BTreeMap<ProcessRef, String> {
    let mut wanted = BTreeMap::new();
    if let Some(node) = &records.node {
        let processes = [("pin", &node.pin), ("control", &node.control), ("uplink", &node.uplink)];
        wanted.extend(
            processes.into_iter().filter_map(|(who, process)| Some((process.clone()?, who.to_owned()))),
        );
    }
    for container in records.containers.values() {
        if let Some((init, monitor)) = container.running() {
            wanted.insert(monitor.clone(), format!("monitor of container {}", container.name));
            wanted.insert(init.clone(), format!("container {}", container.name));
        }
    }
    wanted
}

impl Watches {
    /// Watches nothing yet.
    pub fn new() -> Self {
        let (sender, deaths) = mpsc::channel(DEATHS_LEN_MAX);
        Self { watched: BTreeMap::new(), sender, deaths }
    }

    /// Watches exactly these. One that is dead already is reported like one that dies.
    pub fn set<'a>(&mut self, wanted: impl Iterator<Item = &'a ProcessRef>) {
        let wanted: BTreeSet<&ProcessRef> = wanted.collect();
        self.watched.retain(|process, watcher| {
            let keep = wanted.contains(process);
            if let (false, Some(watcher)) = (keep, watcher) {
                watcher.abort();
            }
            keep
        });
        for process in wanted {
            if !self.watched.contains_key(process) {
                let watcher = tokio::spawn(watch(process.clone(), self.sender.clone())).abort_handle();
                self.watched.insert(process.clone(), Some(watcher));
            }
        }
    }

    /// The next death of a process that is still watched.
    pub async fn death(&mut self) -> ProcessRef {
        loop {
            // A sender lives in `self`: the queue never closes.
            let Some(process) = self.deaths.recv().await else { std::future::pending().await };
            if let Some(watcher) = self.watched.get_mut(&process)
                && watcher.take().is_some()
            {
                return process;
            }
        }
    }
}

async fn watch(process: ProcessRef, deaths: mpsc::Sender<ProcessRef>) {
    let exited = match ProcessWatch::open(&process) {
        Ok(Some(watch)) => watch.exited().await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = exited {
        // The slow timer finds out instead.
        tracing::warn!(pid = process.pid, %error, "process cannot be watched");
        return;
    }
    // The receiver is gone only when the daemon ends.
    let _ = deaths.send(process).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_death_is_reported_once_and_only_of_what_is_wanted() {
        let mut child = tokio::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut other = tokio::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = |child: &tokio::process::Child| {
            holdfast_linux::process::process_ref(child.id().unwrap()).unwrap().unwrap()
        };
        let (wanted, unwanted) = (process(&child), process(&other));
        let mut watches = Watches::new();
        watches.set([&wanted, &unwanted].into_iter());
        watches.set([&wanted].into_iter());
        other.kill().await.unwrap();
        child.kill().await.unwrap();
        let death = tokio::time::timeout(Duration::from_secs(5), watches.death()).await.unwrap();
        assert_eq!(death, wanted);
        // Still named by the records, dead already: not reported for ever.
        watches.set([&wanted].into_iter());
        assert!(tokio::time::timeout(Duration::from_millis(100), watches.death()).await.is_err());
        // Dead before it was first watched: reported.
        watches.set(std::iter::empty());
        watches.set([&wanted].into_iter());
        assert_eq!(tokio::time::timeout(Duration::from_secs(5), watches.death()).await.unwrap(), wanted);
    }
}
