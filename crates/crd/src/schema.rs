//! Schemas of strings and of Kubernetes' own types that are stricter than their Rust types. Values that a DaemonSet or
//! a Node would reject later are rejected on apply, where the user sees the error.
//!
//! The types in this module hold no values. Fields name them in `#[schemars(with = …)]`.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::api::core::v1::{EnvVar, Toleration};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

const ILLEGAL_KEY: &str = "invalid key of a label or taint: write at most 63 letters, digits, '-', '_' and '.', optionally after a lower-case DNS prefix and '/', such as example.com/gpu";

/// Declares the schema of a bounded string with CEL rules.
macro_rules! text {
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

text! {
    /// The key of a label that a policy publishes. Reserved keys are rejected.
    PublishedKey: 317 bytes,
    "!format.qualifiedName().validate(self).hasValue()" =>
        "invalid label key: write at most 63 letters, digits, '-', '_' and '.', optionally after a lower-case DNS prefix and '/', such as accelerator or example.com/gpu",
    "!self.split('/')[0].endsWith('kubernetes.io') && !self.split('/')[0].endsWith('k8s.io') && !self.split('/')[0].endsWith('nodestack.dev')" =>
        "keys of kubernetes.io, k8s.io and gpu.nodestack.dev are reserved: write a different key, such as accelerator or example.com/gpu",
    "!self.matches('^nvidia[.]com/(gpu[.](present|product|count|replicas|sharing-strategy|memory|family|machine|mode|clique|multiprocessors|(compute|slices|engines)[.].+)|mig[.](capable|strategy)|mig-.+|mps[.]capable|cuda[.].+|vgpu[.](present|host-driver-.+))$')" =>
        "this key belongs to NVIDIA's GPU feature discovery: write compatibility: {labels: GFD} to publish all of its keys, or a different key, such as example.com/gpu",
}

text! {
    /// The key of a label or taint.
    Key: 317 bytes,
    "!format.qualifiedName().validate(self).hasValue()" => ILLEGAL_KEY,
}

text! {
    /// The key of a taint that the operator sets. Reserved keys are rejected.
    TaintKey: 317 bytes,
    "!format.qualifiedName().validate(self).hasValue()" => ILLEGAL_KEY,
    "!self.split('/')[0].endsWith('kubernetes.io') && !self.split('/')[0].endsWith('k8s.io')" =>
        "taint keys of kubernetes.io and k8s.io are reserved: write a different key, such as example.com/gpu-unhealthy, or remove key to use gpu.nodestack.dev/unhealthy",
    "self != 'gpu.nodestack.dev/startup'" =>
        "gpu.nodestack.dev/startup is a startup taint: write a different key, or remove key to use gpu.nodestack.dev/unhealthy",
}

text! {
    /// The key of a taint that the operator removes from nodes that are ready. Reserved keys are rejected, except Cluster Autoscaler's.
    StartupTaintKey: 317 bytes,
    "!format.qualifiedName().validate(self).hasValue()" => ILLEGAL_KEY,
    "self.startsWith('startup-taint.cluster-autoscaler.kubernetes.io/') || !self.split('/')[0].endsWith('kubernetes.io') && !self.split('/')[0].endsWith('k8s.io')" =>
        "taint keys of kubernetes.io and k8s.io are reserved: write startup-taint.cluster-autoscaler.kubernetes.io/ with a name, such as startup-taint.cluster-autoscaler.kubernetes.io/gpu, or a key of another domain, such as example.com/gpu-startup",
    "self != 'gpu.nodestack.dev/unhealthy'" =>
        "gpu.nodestack.dev/unhealthy is the taint of nodes with an unhealthy GPU: write a different key, or remove key to use gpu.nodestack.dev/startup",
}

text! {
    /// The value of a label or taint.
    LabelValue: 63 bytes,
    "!format.labelValue().validate(self).hasValue()" =>
        "a label value may contain only letters, digits, '-', '_' and '.', and must start and end with a letter or digit, such as H100-80GB",
}

text! {
    /// The name of a pull secret.
    SecretName: 253 bytes,
    "!format.dns1123Subdomain().validate(self).hasValue()" =>
        "write the name of a Secret, with only lower-case letters, digits, '-' and '.', such as mirror",
}

text! {
    /// The name of a priority class.
    PriorityClassName: 253 bytes,
    "!format.dns1123Subdomain().validate(self).hasValue()" =>
        "write the name of a PriorityClass, with only lower-case letters, digits, '-' and '.', such as system-node-critical",
}

text! {
    /// The name of a ConfigMap.
    ObjectName: 253 bytes,
    "!format.dns1123Subdomain().validate(self).hasValue()" =>
        "write the name of a ConfigMap, with only lower-case letters, digits, '-' and '.', such as driver-repositories",
}

text! {
    /// The key of a ConfigMap that is used as file name.
    FileName: 253 bytes,
    "self.matches('^[A-Za-z0-9_-][A-Za-z0-9._-]*$')" =>
        "write a key of the ConfigMap, which is used as file name, with only letters, digits, '-', '_' and '.', such as internal.list",
}

text! {
    /// The URL of a proxy.
    ProxyUrl: 512 bytes,
    "self.matches('^https?://[^/ ]+/?$')" =>
        "write the URL of the proxy with its scheme, such as http://proxy.example.com:3128",
    "!self.matches('^https?://[^/?#]*@')" =>
        "remove user and password: everyone who may read policies or pods could read them. Store the URL with them in a Secret, and write it to env of the operand, such as {name: HTTPS_PROXY, valueFrom: {secretKeyRef: {name: proxy, key: url}}}",
}

text! {
    /// The name of a `RuntimeClass`, and of a runtime in the container runtime's configuration.
    RuntimeClassName: 63 bytes,
    "!format.dns1123Label().validate(self).hasValue()" =>
        "write the name of a RuntimeClass, with only lower-case letters, digits and '-', such as nvidia",
    "!(self in ['nvidia-cdi', 'nvidia-legacy', 'runc', 'crun'])" =>
        "nvidia-cdi, nvidia-legacy, runc and crun are reserved for other runtimes: write a different name, such as nvidia",
}

text! {
    /// The absolute path of a file on the host.
    HostPath: 255 bytes,
    "self.matches('^(/[A-Za-z0-9._-]+){2,}$') && !self.split('/').exists(part, part == '.' || part == '..')" =>
        "write the absolute path of a file in a directory of the host, without '.', '..' or a trailing '/', such as /etc/containerd/config.toml",
}

text! {
    /// The absolute path of a directory on the host, which is not a top-level directory.
    HostFolder: 256 bytes,
    "self.matches('^(/[A-Za-z0-9_-][A-Za-z0-9._-]*){2,}$')" =>
        "write the absolute path of a directory below a top-level directory, without a trailing '/', such as /home/kubernetes/bin/nvidia",
}

text! {
    /// The name of an extended resource.
    ResourceName: 253 bytes,
    "self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') && !self.split('/')[0].endsWith('kubernetes.io')" =>
        "write the name of an extended resource: a lower-case DNS name other than kubernetes.io, '/' and a name, such as example.com/gpu",
}

/// The rule for the keys of labels and annotations.
const LEGAL_KEYS: (&str, &str) = ("self.all(key, !format.qualifiedName().validate(key).hasValue())", ILLEGAL_KEY);

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
        let rules = rules(&[LEGAL_KEYS]);
        json_schema!({
            "type": "object", "maxProperties": 32, "additionalProperties": value, "x-kubernetes-validations": rules,
        })
    }
}

/// The labels of a pod.
pub(crate) struct PodLabels;

impl JsonSchema for PodLabels {
    fn schema_name() -> Cow<'static, str> {
        "PodLabels".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        pod_metadata(&LabelValue::json_schema(generator).to_value())
    }
}

/// The annotations of a pod.
pub(crate) struct PodAnnotations;

impl JsonSchema for PodAnnotations {
    fn schema_name() -> Cow<'static, str> {
        "PodAnnotations".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        pod_metadata(&json!({"type": "string", "maxLength": 4096}))
    }
}

/// Returns the schema of labels or annotations that users add to pods.
fn pod_metadata(value: &Value) -> Schema {
    let rules = rules(&[
        LEGAL_KEYS,
        (
            "self.all(key, !key.startsWith('gpu.nodestack.dev/') && key != 'app.kubernetes.io/managed-by')",
            "keys of gpu.nodestack.dev and app.kubernetes.io/managed-by are set by the operator: write a different key, such as example.com/team",
        ),
    ]);
    json_schema!({"type": "object", "maxProperties": 32, "additionalProperties": value, "x-kubernetes-validations": rules})
}

/// Compute resources: the fields of Kubernetes' `ResourceRequirements` that DaemonSets of the operator use.
pub(crate) struct Resources;

impl JsonSchema for Resources {
    fn schema_name() -> Cow<'static, str> {
        "Resources".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A fraction that YAML parses as a number, such as `cpu: 0.15`, is rejected, although a Pod accepts it: the type
        // integer-or-string of a custom resource excludes fractions, no rule can read a value without a type, and the message
        // about the type is the API server's own. The descriptions show how to write it.
        let quantities = |description: &str| {
            json!({
                "description": description,
                "type": "object",
                "maxProperties": 16,
                "additionalProperties": {
                    "x-kubernetes-int-or-string": true,
                    "pattern": "^([0-9]+[.]?[0-9]*|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][0-9]{1,2})?$",
                    "minimum": 0,
                },
                "x-kubernetes-validations": rules(&[(
                    "self.all(name, name in ['cpu', 'memory', 'ephemeral-storage'] || name.contains('/') || name.startsWith('hugepages-'))",
                    "write cpu, memory, ephemeral-storage or the name of an extended resource, such as example.com/device",
                )]),
            })
        };
        json_schema!({
            "type": "object",
            "properties": {
                "limits": quantities("The maximum amount of each resource that the container may use. Fractions must be quoted or written with a suffix: cpu: \"0.15\" or 150m."),
                "requests": quantities("The amount of each resource that is reserved for the container. Defaults to its limit. Fractions must be quoted or written with a suffix: cpu: \"0.15\" or 150m."),
            },
        })
    }
}

/// An environment variable.
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
                    "the name of an environment variable must not be empty or contain '='; write name and value separately, such as {name: HTTP_PROXY, value: \"http://proxy\"}",
                ),
                (
                    "!has(self.valueFrom) || !has(self.value) || self.value == ''",
                    "value and valueFrom exclude each other: remove one of them",
                ),
            ],
        );
        schema
    }
}

/// A toleration.
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
        let properties = BTreeMap::from([
            ("key", Key::json_schema(generator).to_value()),
            ("value", LabelValue::json_schema(generator).to_value()),
            ("operator", json!({"enum": ["Equal", "Exists"]})),
            ("effect", json!({"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]})),
        ]);
        demand(
            &mut schema,
            &properties,
            &[
                (
                    "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
                    "operator Exists does not support value: remove value, or write operator: Equal",
                ),
                (
                    "has(self.key) || has(self.operator) && self.operator == 'Exists'",
                    "a toleration without key matches every taint and needs operator: Exists; add operator: Exists, or the key",
                ),
                (
                    "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
                    "tolerationSeconds is valid only with effect: NoExecute; remove it, or write effect: NoExecute",
                ),
            ],
        );
        schema
    }
}

/// Returns CEL rules with their messages, as in a schema.
fn rules(rules: &[(&str, &str)]) -> Value {
    rules.iter().map(|(rule, message)| json!({"rule": rule, "message": message})).collect()
}

/// Adds constraints to a schema of Kubernetes: to its properties, by name, and to the whole object.
fn demand(schema: &mut Schema, of_properties: &BTreeMap<&str, Value>, of_all: &[(&str, &str)]) {
    for (name, more) in of_properties {
        let property = schema.pointer_mut(&format!("/properties/{name}")).and_then(Value::as_object_mut);
        if let (Some(property), Some(more)) = (property, more.as_object()) {
            property.extend(more.clone());
        }
    }
    schema.insert("x-kubernetes-validations".to_owned(), rules(of_all));
}
