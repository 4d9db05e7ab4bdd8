//! Whether the CRDs are of this operator's version.

use gpu_operator_crd::SchemaMismatch;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{ResourceExt, core::PartialObjectMeta};
use strum::{EnumIter, IntoStaticStr};

use crate::watch::Known;

/// The metadata of a CRD, without its schema, which is large.
pub type CrdMetadata = PartialObjectMeta<CustomResourceDefinition>;

/// The facts of a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crd {
    /// How it differs from this version.
    pub mismatch: Option<SchemaMismatch>,
}

impl From<&CrdMetadata> for Crd {
    fn from(crd: &CrdMetadata) -> Self {
        Self { mismatch: SchemaMismatch::of(&crd.name_any(), crd.annotations()) }
    }
}

/// The version of a CRD, compared with this operator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, EnumIter)]
pub enum SchemaState {
    /// The API server has not answered yet, or rejects the requests.
    Unknown,
    /// There is no CRD of this name.
    Missing,
    /// It has this operator's schema revision.
    Current,
    /// It has an older schema revision, or none.
    Outdated,
    /// It has a newer schema revision.
    Newer,
}

impl From<&Known<Crd>> for SchemaState {
    fn from(known: &Known<Crd>) -> Self {
        match known {
            Known::Unknown => Self::Unknown,
            Known::Absent => Self::Missing,
            Known::Present(Crd { mismatch: None }) => Self::Current,
            Known::Present(Crd { mismatch: Some(mismatch) }) if mismatch.is_newer() => Self::Newer,
            Known::Present(_) => Self::Outdated,
        }
    }
}
