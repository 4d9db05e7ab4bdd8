//! The structural schemas of CRDs, as they are changed after their generation.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};

/// Returns the schemas of a field of the objects, such as `spec`, one for each version.
pub fn field<'c>(crd: &'c mut CustomResourceDefinition, name: &str) -> impl Iterator<Item = &'c mut JSONSchemaProps> {
    let schemas =
        crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut());
    schemas.filter_map(move |schema| schema.properties.as_mut()?.get_mut(name))
}
