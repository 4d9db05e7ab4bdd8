//! Fields of earlier versions of the policy. The API server rejects them with the name of the field that replaces them; without
//! these entries it would only report an unknown field, or drop the field silently if a client requests no strict validation.
//! They exist in the CRD only.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, ValidationRule,
};

use crate::structural::field;

/// A removed field, and the field of the same object that replaces it.
struct Removed {
    name: &'static str,
    replaced_by: &'static str,
    of_type: &'static str,
    write: &'static str,
}

const REMOVED: [Removed; 5] = [
    Removed { name: "pciIds", replaced_by: "pciIDs", of_type: "array", write: "pciIDs" },
    Removed { name: "memoryMib", replaced_by: "memoryMiB", of_type: "integer", write: "memoryMiB" },
    Removed { name: "allowPlainHttp", replaced_by: "allowPlainHTTP", of_type: "boolean", write: "allowPlainHTTP" },
    Removed {
        name: "uncorrectableEccErrors",
        replaced_by: "uncorrectableECCErrors",
        of_type: "integer",
        write: "uncorrectableECCErrors",
    },
    Removed {
        name: "taintUnhealthy",
        replaced_by: "onUnhealthy",
        of_type: "boolean",
        write: "onUnhealthy: {taint: {}} instead of true, and nothing instead of false",
    },
];

impl Removed {
    fn schema(&self) -> JSONSchemaProps {
        // The bounds are those of the elements of `pciIDs`.
        let items =
            JSONSchemaProps { type_: Some("string".to_owned()), max_length: Some(32), ..JSONSchemaProps::default() };
        let is_list = self.of_type == "array";
        JSONSchemaProps {
            description: Some(format!("Removed. Write {}.", self.write)),
            type_: Some(self.of_type.to_owned()),
            items: is_list.then(|| JSONSchemaPropsOrArray::Schema(Box::new(items))),
            max_items: is_list.then_some(16),
            // The rule is evaluated only if the field is set.
            x_kubernetes_validations: Some(vec![ValidationRule {
                rule: "false".to_owned(),
                message: Some(format!("{} was removed: write {}", self.name, self.write)),
                ..ValidationRule::default()
            }]),
            ..JSONSchemaProps::default()
        }
    }
}

/// Adds the removed fields to a property of an object, such as `spec`, beside those that replace them.
pub fn reject(crd: &mut CustomResourceDefinition, property: &str) {
    field(crd, property).for_each(add);
}

fn add(schema: &mut JSONSchemaProps) {
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        add(items);
    }
    let Some(properties) = &mut schema.properties else { return };
    properties.values_mut().for_each(add);
    for removed in REMOVED {
        if properties.contains_key(removed.replaced_by) {
            properties.insert(removed.name.to_owned(), removed.schema());
        }
    }
}
