//! What is known of the schema revisions of the CRDs.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use gpu_operator_crd::{SchemaMismatch, schema_revision::crd_names};
use gpu_operator_plan::world::OtherSchema;
use k8s_openapi::jiff::Timestamp;

/// The CRDs of which something is known, by name, with those of another version than this operator.
#[derive(Debug, Default)]
pub struct Schemas(RwLock<BTreeMap<&'static str, Option<OtherSchema>>>);

impl Schemas {
    /// Sets what is known of a CRD: `None` if it is of this operator's version, or may not be read. Returns whether that changed.
    pub fn put(&self, crd: &'static str, mismatch: Option<SchemaMismatch>, now: Timestamp) -> bool {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(crd);
        let is_same = |found: &Option<OtherSchema>| found.as_ref().map(|found| &found.mismatch) == mismatch.as_ref();
        if before.is_some_and(is_same) {
            return false;
        }
        // Two revisions one after the other are one time without the operator's own.
        let since = before.and_then(Option::as_ref).map_or(now, |found| found.since);
        known.insert(crd, mismatch.map(|mismatch| OtherSchema { mismatch, since }));
        true
    }

    /// Returns whether the API server has answered for all CRDs. Before that, nothing may be removed.
    pub fn answered(&self) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        crd_names().iter().all(|crd| known.contains_key(crd))
    }

    /// Returns a CRD of another version than this operator, if there is one.
    pub fn other(&self) -> Option<OtherSchema> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.values().flatten().next().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_lasts_from_its_first_observation() {
        let (schemas, [policies, gpu_nodes]) = (Schemas::default(), crd_names());
        let at = |second| Timestamp::from_second(second).unwrap();
        let other = |revision| Some(SchemaMismatch { crd: policies.to_owned(), revision });
        assert!(schemas.put(policies, other(None), at(1)) && !schemas.answered());
        assert!(schemas.put(gpu_nodes, None, at(2)) && schemas.answered());
        assert!(!schemas.put(policies, other(None), at(3)), "nothing changed");
        assert!(schemas.put(policies, other(Some(99)), at(4)));
        assert_eq!(schemas.other().map(|other| (other.mismatch.revision, other.since)), Some((Some(99), at(1))));
        assert!(schemas.put(policies, None, at(5)));
        assert_eq!(schemas.other(), None);
    }
}
