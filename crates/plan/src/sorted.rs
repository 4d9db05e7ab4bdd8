//! Lookups in a sorted sequence in the order of its keys, each of which costs a step instead of a search.

use std::{borrow::Borrow, iter::Peekable};

pub struct Sorted<I: Iterator>(Peekable<I>);

impl<K, V, I: Iterator<Item = (K, V)>> Sorted<I> {
    pub fn of(sorted: impl IntoIterator<IntoIter = I>) -> Self {
        Self(sorted.into_iter().peekable())
    }

    /// The keys of all calls must be in their order.
    pub fn find<Q: Ord>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        while self.0.next_if(|(known, _)| known.borrow() < key).is_some() {}
        self.0.next_if(|(known, _)| known.borrow() == key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn keys_are_found_in_their_order() {
        let map = BTreeMap::from([(1, 'a'), (3, 'c'), (4, 'd')]);
        let mut sorted = Sorted::of(&map);
        assert_eq!([0, 1, 2, 4, 5].map(|key| sorted.find(&key).copied()), [None, Some('a'), None, Some('d'), None]);
    }
}
