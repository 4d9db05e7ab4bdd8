//! What is asked of words, and of Kubernetes' own types, beyond what their types say. What a DaemonSet or a Node would be
//! refused for later on is refused here, where the user sees it.
//!
//! Nothing here holds a value: the types are named by `#[schemars(with = …)]` beside the ones that do.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::api::core::v1::{EnvVar, Toleration};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

const ILLEGAL_KEY: &str = "no label or taint can have this key: write a name of at most 63 letters, digits, '-', '_' and '.', optionally after a lower-case DNS prefix and '/', such as example.com/gpu";

/// A bounded string and the rules that hold for it.
macro_rules! word {
    ($(#[$doc:meta])+ $name:ident: $max:literal bytes, $($rule:literal => $message:expr),+ $(,)?) => {
        $(#[$doc])+
        pub(crate) struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let rules = rules(&[$(($rule, $message)),+]);
                json_schema!({"type": "string", "maxLength": $max, "x-kubernetes-validations": rules})
            }
        }
    };
}

word! {
    /// The key of a label that we publish: a legal one, and nobody else's.
    PublishedKey: 317 bytes,
    "!format.qualifiedName().validate(self).hasValue()" =>
        "a label key is a name of at most 63 letters, digits, '-', '_' and '.', optionally after a lower-case DNS prefix and '/'; write for example accelerator or example.com/gpu",
    "!self.split('/')[0].endsWith('kubernetes.io') && !self.split('/')[0].endsWith('k8s.io') && !self.split('/')[0].endsWith('nodestack.dev')" =>
        "keys of kubernetes.io, k8s.io and gpu.nodestack.dev are reserved; write a key of your own such as accelerator or example.com/gpu",
    "!self.matches('^nvidia[.]com/(gpu[.](present|product|count|replicas|sharing-strategy|memory|family|machine|mode|clique|multiprocessors|(compute|slices|engines)[.].+)|mig[.](capable|strategy)|mig-.+|mps[.]capable|cuda[.].+|vgpu[.](present|host-driver-.+))$')" =>
        "this is a key of NVIDIA's GPU feature discovery: write compatibility: {labels: Gfd}, which publishes all of them, or a key of your own such as example.com/gpu",
}

word! {
    /// The key of a label or taint that is asked for: any legal one.
    Key: 317 bytes,
    "!format.qualifiedName().validate(self).hasValue()" => ILLEGAL_KEY,
}

word! {
    /// The value of a label or taint.
    LabelValue: 63 bytes,
    "!format.labelValue().validate(self).hasValue()" =>
        "a label value has letters, digits, '-', '_' and '.' only and begins and ends with a letter or digit; write for example H100-80GB",
}

word! {
    /// The name of a pull secret.
    SecretName: 253 bytes,
    "!format.dns1123Subdomain().validate(self).hasValue()" =>
        "write the name of a Secret: lower-case letters, digits, '-' and '.' only, such as mirror",
}

word! {
    /// The name of a priority class.
    PriorityClassName: 253 bytes,
    "!format.dns1123Subdomain().validate(self).hasValue()" =>
        "write the name of a PriorityClass: lower-case letters, digits, '-' and '.' only, such as system-node-critical",
}

word! {
    /// The name of a ConfigMap.
    ObjectName: 253 bytes,
    "!format.dns1123Subdomain().validate(self).hasValue()" =>
        "write the name of a ConfigMap: lower-case letters, digits, '-' and '.' only, such as driver-repositories",
}

word! {
    /// The key of a ConfigMap, as the name of a file.
    FileName: 253 bytes,
    "self.matches('^[A-Za-z0-9_-][A-Za-z0-9._-]*$')" =>
        "write a key of the ConfigMap, which becomes the name of a file: letters, digits, '-', '_' and '.' only, such as internal.list",
}

word! {
    /// The address of a proxy.
    ProxyUrl: 512 bytes,
    "self.matches('^https?://[^/ ]+/?$')" =>
        "write the proxy's address with its scheme, such as http://proxy.example.com:3128",
}

word! {
    /// The name of a `RuntimeClass`, which is that of a runtime in the container runtime's configuration as well.
    RuntimeClassName: 63 bytes,
    "!format.dns1123Label().validate(self).hasValue()" =>
        "write the name of a RuntimeClass: lower-case letters, digits and '-' only, such as nvidia",
    "!(self in ['nvidia-cdi', 'nvidia-legacy', 'runc', 'crun'])" =>
        "nvidia-cdi, nvidia-legacy, runc and crun are names of runtimes that are there beside NVIDIA's: write another one, such as nvidia",
}

word! {
    /// A file of the host, by its whole path.
    HostPath: 255 bytes,
    "self.matches('^(/[A-Za-z0-9._-]+){2,}$') && !self.split('/').exists(part, part == '.' || part == '..')" =>
        "write the whole path of a file in a folder of the host, without '.', '..' and a '/' at its end, such as /etc/containerd/config.toml",
}

word! {
    /// A folder of the host, by its whole path, which is none of the root's own.
    HostFolder: 256 bytes,
    "self.matches('^(/[A-Za-z0-9_-][A-Za-z0-9._-]*){2,}$')" =>
        "write a folder below another one, without a slash at its end, such as /home/kubernetes/bin/nvidia",
}

word! {
    /// The name of an extended resource.
    ResourceName: 253 bytes,
    "self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.split('/')[0].endsWith('kubernetes.io')" =>
        "write the name of a resource as the Node's status has it: a lower-case DNS name that is none of kubernetes.io, '/' and a word, such as example.com/gpu",
}

/// The labels of a selector.
pub(crate) struct MatchLabels;

impl JsonSchema for MatchLabels {
    fn schema_name() -> Cow<'static, str> {
        "MatchLabels".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = LabelValue::json_schema(generator);
        let rules = rules(&[("self.all(key, !format.qualifiedName().validate(key).hasValue())", ILLEGAL_KEY)]);
        json_schema!({
            "type": "object", "maxProperties": 32, "additionalProperties": value, "x-kubernetes-validations": rules,
        })
    }
}

/// Compute resources: the part of Kubernetes' `ResourceRequirements` that a DaemonSet of ours can have.
pub(crate) struct Resources;

impl JsonSchema for Resources {
    fn schema_name() -> Cow<'static, str> {
        "Resources".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A fraction that YAML reads as a number, such as `cpu: 0.15`, is rejected, though a Pod takes it: a custom resource's
        // integer-or-string is no number, and a schema of any other type is one that the rules below cannot read. The docs say
        // to quote it.
        let quantities = |description: &str| {
            json!({
                "description": description,
                "type": "object",
                "maxProperties": 16,
                "additionalProperties": {
                    "x-kubernetes-int-or-string": true,
                    "maxLength": 32,
                    "x-kubernetes-validations": rules(&[(
                        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))",
                        "write a quantity as Kubernetes does, such as 500m, 2 or 256Mi",
                    )]),
                },
                "x-kubernetes-validations": rules(&[(
                    "self.all(name, name in ['cpu', 'memory', 'ephemeral-storage'] || name.contains('/') || name.startsWith('hugepages-'))",
                    "write cpu, memory, ephemeral-storage or a resource with its domain, such as example.com/device",
                )]),
            })
        };
        json_schema!({
            "type": "object",
            "properties": {
                "limits": quantities("The most that the container may use, by resource."),
                "requests": quantities("What is set aside for the container, by resource. Absent: its limit."),
            },
            "x-kubernetes-validations": rules(&[(
                "!has(self.limits) || !has(self.requests) || self.requests.all(name, !(name in self.limits) || quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
                "more is requested than the limit allows: lower the request or raise the limit",
            )]),
        })
    }
}

/// An environment variable that a pod can have.
pub(crate) struct Env;

impl JsonSchema for Env {
    fn schema_name() -> Cow<'static, str> {
        "Env".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = EnvVar::json_schema(generator);
        demand(
            &mut schema,
            &BTreeMap::from([("name", json!({"maxLength": 253}))]),
            &[
                (
                    "self.name.matches('^[ -<>-~]+$')",
                    "the name of an environment variable is not empty and has no '='; write name and value apart, such as {name: HTTP_PROXY, value: \"http://proxy\"}",
                ),
                (
                    "!has(self.valueFrom) || !has(self.value) || self.value == ''",
                    "value and valueFrom exclude each other: keep one of them",
                ),
            ],
        );
        schema
    }
}

/// A toleration that a pod can have.
pub(crate) struct Tolerated;

impl JsonSchema for Tolerated {
    fn schema_name() -> Cow<'static, str> {
        "Tolerated".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Toleration::json_schema(generator);
        let words = BTreeMap::from([
            ("key", Key::json_schema(generator).to_value()),
            ("value", LabelValue::json_schema(generator).to_value()),
            ("operator", json!({"enum": ["Equal", "Exists"]})),
            ("effect", json!({"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]})),
        ]);
        demand(
            &mut schema,
            &words,
            &[
                (
                    "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
                    "operator Exists takes no value: remove value, or write operator: Equal",
                ),
                (
                    "has(self.key) || has(self.operator) && self.operator == 'Exists'",
                    "a toleration without a key is of every taint: write operator: Exists, or the key",
                ),
                (
                    "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
                    "tolerationSeconds is for effect: NoExecute alone: remove it, or write that effect",
                ),
            ],
        );
        schema
    }
}

/// CEL rules with what is said where they fail.
fn rules(rules: &[(&str, &str)]) -> Value {
    rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect()
}

/// Asks more of a type of Kubernetes' own: of its properties, by name, and of the whole.
fn demand(schema: &mut Schema, of_properties: &BTreeMap<&str, Value>, of_all: &[(&str, &str)]) {
    for (name, more) in of_properties {
        let property = schema.pointer_mut(&format!("/properties/{name}")).and_then(Value::as_object_mut);
        if let (Some(property), Some(more)) = (property, more.as_object()) {
            property.extend(more.clone());
        }
    }
    schema.insert("x-kubernetes-validations".to_owned(), rules(of_all));
}
