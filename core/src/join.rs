//! Walking ordered things side by side, where searching one for each key of the other would cost a pass over a
//! large node most of its time.

use crate::id::SandboxId;
use alloc::{collections::btree_map, vec::Vec};
use core::{cmp::Ordering, iter::Peekable};

/// Values of a map, asked for in ascending order of their keys.
pub(crate) struct Cursor<'a, K, V>(Peekable<btree_map::Iter<'a, K, V>>);

impl<'a, K: Ord, V> Cursor<'a, K, V> {
    pub(crate) fn new(map: &'a btree_map::BTreeMap<K, V>) -> Self {
        Self(map.iter().peekable())
    }

    /// The value of `key`; keys below one that was asked for before are not found any more.
    pub(crate) fn at(&mut self, key: &K) -> Option<&'a V> {
        loop {
            let (next, _) = self.0.peek()?;
            match (*next).cmp(key) {
                Ordering::Less => drop(self.0.next()),
                Ordering::Equal => return self.0.next().map(|(_, value)| value),
                Ordering::Greater => return None,
            }
        }
    }
}

/// Things that belong to sandboxes, such as containers, grouped by sandbox.
#[derive(Debug)]
pub struct BySandbox<'a, T> {
    sorted: Vec<T>,
    sandbox: fn(&T) -> &'a SandboxId,
}

impl<'a, T> BySandbox<'a, T> {
    /// Groups `things`; those of one sandbox keep their order.
    pub fn new(things: impl Iterator<Item = T>, sandbox: fn(&T) -> &'a SandboxId) -> Self {
        let mut sorted: Vec<T> = things.collect();
        sorted.sort_by(|one, other| sandbox(one).cmp(sandbox(other)));
        Self { sorted, sandbox }
    }

    /// Those of one sandbox.
    pub fn of(&self, id: &SandboxId) -> &[T] {
        let from = self.sorted.partition_point(|thing| (self.sandbox)(thing) < id);
        Walk { rest: self.sorted.get(from..).unwrap_or_default(), sandbox: self.sandbox }.of(id)
    }

    /// For asking in ascending order of the sandboxes.
    pub fn walk(&self) -> Walk<'_, 'a, T> {
        Walk { rest: &self.sorted, sandbox: self.sandbox }
    }
}

/// A walk over groups; see [`BySandbox::walk`].
#[derive(Debug)]
pub struct Walk<'s, 'a, T> {
    rest: &'s [T],
    sandbox: fn(&T) -> &'a SandboxId,
}

impl<'s, T> Walk<'s, '_, T> {
    /// Those of `id`; sandboxes below one that was asked for before are not found any more.
    pub fn of(&mut self, id: &SandboxId) -> &'s [T] {
        let below = self.rest.iter().take_while(|thing| (self.sandbox)(thing) < id).count();
        let rest = self.rest.get(below..).unwrap_or_default();
        let own = rest.iter().take_while(|thing| (self.sandbox)(thing) == id).count();
        let (own, rest) = rest.split_at(own);
        self.rest = rest;
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeMap, vec};

    #[test]
    fn a_cursor_finds_what_a_search_finds() {
        let map: BTreeMap<u8, u8> = [(1, 10), (3, 30), (5, 50)].into();
        let mut cursor = Cursor::new(&map);
        for key in 0..7 {
            assert_eq!(cursor.at(&key), map.get(&key));
        }
    }

    #[test]
    fn groups_keep_their_order_and_nothing_is_lost() {
        let ids: Vec<SandboxId> = ["a", "b", "c", "d"].map(SandboxId::from_raw).into();
        let things = vec![(&ids[2], 1), (&ids[0], 2), (&ids[2], 3), (&ids[3], 4)];
        let groups = BySandbox::new(things.into_iter(), |thing| thing.0);
        let mut walk = groups.walk();
        for (id, expected) in ids.iter().zip([vec![2], vec![], vec![1, 3], vec![4]]) {
            let numbers = |group: &[(&SandboxId, i32)]| group.iter().map(|thing| thing.1).collect::<Vec<_>>();
            assert_eq!(numbers(groups.of(id)), expected);
            assert_eq!(numbers(walk.of(id)), expected);
        }
    }
}
