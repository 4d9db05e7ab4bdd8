//! A mirror of one kind: the facts of its objects, by name.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    /// The list that is being taken.
    listing: Option<Listing>,
}

/// A list that is being taken.
#[derive(Debug, Default)]
struct Listing {
    /// What was in it so far.
    listed: BTreeSet<String>,
    /// What was learned of since it was begun, in it or not.
    learned: BTreeSet<String>,
    /// The newest version of anything in it.
    newest: Version,
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
        let content = Content { synced: false, known: BTreeMap::new(), deleted: BTreeMap::new(), listing: None };
        Self { content: RwLock::new(content), most }
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
        if content.known.len() >= self.most && !content.known.contains_key(&name) {
            return false;
        }
        if let Some(listing) = &mut content.listing {
            listing.learned.insert(name.clone());
        }
        content.put(name, version, fact)
    }

    /// Begins a list of all objects. What was known stays known until the list is complete.
    pub fn begin_list(&self) {
        self.write().listing = Some(Listing::default());
    }

    /// Puts the facts of one object of the list in place, at once: a list of its own would hold everything twice. Whether
    /// that changed anything. What was learned of the object meanwhile stays if it is newer.
    ///
    /// The list has the last word on everything else, also where its versions are older than those that were known, as
    /// after a restored backup.
    pub fn list(&self, name: String, version: Version, fact: F) -> bool {
        let content = &mut *self.write();
        let Some(listing) = content.listing.as_mut().filter(|listing| listing.listed.len() < self.most) else {
            return false;
        };
        listing.newest = listing.newest.max(version);
        listing.listed.insert(name.clone());
        let learned = listing.learned.contains(&name);
        if learned && content.known.get(&name).is_some_and(|(known, _)| *known > version) {
            return false;
        }
        content.put(name, version, fact)
    }

    /// Ends the list: what was not in it is gone, but for what was learned of since, and is newer than all that was in it.
    /// Whether that changed anything.
    pub fn end_list(&self) -> bool {
        let content = &mut *self.write();
        let Listing { listed, learned, newest } = content.listing.take().unwrap_or_default();
        let before = content.known.len();
        content.known.retain(|name, (version, _)| listed.contains(name) || learned.contains(name) && *version > newest);
        content.deleted.clear();
        let first = !std::mem::replace(&mut content.synced, true);
        first || content.known.len() != before
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
}

impl<F: PartialEq> Content<F> {
    /// Puts one object's facts in place; whether that changed anything.
    fn put(&mut self, name: String, version: Version, fact: F) -> bool {
        self.deleted.remove(&name);
        match self.known.get_mut(&name) {
            Some((known_version, known)) if **known == fact => {
                *known_version = version;
                false
            }
            _ => {
                self.known.insert(name, (version, Arc::new(fact)));
                true
            }
        }
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

    /// A whole list; whether anything of it changed what was known.
    fn list<F: PartialEq>(mirror: &Mirror<F>, objects: impl IntoIterator<Item = (&'static str, Version, F)>) -> bool {
        mirror.begin_list();
        let objects = objects.into_iter();
        let changed = objects.fold(false, |changed, (name, version, fact)| {
            // Without `||`, which would leave out what comes after a change.
            mirror.list(name.to_owned(), version, fact) | changed
        });
        mirror.end_list() | changed
    }

    fn names<F: PartialEq>(mirror: &Mirror<F>) -> Vec<String> {
        mirror.facts().unwrap_or_default().into_keys().collect()
    }

    #[test]
    fn a_list_takes_the_place_of_what_was_known() {
        let mirror = Mirror::default();
        mirror.set("gone".into(), 1, 1);
        assert!(mirror.facts().is_none(), "one object is no list");
        assert!(list(&mirror, [("here", 2, 2)]));
        assert_eq!(names(&mirror), ["here"]);
        assert!(!list(&mirror, [("here", 3, 2)]), "the same list again is no change");
        assert!(list(&mirror, [("here", 4, 3)]), "another fact is one");
        assert!(list(&mirror, []), "and so is an object that is gone");
        assert!(names(&mirror).is_empty());
    }

    #[test]
    fn what_was_known_stays_known_until_a_list_is_complete() {
        let mirror = Mirror::default();
        list(&mirror, [("a", 1, 1), ("b", 1, 1)]);
        mirror.begin_list();
        assert!(mirror.list("b".into(), 2, 2), "what is listed is known at once");
        assert_eq!(names(&mirror), ["a", "b"]);
        assert_eq!(mirror.get("b").as_deref(), Some(&2));
        // The list is broken off and begun anew.
        assert!(list(&mirror, [("a", 3, 1)]));
        assert_eq!(names(&mirror), ["a"], "what only the list that was broken off had is gone");
    }

    #[test]
    fn what_is_learned_during_a_list_stays_if_it_is_newer() {
        let mirror = Mirror::default();
        list(&mirror, [("a", 1, "listed before"), ("b", 1, "listed before")]);
        mirror.begin_list();
        for (name, version) in [("a", 9), ("b", 4), ("gone", 5), ("made", 10)] {
            assert!(mirror.set(name.into(), version, "answer"));
        }
        assert!(!mirror.list("a".into(), 2, "listed"), "the answer is newer");
        assert!(mirror.list("b".into(), 8, "listed"), "somebody else wrote after our write, and before the list");
        assert!(mirror.end_list(), "what is older than the list and not in it is gone");
        assert_eq!(names(&mirror), ["a", "b", "made"]);
        assert_eq!((mirror.get("a").as_deref(), mirror.get("b").as_deref()), (Some(&"answer"), Some(&"listed")));
    }

    #[test]
    fn a_list_has_the_last_word_though_its_versions_are_older() {
        let mirror = Mirror::default();
        list(&mirror, [("a", 10, "before the backup was restored")]);
        mirror.remove("b".into(), 11);
        assert!(list(&mirror, [("a", 5, "restored")]));
        assert_eq!(mirror.get("a").as_deref(), Some(&"restored"));
        assert!(mirror.set("a".into(), 6, "after") && mirror.set("b".into(), 7, "made again"));
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
        assert!(
            list(&mirror, [("d", 4, 1), ("e", 4, 1), ("f", 4, 1)]),
            "a list needs no room of what it takes the place of"
        );
        assert_eq!(names(&mirror), ["d", "e"]);
    }

    #[test]
    fn an_empty_list_is_a_change_too_because_the_kind_is_known_from_then_on() {
        assert!(list(&Mirror::<u32>::default(), []));
    }
}
