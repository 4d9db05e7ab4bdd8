//! A mirror of one kind: the facts of its objects, by name.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// The facts of all objects of one kind, by name.
pub type Facts<F> = BTreeMap<String, Arc<F>>;

/// A resource version. Kubernetes promises since 1.35 what has been true before: the larger number is the newer one.
/// Zero where there is none.
pub type Version = u64;

/// How many deleted objects are remembered.
const MEMORY_OF_DELETED: usize = 1000;

/// A mirror of one kind.
#[derive(Debug)]
pub struct Mirror<F> {
    content: RwLock<Content<F>>,
    /// How many objects it holds at most; more are passed over.
    most: usize,
}

#[derive(Debug)]
struct Content<F> {
    /// Whether the kind has been listed once.
    synced: bool,
    /// The facts of each object, and the version that they are from.
    known: BTreeMap<String, (Version, Arc<F>)>,
    /// The last version of objects that are gone.
    deleted: BTreeMap<String, Version>,
}

impl<F> Default for Mirror<F> {
    fn default() -> Self {
        Self::of_at_most(usize::MAX)
    }
}

impl<F> Mirror<F> {
    /// A mirror that passes over what comes after so many objects: for what may be of any number, and need not be complete.
    #[must_use]
    pub fn of_at_most(most: usize) -> Self {
        let content = Content { synced: false, known: BTreeMap::new(), deleted: BTreeMap::new() };
        Self { content: RwLock::new(content), most }
    }

    /// How many objects it holds at most.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }
}

impl<F: PartialEq> Mirror<F> {
    fn read(&self) -> RwLockReadGuard<'_, Content<F>> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Content<F>> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts as they are, once the kind has been listed.
    #[must_use]
    pub fn facts(&self) -> Option<Facts<F>> {
        let content = self.read();
        let facts = || content.known.iter().map(|(name, (_, fact))| (name.clone(), Arc::clone(fact))).collect();
        content.synced.then(facts)
    }

    /// The facts of one object, as far as they are known.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<F>> {
        self.read().known.get(name).map(|(_, fact)| Arc::clone(fact))
    }

    /// Whether the kind has been listed.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.read().synced
    }

    /// Puts one object's facts in place; whether that changed anything. What is older than what is known is passed
    /// over: the answer to a write of ours is known before the watch tells of what came before it.
    pub fn set(&self, name: String, version: Version, fact: F) -> bool {
        let content = &mut *self.write();
        let newest = content.known.get(&name).map(|(version, _)| *version).max(content.deleted.get(&name).copied());
        if newest.is_some_and(|newest| newest > version) {
            return false;
        }
        content.deleted.remove(&name);
        let full = content.known.len() >= self.most;
        match content.known.get_mut(&name) {
            Some((known_version, known)) if **known == fact => {
                *known_version = version;
                false
            }
            None if full => false,
            _ => {
                content.known.insert(name, (version, Arc::new(fact)));
                true
            }
        }
    }

    /// Takes one object out; whether it was there. Its version stays: the answer to a write from before the deletion
    /// may still be on its way, and must not bring it back.
    pub fn remove(&self, name: String, version: Version) -> bool {
        let content = &mut *self.write();
        let there = content.known.remove(&name).is_some();
        content.deleted.insert(name, version);
        if content.deleted.len() > MEMORY_OF_DELETED {
            // The answers to writes take seconds, not so many deletions: the older half is of no use any more.
            let mut versions: Vec<Version> = content.deleted.values().copied().collect();
            versions.sort_unstable();
            let middle = versions[versions.len() / 2];
            content.deleted.retain(|_, version| *version > middle);
        }
        there
    }

    /// Puts a whole list in place; whether that changed anything.
    pub fn replace(&self, list: BTreeMap<String, (Version, F)>) -> bool {
        let content = &mut *self.write();
        let known: BTreeMap<_, _> =
            list.into_iter().map(|(name, (version, fact))| (name, (version, Arc::new(fact)))).collect();
        let facts = |known: &BTreeMap<String, (Version, Arc<F>)>, other: &BTreeMap<String, (Version, Arc<F>)>| {
            known.len() == other.len()
                && known.iter().zip(other).all(|((a, (_, fact_a)), (b, (_, fact_b)))| a == b && fact_a == fact_b)
        };
        let changed = !content.synced || !facts(&content.known, &known);
        *content = Content { synced: true, known, deleted: BTreeMap::new() };
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fact_that_differs_counts_as_a_change() {
        let mirror = Mirror::default();
        assert!(!mirror.synced());
        assert!(mirror.set("a".into(), 1, 1));
        assert!(!mirror.set("a".into(), 2, 1));
        assert!(mirror.set("a".into(), 3, 2));
        assert!(mirror.remove("a".into(), 4));
        assert!(!mirror.remove("a".into(), 4));
    }

    #[test]
    fn what_is_older_than_the_answer_to_a_write_is_passed_over() {
        let mirror = Mirror::default();
        assert!(mirror.set("a".into(), 10, "answer"));
        assert!(!mirror.set("a".into(), 9, "before"));
        assert!(mirror.set("a".into(), 11, "after"));
        assert!(mirror.remove("a".into(), 13));
        assert!(!mirror.set("a".into(), 12, "from before the deletion"));
        assert!(mirror.set("a".into(), 14, "made anew"));
    }

    #[test]
    fn a_list_takes_the_place_of_what_was_known() {
        let mirror = Mirror::default();
        mirror.set("gone".into(), 1, 1);
        assert!(mirror.facts().is_none(), "one object is no list");
        assert!(mirror.replace(BTreeMap::from([("here".to_owned(), (2, 2))])));
        assert!(!mirror.replace(BTreeMap::from([("here".to_owned(), (3, 2))])));
        assert_eq!(mirror.facts().unwrap_or_default().keys().collect::<Vec<_>>(), ["here"]);
    }

    #[test]
    fn of_what_is_deleted_the_last_is_remembered() {
        let mirror = Mirror::default();
        let last = 3000;
        for number in 0..=last {
            mirror.remove(number.to_string(), number);
        }
        assert!(mirror.read().deleted.len() <= MEMORY_OF_DELETED);
        assert!(!mirror.set(last.to_string(), 1, "from before the deletion"));
    }

    #[test]
    fn what_comes_after_as_many_as_it_holds_is_passed_over() {
        let mirror = Mirror::of_at_most(2);
        assert!(mirror.set("a".into(), 1, 1) && mirror.set("b".into(), 1, 1));
        assert!(!mirror.set("c".into(), 1, 1), "there is no room");
        assert!(mirror.set("a".into(), 2, 2), "what is known stays known");
        assert!(mirror.remove("b".into(), 2) && mirror.set("c".into(), 3, 1));
    }

    #[test]
    fn an_empty_list_is_a_change_too_because_the_kind_is_known_from_then_on() {
        assert!(Mirror::<u32>::default().replace(BTreeMap::new()));
    }
}
