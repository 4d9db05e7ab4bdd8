//! The revision of the CRDs' schemas. The API server drops fields that older CRDs lack, so an operator does not lead while the installed
//! CRDs are older than its own. With newer CRDs it works as with its own: it applies only the fields that it knows.

use std::{collections::BTreeMap, fmt};

use kube::CustomResourceExt;

use crate::{gpunode::GpuNode, policy::ClusterGpuPolicy};

/// The revision of the schemas of this version, which increases with every change of them.
pub const SCHEMA_REVISION: u32 = 4;
/// Annotation of the CRDs: [`SCHEMA_REVISION`] of the version that they are from.
pub const ANNOTATION: &str = "gpu.nodestack.dev/schema-revision";

/// Returns the names of the CRDs.
pub fn crd_names() -> [&'static str; 2] {
    [ClusterGpuPolicy::crd_name(), GpuNode::crd_name()]
}

/// A CRD whose schema revision is not this version's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchemaMismatch {
    /// The name of the CRD.
    pub crd: String,
    /// Its schema revision; `None` if it has none, or an invalid one.
    pub revision: Option<u32>,
}

impl SchemaMismatch {
    /// Compares a CRD with this version, by its annotations. Returns `None` if the schema revisions are equal.
    pub fn of(crd: &str, annotations: &BTreeMap<String, String>) -> Option<Self> {
        let revision = annotations.get(ANNOTATION).and_then(|revision| revision.parse().ok());
        (revision != Some(SCHEMA_REVISION)).then(|| Self { crd: crd.to_owned(), revision })
    }

    /// Returns whether the CRD is of a newer version than this one.
    pub fn is_newer(&self) -> bool {
        self.revision > Some(SCHEMA_REVISION)
    }

    /// Returns how to make the revisions equal.
    pub fn remedy(&self) -> &'static str {
        if self.is_newer() {
            "upgrade the operator to the version of the CRDs with helm upgrade, or restore the CRDs of this version with kubectl apply \
             --server-side -f config/crd"
        } else {
            "update the CRDs with helm upgrade, or, if crds.enabled is false, with kubectl apply --server-side -f config/crd"
        }
    }
}

impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = if self.is_newer() { "newer" } else { "older" };
        write!(f, "CRD {} is {relation} than this version: it has ", self.crd)?;
        match self.revision {
            Some(revision) => write!(f, "schema revision {revision}")?,
            None => f.write_str("no schema revision")?,
        }
        write!(f, ", and this version has {SCHEMA_REVISION}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crd_is_older_or_newer_by_its_annotation() {
        let of = |revision: Option<String>| {
            let annotations = revision.map(|revision| (ANNOTATION.to_owned(), revision)).into_iter().collect();
            SchemaMismatch::of("crd", &annotations)
        };
        let other = |revision: u32| of(Some(revision.to_string()));
        assert_eq!(other(SCHEMA_REVISION), None);
        for older in [of(None), of(Some("x".to_owned())), other(0)] {
            assert_eq!(older.map(|found| found.is_newer()), Some(false));
        }
        assert_eq!(other(SCHEMA_REVISION + 1).map(|found| found.is_newer()), Some(true));
    }
}
