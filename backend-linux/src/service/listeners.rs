//! Sockets that come and go with what they are for, each served by a task of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io,
};
use tokio::task::JoinHandle;

/// Tasks by what they serve: an address, a bridge. What is wanted and served already is left alone, so that a change
/// of one network costs no other a packet.
#[derive(Debug)]
pub(crate) struct Listeners<K> {
    running: BTreeMap<K, JoinHandle<()>>,
}

impl<K: Ord + Clone> Default for Listeners<K> {
    fn default() -> Self {
        Self { running: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Listeners<K> {
    /// Ends what is not wanted any more, starts what is wanted and does not run, be it new or ended. `open` opens
    /// the socket and gives the future that serves it; what could not be opened is returned, to be tried again.
    pub fn follow<F: Future<Output = ()> + 'static>(
        &mut self,
        wanted: &BTreeSet<K>,
        mut open: impl FnMut(&K) -> io::Result<F>,
    ) -> Vec<(K, io::Error)> {
        self.running.retain(|key, task| {
            let keep = wanted.contains(key) && !task.is_finished();
            if !keep {
                task.abort();
            }
            keep
        });
        let mut failed = Vec::new();
        for key in wanted {
            if self.running.contains_key(key) {
                continue;
            }
            match open(key) {
                Ok(serving) => drop(self.running.insert(key.clone(), tokio::task::spawn_local(serving))),
                Err(error) => failed.push((key.clone(), error)),
            }
        }
        failed
    }

    /// How many run.
    pub fn len(&self) -> usize {
        self.running.values().filter(|task| !task.is_finished()).count()
    }
}

impl<K> Drop for Listeners<K> {
    fn drop(&mut self) {
        self.running.values().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{cell::RefCell, rc::Rc};

    #[test]
    fn what_stays_wanted_is_not_touched_and_what_ended_is_started_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut listeners = Listeners::default();
            let opened = Rc::new(RefCell::new(Vec::new()));
            let open = |key: &u8| {
                opened.borrow_mut().push(*key);
                match key {
                    9 => Err(io::Error::other("taken")),
                    _ => {
                        let ends = *key == 3;
                        Ok(async move {
                            if !ends {
                                std::future::pending::<()>().await;
                            }
                        })
                    }
                }
            };
            assert!(listeners.follow(&BTreeSet::from([1, 2]), open).is_empty());
            let failed = listeners.follow(&BTreeSet::from([2, 3, 9]), open);
            assert_eq!(failed.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [9]);
            tokio::task::yield_now().await;
            assert_eq!(listeners.len(), 1, "1 is not wanted, 3 ended, 9 was never open");
            listeners.follow(&BTreeSet::from([2, 3]), open);
            assert_eq!(*opened.borrow(), [1, 2, 3, 9, 3]);
        });
    }
}
