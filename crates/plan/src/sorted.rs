//! Lookups in a sorted map in the order of its keys, each of which costs a step instead of a search.

use std::{
    collections::{BTreeMap, btree_map},
    iter::Peekable,
};

pub struct Sorted<'m, K, V>(Peekable<btree_map::Iter<'m, K, V>>);

impl<'m, K: Ord, V> Sorted<'m, K, V> {
    pub fn of(map: &'m BTreeMap<K, V>) -> Self {
        Self(map.iter().peekable())
    }

    /// The keys of all calls must be in their order.
    pub fn find(&mut self, key: &K) -> Option<&'m V> {
        while self.0.next_if(|(known, _)| *known < key).is_some() {}
        self.0.next_if(|(known, _)| *known == key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_their_order() {
        let map = BTreeMap::from([(1, 'a'), (3, 'c'), (4, 'd')]);
        let mut sorted = Sorted::of(&map);
        assert_eq!([0, 1, 2, 4, 5].map(|key| sorted.find(&key).copied()), [None, Some('a'), None, Some('d'), None]);
    }
}
