use std::{borrow::Cow, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

/// An object of kind `K` of which only the metadata and the fields of `S` (spec) and `T` (status) are parsed.
#[derive(Deserialize, Clone, Debug)]
#[serde(bound = "S: Default + Deserialize<'de>, T: Default + Deserialize<'de>")]
pub struct Partial<K, S, T> {
    metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: S,
    #[serde(default)]
    pub(super) status: T,
    #[serde(skip)]
    kind: PhantomData<K>,
}

impl<K: Resource<DynamicType = ()>, S, T> Resource for Partial<K, S, T> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
