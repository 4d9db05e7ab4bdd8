//! A mirror of the objects of one kind: what is known of each, kept up to date by a watch and by the answers to writes.

use std::{borrow::Borrow, collections::BTreeMap, sync::Arc};

use crate::copy_on_write::CopyOnWrite;

/// What is known of all objects of one kind, by name.
pub type Facts<F, N = String> = CopyOnWrite<BTreeMap<N, Arc<F>>>;

/// The facts of all objects of one kind, in the form in which they are handed over and read.
pub trait View<F, N>: Clone + Default {
    /// Sets the facts of one object.
    fn put(&mut self, name: &N, fact: &Arc<F>);

    fn remove(&mut self, name: &N);
}

impl<F, N: Ord + Clone> View<F, N> for BTreeMap<N, Arc<F>> {
    fn put(&mut self, name: &N, fact: &Arc<F>) {
        self.insert(name.clone(), Arc::clone(fact));
    }

    fn remove(&mut self, name: &N) {
        Self::remove(self, name);
    }
}

impl<F, N, V: View<F, N>> View<F, N> for CopyOnWrite<V> {
    fn put(&mut self, name: &N, fact: &Arc<F>) {
        V::put(self, name, fact);
    }

    fn remove(&mut self, name: &N) {
        V::remove(self, name);
    }
}

/// A resource version. Since 1.35, Kubernetes guarantees what was already true before: the larger number is the newer version.
/// Zero if the object has none.
pub type Version = u64;

/// A mirror of one kind, with facts of type `F` and names of type `N`.
#[derive(Clone, Debug)]
pub struct Mirror<F, N = String, V = Facts<F, N>> {
    /// The maximum number of objects that it holds; more are ignored.
    most: usize,
    /// Whether the kind has been listed once.
    synced: bool,
    known: BTreeMap<N, Known<F>>,
    /// The facts of [`Self::known`], without versions and sources, which change more often. Readers share them. The first change in the
    /// meantime copies the map, not the facts: at most one copy for each reader, which each would need otherwise. A pass
    /// of the operator reads them only while it plans, and makes its writes without them.
    view: V,
    /// The newest version that the watch has sent. A watch sends the versions of all objects of its kind in order.
    seen: Version,
    /// The list in progress.
    listing: Option<Listing>,
}

#[derive(Clone, Debug)]
struct Known<F> {
    /// The version from which the facts were read.
    version: Version,
    source: Source,
    fact: Arc<F>,
}

/// Where facts are from, with respect to the last list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// They were known before the list began.
    Earlier,
    /// They are from the list.
    List,
    /// They were set since the list began.
    Later,
}

/// A list in progress.
#[derive(Clone, Copy, Debug, Default)]
struct Listing {
    /// The number of objects that were listed so far.
    count: usize,
    newest: Version,
}

impl<F, N, V: View<F, N>> Default for Mirror<F, N, V> {
    fn default() -> Self {
        Self::of_at_most(usize::MAX)
    }
}

impl<F, N, V: View<F, N>> Mirror<F, N, V> {
    /// Creates a mirror that holds at most this many objects, for kinds whose number is unbounded and that need not be complete.
    pub fn of_at_most(most: usize) -> Self {
        Self { most, synced: false, known: BTreeMap::new(), view: V::default(), seen: 0, listing: None }
    }

    /// Returns whether it holds as many objects as it may, so that there may be others.
    pub fn is_full(&self) -> bool {
        self.known.len() >= self.most
    }

    pub fn synced(&self) -> bool {
        self.synced
    }
}

impl<F: PartialEq, N: Ord, V: View<F, N>> Mirror<F, N, V> {
    /// Returns the current facts, or `None` until the kind has been listed.
    pub fn facts(&self) -> Option<V> {
        self.synced.then(|| self.view.clone())
    }

    /// Returns the facts of one object, or `None` if they are unknown.
    pub fn get<Q: Ord + ?Sized>(&self, name: &Q) -> Option<&F>
    where
        N: Borrow<Q>,
    {
        self.known.get(name).map(|known| &*known.fact)
    }

    /// Returns the newest known version of one object, if its facts are known.
    pub fn version<Q: Ord + ?Sized>(&self, name: &Q) -> Option<Version>
    where
        N: Borrow<Q>,
    {
        self.known.get(name).map(|known| known.version)
    }

    /// Sets the facts of one object, which the watch has sent, and returns whether they changed.
    pub fn set(&mut self, name: N, version: Version, fact: F) -> bool {
        self.seen = self.seen.max(version);
        self.put(name, version, Source::Later, fact)
    }

    /// Sets the facts of one object from the answer to a write, which is known before the watch sends the change and all changes
    /// before it. Returns whether they changed. If the watch has already sent a newer version of any object, it has also sent
    /// what became of this one, which may have been deleted since.
    pub fn learn(&mut self, name: N, version: Version, fact: F) -> bool {
        version > self.seen && self.put(name, version, Source::Later, fact)
    }

    /// Removes one object, whose deletion the watch has sent, and returns whether it was known. An object that was created again
    /// since, according to the answer to a write, stays.
    pub fn remove(&mut self, name: &N, version: Version) -> bool {
        self.seen = self.seen.max(version);
        let goes = self.known.get(name).is_some_and(|known| known.version <= version);
        if goes {
            self.known.remove(name);
            self.view.remove(name);
        }
        goes
    }

    /// Begins a list of all objects. Known facts are kept until the list is complete.
    pub fn begin_list(&mut self) {
        self.known.values_mut().for_each(|known| known.source = Source::Earlier);
        self.listing = Some(Listing::default());
    }

    /// Sets the facts of one listed object and returns whether they changed. They are set immediately, because a separate list
    /// would hold everything twice. Newer facts that were set since the list began are kept.
    ///
    /// In all other cases the list replaces the known facts, even if its versions are older, as after a backup was restored.
    pub fn list(&mut self, name: N, version: Version, fact: F) -> bool {
        let Some(listing) = self.listing.as_mut().filter(|listing| listing.count < self.most) else { return false };
        listing.count += 1;
        listing.newest = listing.newest.max(version);
        self.put(name, version, Source::List, fact)
    }

    /// Ends the list and returns whether that changed anything. Objects that were not listed are removed, except those that were
    /// set since the list began and are newer than everything in it.
    pub fn end_list(&mut self) -> bool {
        let before = self.known.len();
        self.seen = self.listing.take().unwrap_or_default().newest;
        self.known.retain(|name, known| {
            let stays = match known.source {
                Source::Earlier => false,
                Source::List => true,
                Source::Later => known.version > self.seen,
            };
            if !stays {
                self.view.remove(name);
            }
            stays
        });
        let first = !std::mem::replace(&mut self.synced, true);
        first || self.known.len() != before
    }

    /// Sets the facts of one object unless newer ones are known.
    fn put(&mut self, name: N, version: Version, source: Source, fact: F) -> bool {
        let is_listed = source == Source::List;
        let Some(known) = self.known.get_mut(&name) else {
            let has_room = is_listed || self.known.len() < self.most;
            if has_room {
                let fact = Arc::new(fact);
                self.view.put(&name, &fact);
                self.known.insert(name, Known { version, source, fact });
            }
            return has_room;
        };
        let stays = known.version > version && (known.source == Source::Later || !is_listed);
        if is_listed || !stays {
            known.source = source;
        }
        if stays {
            return false;
        }
        known.version = version;
        let changed = *known.fact != fact;
        if changed {
            known.fact = Arc::new(fact);
            self.view.put(&name, &known.fact);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_different_fact_is_a_change() {
        let mut mirror: Mirror<_> = Mirror::default();
        assert!(!mirror.synced());
        assert!(mirror.set("a".into(), 1, 1));
        assert!(!mirror.set("a".into(), 2, 1));
        assert!(mirror.set("a".into(), 3, 2));
        assert!(mirror.remove(&"a".into(), 4));
        assert!(!mirror.remove(&"a".into(), 4));
    }

    #[test]
    fn a_watch_does_not_undo_the_answer_to_a_write() {
        let mut mirror: Mirror<_> = Mirror::default();
        assert!(mirror.learn("a".into(), 10, "answer"));
        assert!(!mirror.set("a".into(), 9, "before"));
        assert!(!mirror.set("a".into(), 10, "answer"));
        assert!(mirror.set("a".into(), 11, "after"));
        assert!(mirror.learn("b".into(), 20, "created again"));
        assert!(!mirror.remove(&"b".into(), 12), "deleted before that");
    }

    #[test]
    fn an_answer_does_not_undo_what_the_watch_has_sent() {
        let mut mirror: Mirror<_> = Mirror::default();
        assert!(mirror.set("a".into(), 11, "another client's"));
        assert!(!mirror.learn("a".into(), 10, "answer"));
        assert!(mirror.remove(&"a".into(), 13));
        assert!(!mirror.learn("a".into(), 12, "from before the deletion"));
        assert!(mirror.learn("a".into(), 14, "created again"));
    }

    fn list<F: PartialEq>(
        mirror: &mut Mirror<F>,
        objects: impl IntoIterator<Item = (&'static str, Version, F)>,
    ) -> bool {
        mirror.begin_list();
        let objects = objects.into_iter();
        let changed = objects.fold(false, |changed, (name, version, fact)| {
            // Not `||`, which would skip the objects after the first change.
            mirror.list(name.to_owned(), version, fact) | changed
        });
        mirror.end_list() | changed
    }

    fn names<F: PartialEq>(mirror: &Mirror<F>) -> Vec<String> {
        mirror.facts().unwrap_or_default().keys().cloned().collect()
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
        assert!(list(&mut Mirror::<i32>::default(), []), "the kind is known from then on");
    }

    #[test]
    fn facts_are_copied_only_if_they_change_while_read() {
        let address = |mirror: &Mirror<i32>| std::ptr::from_ref(&*mirror.facts().unwrap());
        let mut mirror = Mirror::default();
        list(&mut mirror, [("a", 1, 1), ("b", 1, 1)]);
        let read = mirror.facts().unwrap();
        mirror.set("a".into(), 2, 1);
        list(&mut mirror, [("a", 3, 1), ("b", 3, 1)]);
        assert_eq!(address(&mirror), std::ptr::from_ref(&*read), "only versions changed");
        mirror.set("a".into(), 4, 2);
        mirror.remove(&"b".into(), 5);
        assert_eq!((read.len(), *read["a"]), (2, 1));
        assert_eq!((names(&mirror), mirror.get("a")), (vec!["a".to_owned()], Some(&2)));
        let copy = address(&mirror);
        mirror.set("a".into(), 6, 3);
        assert_eq!(address(&mirror), copy, "the copy has no reader");
    }

    #[test]
    fn known_facts_are_kept_until_a_list_is_complete() {
        let mut mirror = Mirror::default();
        list(&mut mirror, [("a", 1, 1), ("b", 1, 1)]);
        mirror.begin_list();
        assert!(mirror.list("b".into(), 2, 2), "a listed object is known immediately");
        assert_eq!(names(&mirror), ["a", "b"]);
        assert_eq!(mirror.get("b"), Some(&2));
        // The list is aborted and begins again.
        assert!(list(&mut mirror, [("a", 3, 1)]));
        assert_eq!(names(&mirror), ["a"], "objects that only the aborted list contained are removed");
    }

    #[test]
    fn answers_during_a_list_are_kept_if_they_are_newer() {
        let mut mirror = Mirror::default();
        list(&mut mirror, [("a", 1, "listed before"), ("b", 1, "listed before")]);
        mirror.begin_list();
        for (name, version) in [("a", 9), ("b", 4), ("gone", 5), ("made", 10)] {
            assert!(mirror.learn(name.into(), version, "answer"));
        }
        assert!(!mirror.list("a".into(), 2, "listed"), "the answer is newer");
        assert!(mirror.list("b".into(), 8, "listed"), "another client wrote after the answer and before the list");
        assert!(mirror.end_list(), "objects that are older than the list and not in it are removed");
        assert_eq!(names(&mirror), ["a", "b", "made"]);
        assert_eq!((mirror.get("a"), mirror.get("b")), (Some(&"answer"), Some(&"listed")));
        assert!(!mirror.learn("gone".into(), 5, "answer"), "it is older than the list");
    }

    #[test]
    fn a_list_replaces_known_facts_even_if_its_versions_are_older() {
        let mut mirror = Mirror::default();
        list(&mut mirror, [("a", 10, "before the backup was restored")]);
        mirror.remove(&"b".into(), 11);
        assert!(list(&mut mirror, [("a", 5, "restored")]));
        assert_eq!(mirror.get("a"), Some(&"restored"));
        assert!(mirror.learn("a".into(), 6, "after") && mirror.learn("b".into(), 7, "created again"));
    }

    #[test]
    fn objects_beyond_the_maximum_are_ignored() {
        let mut mirror = Mirror::of_at_most(2);
        assert!(mirror.set("a".into(), 1, 1) && mirror.set("b".into(), 1, 1));
        assert!(!mirror.set("c".into(), 1, 1), "the mirror is full");
        assert!(mirror.is_full() && !Mirror::<u8>::default().is_full());
        assert!(mirror.set("a".into(), 2, 2), "known objects are still updated");
        assert!(mirror.remove(&"b".into(), 2) && mirror.set("c".into(), 3, 1));
        assert!(
            list(&mut mirror, [("d", 4, 1), ("e", 4, 1), ("f", 4, 1)]),
            "the objects that a list replaces do not count"
        );
        assert_eq!(names(&mirror), ["d", "e"]);
    }
}
