//! Objects that may be of another version of their API: one that cannot be parsed must not stall the watch of its kind.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::value::RawValue;
use thiserror::Error;

use super::elements::Elements;

/// An object, or its metadata if it cannot be parsed. Of managed fields only managers and times are parsed.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, Unparsable>);

/// An object that cannot be parsed.
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

/// Parses the text of an object.
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
    use kube::ResourceExt;
    use serde_json::json;

    use super::*;

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
