//! A mirror of one kind: the facts of its objects by name.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;

use super::observed_time::ObservedTime;

/// What a mirror holds of an object.
pub trait Fact: Clone + PartialEq {
    /// Returns the times of other machines in these facts.
    fn times(&mut self) -> Vec<&mut ObservedTime> {
        Vec::new()
    }
}

impl<T: PartialEq> Fact for Option<Arc<T>> {}

/// Returns facts that are observed at `now`.
#[must_use]
pub fn observed<F: Fact>(mut fact: F, now: Timestamp) -> F {
    fact.times().into_iter().for_each(|time| *time = time.at(now));
    fact
}

/// The facts of all objects of one kind, by name.
pub type Facts<F, N = String> = BTreeMap<N, Arc<F>>;

/// A resource version. Since 1.35, Kubernetes guarantees what was already true before: the larger number is the newer version.
/// Zero if the object has none.
pub type Version = u64;

/// The maximum number of deleted objects whose versions are kept.
const MEMORY_OF_DELETED: usize = 1000;

/// A mirror of one kind, with names of type `N`.
#[derive(Clone, Debug)]
pub struct Mirror<F, N = String> {
    /// The maximum number of objects that it holds; more are ignored.
    most: usize,
    /// Whether the kind has been listed once.
    synced: bool,
    /// The facts of each object, with the version from which they were read.
    known: BTreeMap<N, (Version, Arc<F>)>,
    /// The last version of deleted objects.
    deleted: BTreeMap<N, Version>,
    /// The list in progress.
    listing: Option<Listing<N>>,
}

/// A list in progress.
#[derive(Clone, Debug)]
struct Listing<N> {
    /// The objects that were listed so far.
    listed: BTreeSet<N>,
    /// The objects that were set since the list began, listed or not.
    learned: BTreeSet<N>,
    /// The newest version of all listed objects.
    newest: Version,
}

impl<N> Default for Listing<N> {
    fn default() -> Self {
        Self { listed: BTreeSet::new(), learned: BTreeSet::new(), newest: 0 }
    }
}

impl<F, N> Default for Mirror<F, N> {
    fn default() -> Self {
        Self::of_at_most(usize::MAX)
    }
}

impl<F, N> Mirror<F, N> {
    /// Creates a mirror that holds at most this many objects, for kinds whose number is unbounded and that need not be complete.
    #[must_use]
    pub fn of_at_most(most: usize) -> Self {
        Self { most, synced: false, known: BTreeMap::new(), deleted: BTreeMap::new(), listing: None }
    }
}

impl<F: Fact, N: Ord + Clone> Mirror<F, N> {
    /// Returns the current facts, or `None` until the kind has been listed.
    #[must_use]
    pub fn facts(&self) -> Option<Facts<F, N>> {
        let facts = || self.known.iter().map(|(name, (_, fact))| (name.clone(), Arc::clone(fact))).collect();
        self.synced.then(facts)
    }

    /// Returns the facts of one object, or `None` if they are unknown.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, name: &Q) -> Option<Arc<F>>
    where
        N: Borrow<Q>,
    {
        self.known.get(name).map(|(_, fact)| Arc::clone(fact))
    }

    /// Returns whether the kind has been listed.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// Sets the facts of one object and returns whether they changed. Versions older than the known one are ignored: the answer
    /// to a write of this operator is known before the watch reports earlier changes.
    pub fn set(&mut self, name: N, version: Version, fact: F) -> bool {
        let newest = self.known.get(&name).map(|(version, _)| *version).max(self.deleted.get(&name).copied());
        if newest.is_some_and(|newest| newest > version) {
            return false;
        }
        if self.known.len() >= self.most && !self.known.contains_key(&name) {
            return false;
        }
        if let Some(listing) = &mut self.listing {
            listing.learned.insert(name.clone());
        }
        self.put(name, version, fact)
    }

    /// Begins a list of all objects. Known facts are kept until the list is complete.
    pub fn begin_list(&mut self) {
        self.listing = Some(Listing::default());
    }

    /// Sets the facts of one listed object and returns whether they changed. They are set immediately, because a separate list
    /// would hold everything twice. Newer facts that were set since the list began are kept.
    ///
    /// In all other cases the list replaces the known facts, even if its versions are older, as after a backup was restored.
    pub fn list(&mut self, name: N, version: Version, fact: F) -> bool {
        let Some(listing) = self.listing.as_mut().filter(|listing| listing.listed.len() < self.most) else {
            return false;
        };
        listing.newest = listing.newest.max(version);
        listing.listed.insert(name.clone());
        let learned = listing.learned.contains(&name);
        if learned && self.known.get(&name).is_some_and(|(known, _)| *known > version) {
            return false;
        }
        self.put(name, version, fact)
    }

    /// Ends the list and returns whether that changed anything. Objects that were not listed are removed, except those that were
    /// set since the list began and are newer than everything in it.
    pub fn end_list(&mut self) -> bool {
        let Listing { listed, learned, newest } = self.listing.take().unwrap_or_default();
        let before = self.known.len();
        self.known.retain(|name, (version, _)| listed.contains(name) || learned.contains(name) && *version > newest);
        self.deleted.clear();
        let first = !std::mem::replace(&mut self.synced, true);
        first || self.known.len() != before
    }

    /// Removes one object and returns whether it was known. Its version is kept: the answer to a write from before the deletion
    /// may still arrive, and must not add the object again.
    pub fn remove(&mut self, name: N, version: Version) -> bool {
        let there = self.known.remove(&name).is_some();
        self.deleted.insert(name, version);
        if self.deleted.len() > MEMORY_OF_DELETED {
            // Answers to writes take seconds, within which there are far fewer deletions: the older half is no longer needed.
            let mut versions: Vec<Version> = self.deleted.values().copied().collect();
            versions.sort_unstable();
            let middle = versions[versions.len() / 2];
            self.deleted.retain(|_, version| *version > middle);
        }
        there
    }

    /// Sets the facts of one object and returns whether they changed. Times that were known before remain observed as they were.
    fn put(&mut self, name: N, version: Version, mut fact: F) -> bool {
        self.deleted.remove(&name);
        match self.known.get_mut(&name) {
            Some((known_version, known)) if **known == fact => {
                *known_version = version;
                false
            }
            known => {
                let times = |mut fact: F| fact.times().into_iter().map(|time| *time).collect::<Vec<_>>();
                let before = known.map(|(_, known)| times(F::clone(known)));
                // An object that is new since the first list has been observed from its beginning.
                let before = before.or_else(|| self.synced.then(Vec::new));
                fact.times().into_iter().for_each(|time| time.recall(before.as_deref()));
                self.known.insert(name, (version, Arc::new(fact)));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Fact for i32 {}

    impl Fact for &str {}

    #[test]
    fn only_a_different_fact_is_a_change() {
        let mut mirror: Mirror<_> = Mirror::default();
        assert!(!mirror.synced());
        assert!(mirror.set("a".into(), 1, 1));
        assert!(!mirror.set("a".into(), 2, 1));
        assert!(mirror.set("a".into(), 3, 2));
        assert!(mirror.remove("a".into(), 4));
        assert!(!mirror.remove("a".into(), 4));
    }

    #[test]
    fn versions_older_than_the_answer_to_a_write_are_ignored() {
        let mut mirror: Mirror<_> = Mirror::default();
        assert!(mirror.set("a".into(), 10, "answer"));
        assert!(!mirror.set("a".into(), 9, "before"));
        assert!(mirror.set("a".into(), 11, "after"));
        assert!(mirror.remove("a".into(), 13));
        assert!(!mirror.set("a".into(), 12, "from before the deletion"));
        assert!(mirror.set("a".into(), 14, "recreated"));
    }

    /// Lists all objects and returns whether that changed any fact.
    fn list<F: Fact>(mirror: &mut Mirror<F>, objects: impl IntoIterator<Item = (&'static str, Version, F)>) -> bool {
        mirror.begin_list();
        let objects = objects.into_iter();
        let changed = objects.fold(false, |changed, (name, version, fact)| {
            // Not `||`, which would skip the objects after the first change.
            mirror.list(name.to_owned(), version, fact) | changed
        });
        mirror.end_list() | changed
    }

    fn names<F: Fact>(mirror: &Mirror<F>) -> Vec<String> {
        mirror.facts().unwrap_or_default().into_keys().collect()
    }

    #[test]
    fn a_list_replaces_the_known_facts() {
        let mut mirror = Mirror::default();
        mirror.set("gone".into(), 1, 1);
        assert!(mirror.facts().is_none(), "one object is not a list");
        assert!(list(&mut mirror, [("here", 2, 2)]));
        assert_eq!(names(&mirror), ["here"]);
        assert!(!list(&mut mirror, [("here", 3, 2)]), "the same list is not a change");
        assert!(list(&mut mirror, [("here", 4, 3)]), "a different fact is a change");
        assert!(list(&mut mirror, []), "a removed object is a change");
        assert!(names(&mirror).is_empty());
    }

    #[test]
    fn known_facts_are_kept_until_a_list_is_complete() {
        let mut mirror = Mirror::default();
        list(&mut mirror, [("a", 1, 1), ("b", 1, 1)]);
        mirror.begin_list();
        assert!(mirror.list("b".into(), 2, 2), "a listed object is known immediately");
        assert_eq!(names(&mirror), ["a", "b"]);
        assert_eq!(mirror.get("b").as_deref(), Some(&2));
        // The list is aborted and begins again.
        assert!(list(&mut mirror, [("a", 3, 1)]));
        assert_eq!(names(&mirror), ["a"], "objects that only the aborted list contained are removed");
    }

    #[test]
    fn facts_that_are_set_during_a_list_are_kept_if_they_are_newer() {
        let mut mirror = Mirror::default();
        list(&mut mirror, [("a", 1, "listed before"), ("b", 1, "listed before")]);
        mirror.begin_list();
        for (name, version) in [("a", 9), ("b", 4), ("gone", 5), ("made", 10)] {
            assert!(mirror.set(name.into(), version, "answer"));
        }
        assert!(!mirror.list("a".into(), 2, "listed"), "the answer is newer");
        assert!(mirror.list("b".into(), 8, "listed"), "another client wrote after the answer and before the list");
        assert!(mirror.end_list(), "objects that are older than the list and not in it are removed");
        assert_eq!(names(&mirror), ["a", "b", "made"]);
        assert_eq!((mirror.get("a").as_deref(), mirror.get("b").as_deref()), (Some(&"answer"), Some(&"listed")));
    }

    #[test]
    fn a_list_replaces_known_facts_even_if_its_versions_are_older() {
        let mut mirror = Mirror::default();
        list(&mut mirror, [("a", 10, "before the backup was restored")]);
        mirror.remove("b".into(), 11);
        assert!(list(&mut mirror, [("a", 5, "restored")]));
        assert_eq!(mirror.get("a").as_deref(), Some(&"restored"));
        assert!(mirror.set("a".into(), 6, "after") && mirror.set("b".into(), 7, "recreated"));
    }

    #[test]
    fn the_versions_of_the_latest_deletions_are_kept() {
        let mut mirror = Mirror::default();
        let last = 3000;
        for number in 0..=last {
            mirror.remove(number.to_string(), number);
        }
        assert!(mirror.deleted.len() <= MEMORY_OF_DELETED);
        assert!(!mirror.set(last.to_string(), 1, "from before the deletion"));
    }

    #[test]
    fn objects_beyond_the_maximum_are_ignored() {
        let mut mirror = Mirror::of_at_most(2);
        assert!(mirror.set("a".into(), 1, 1) && mirror.set("b".into(), 1, 1));
        assert!(!mirror.set("c".into(), 1, 1), "the mirror is full");
        assert!(mirror.set("a".into(), 2, 2), "known objects are still updated");
        assert!(mirror.remove("b".into(), 2) && mirror.set("c".into(), 3, 1));
        assert!(
            list(&mut mirror, [("d", 4, 1), ("e", 4, 1), ("f", 4, 1)]),
            "the objects that a list replaces do not count"
        );
        assert_eq!(names(&mirror), ["d", "e"]);
    }

    /// A fact with the minute at which another machine says that it began.
    #[derive(Clone, Debug, PartialEq)]
    struct Began(ObservedTime);

    impl Fact for Began {
        fn times(&mut self) -> Vec<&mut ObservedTime> {
            vec![&mut self.0]
        }
    }

    #[test]
    fn a_reported_time_keeps_when_it_was_first_observed() {
        let minute = |minute: i64| Timestamp::from_second(minute * 60).unwrap();
        let seen = |reported, now| observed(Began(minute(reported).into()), minute(now));
        let local = |mirror: &Mirror<Began>, name: &str| mirror.get(name).unwrap().0.local();
        let mut mirror = Mirror::default();
        list(&mut mirror, [("past", 1, seen(2, 10)), ("future", 1, seen(30, 10))]);
        assert_eq!(local(&mirror, "past"), minute(2), "it began before this operator");
        assert_eq!(local(&mirror, "future"), minute(10), "that clock is ahead");
        mirror.set("behind".into(), 2, seen(2, 11));
        assert_eq!(local(&mirror, "behind"), minute(11));
        list(&mut mirror, [("behind", 3, seen(2, 12)), ("future", 3, seen(30, 12)), ("new", 3, seen(2, 12))]);
        assert_eq!(["behind", "future", "new"].map(|name| local(&mirror, name)), [11, 10, 12].map(minute));
        mirror.set("future".into(), 4, seen(31, 13));
        assert_eq!(local(&mirror, "future"), minute(13), "it began again");
    }

    #[test]
    fn an_empty_list_is_a_change_too() {
        assert!(list(&mut Mirror::<i32>::default(), []));
    }
}
