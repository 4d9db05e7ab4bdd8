//! Objects of which only what is needed is kept, from the moment when they are parsed: a page of objects in memory would be several
//! times as large as its text.

mod elements;
mod guarded;

use std::{borrow::Cow, fmt::Debug};

use elements::Elements;
pub use guarded::Guarded;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

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

#[cfg(test)]
mod tests {
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
}
