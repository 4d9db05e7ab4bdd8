//! The fields of CRDs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

/// Returns the paths of the fields that a version of `wanted` has and that of `actual` lacks, without the fields below them.
pub fn missing(wanted: &CustomResourceDefinition, actual: &CustomResourceDefinition, version: &str) -> Vec<String> {
    let mut paths = Vec::new();
    match (root(wanted, version), root(actual, version)) {
        (Some(wanted), Some(actual)) => compare(wanted, actual, "", &mut paths),
        (Some(_), None) => paths.push(format!("version {version}")),
        (None, _) => {}
    }
    paths
}

fn root<'c>(crd: &'c CustomResourceDefinition, version: &str) -> Option<&'c JSONSchemaProps> {
    let found = crd.spec.versions.iter().find(|found| found.name == version)?;
    found.schema.as_ref()?.open_api_v3_schema.as_ref()
}

fn compare(wanted: &JSONSchemaProps, actual: &JSONSchemaProps, path: &str, paths: &mut Vec<String>) {
    if actual.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for (name, wanted) in wanted.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        match actual.properties.iter().flatten().find(|(found, _)| *found == name) {
            Some((_, actual)) => compare(wanted, actual, &path, paths),
            // apiVersion, kind and metadata need no schema.
            None if path.matches('.').count() == 1 && !["spec", "status"].contains(&name.as_str()) => {}
            None => paths.push(path.trim_start_matches('.').to_owned()),
        }
    }
    if let (Some(JSONSchemaPropsOrArray::Schema(wanted)), Some(JSONSchemaPropsOrArray::Schema(actual))) =
        (&wanted.items, &actual.items)
    {
        compare(wanted, actual, &format!("{path}[]"), paths);
    }
    if let (Some(JSONSchemaPropsOrBool::Schema(wanted)), Some(JSONSchemaPropsOrBool::Schema(actual))) =
        (&wanted.additional_properties, &actual.additional_properties)
    {
        compare(wanted, actual, &format!("{path}.*"), paths);
    }
}
