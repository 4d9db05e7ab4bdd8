//! Objects of which only what is needed is kept, from the moment when they are parsed: a page of objects in memory would be
//! several times as large as its text. An object of another version of its API that cannot be parsed does not stall the watch of
//! its kind.

mod elements;

use std::{borrow::Cow, fmt::Debug};

use elements::Elements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::value::RawValue;
use thiserror::Error;

/// What is needed of an object.
pub trait Extract: Clone + Debug + Send + Sync + 'static {
    type Object: Resource<DynamicType = ()> + DeserializeOwned;
    /// The maximum number of elements of an object's lists and maps that are parsed: its text may take a few bytes for an element
    /// that takes a few hundred in memory.
    const MAX_ELEMENTS: usize;
    /// Whether the managed fields are needed, and not only their managers and times.
    const NEEDS_FIELDS: bool = false;

    /// Extracts it from an object. If the object has more elements, it is parsed as if the others did not exist, and not complete.
    fn extract(object: Self::Object, is_complete: bool) -> Self;
}

/// What is needed of an object, with the metadata that identifies it.
#[derive(Clone, Debug)]
pub struct Extracted<T> {
    pub part: T,
    meta: ObjectMeta,
}

impl<T: Extract> Extracted<T> {
    pub fn of(mut object: T::Object, is_complete: bool) -> Self {
        let meta = object.meta_mut();
        let meta = ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            resource_version: meta.resource_version.clone(),
            ..ObjectMeta::default()
        };
        Self { part: T::extract(object, is_complete), meta }
    }
}

impl<'de, T: Extract> Deserialize<'de> for Extracted<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let elements = Elements::of_at_most(T::MAX_ELEMENTS).keeping_fields(T::NEEDS_FIELDS);
        let object = T::Object::deserialize(elements.counted(deserializer))?;
        Ok(Self::of(object, elements.are_complete()))
    }
}

impl<T: Extract> Resource for Extracted<T> {
    type DynamicType = ();
    type Scope = <T::Object as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        T::Object::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        T::Object::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        T::Object::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        T::Object::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

/// An object, or its metadata if it cannot be parsed. Of managed fields only managers and times are parsed.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, Unparsable>);

#[derive(Clone, Debug, Error)]
#[error("{error}")]
pub struct Unparsable {
    error: String,
    metadata: ObjectMeta,
}

/// The metadata of any object.
#[derive(Deserialize)]
struct AnyObject {
    metadata: ObjectMeta,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // kube's `DeserializeGuard` reads every object into a tree of values, of which it makes a copy. As a text, an object is parsed
        // once, and a second time only if that fails.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(match parse(&text) {
            Ok(object) => Ok(object),
            Err(error) => {
                let AnyObject { metadata } = parse(&text).map_err(D::Error::custom)?;
                Err(Unparsable { error: error.to_string(), metadata })
            }
        }))
    }
}

fn parse<T: DeserializeOwned>(text: &RawValue) -> serde_json::Result<T> {
    let elements = Elements::of_at_most(usize::MAX).keeping_fields(false);
    T::deserialize(elements.counted(&mut serde_json::Deserializer::from_str(text.get())))
}

impl<K: Resource<DynamicType = ()>> Resource for Guarded<K> {
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
        self.0.as_ref().map_or_else(|unparsable| &unparsable.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|unparsable| &mut unparsable.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::GpuNode;
    use k8s_openapi::api::core::v1::Pod;
    use kube::ResourceExt;
    use serde_json::json;

    use super::*;

    /// The number of a pod's volumes and labels, and whether these are all.
    #[derive(Clone, Debug)]
    struct Counted(usize, usize, bool);

    impl Extract for Counted {
        type Object = Pod;
        const MAX_ELEMENTS: usize = 50;

        fn extract(pod: Pod, is_complete: bool) -> Self {
            let labels = pod.labels().len();
            Self(pod.spec.unwrap_or_default().volumes.unwrap_or_default().len(), labels, is_complete)
        }
    }

    fn extracted(volumes: usize, labels: usize) -> Extracted<Counted> {
        let labels: std::collections::BTreeMap<_, _> = (0..labels).map(|label| (format!("l{label}"), "")).collect();
        let volumes: Vec<_> = (0..volumes).map(|_| json!({"name": "v", "emptyDir": {}})).collect();
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "resourceVersion": "7", "labels": labels},
            "spec": {"containers": [], "volumes": volumes}, "status": {"phase": "Pending"},
        });
        serde_json::from_str(&pod.to_string()).unwrap()
    }

    #[test]
    fn an_object_is_parsed_up_to_a_number_of_elements() {
        let small = extracted(3, 2);
        assert_eq!((small.part.0, small.part.1, small.part.2), (3, 2, true));
        let many = extracted(1000, 2);
        assert!((40..50).contains(&many.part.0) && !many.part.2, "{many:?}");
        assert_eq!((many.name_any(), many.resource_version()), ("p".to_owned(), Some("7".to_owned())));
        let labels = extracted(3, 1000);
        assert_eq!(labels.name_any(), "p", "although the labels are before the name");
        assert!((40..=50).contains(&labels.part.1) && !labels.part.2, "{labels:?}");
    }

    fn parsed(spec: &serde_json::Value) -> Guarded<GpuNode> {
        let managed = json!([{"manager": "m", "fieldsV1": {"f:spec": {"f:pool": {}}}, "operation": "Apply"}]);
        let meta = json!({"name": "a", "resourceVersion": "7", "managedFields": managed});
        serde_json::from_str(&json!({"metadata": meta, "spec": spec}).to_string()).unwrap()
    }

    #[test]
    fn an_object_is_parsed_without_its_managed_fields() {
        let guarded = parsed(&json!({"pool": "h100"}));
        let entry = &guarded.managed_fields()[0];
        assert_eq!((entry.manager.as_deref(), entry.operation.as_deref()), (Some("m"), Some("Apply")));
        assert_eq!(entry.fields_v1, None);
        assert_eq!(guarded.0.unwrap().spec.pool, Some("h100".into()));
    }

    #[test]
    fn an_object_that_cannot_be_parsed_has_its_metadata() {
        let guarded = parsed(&json!({"pool": 7}));
        assert_eq!((guarded.name_any(), guarded.resource_version()), ("a".to_owned(), Some("7".to_owned())));
        let error = guarded.0.unwrap_err().to_string();
        assert!(error.contains("invalid type: integer `7`"), "{error}");
    }
}
