//! Settings that all operands share: image, environment, arguments, resources and proxy; and the source of images.

use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{Env, ObjectName, ProxyUrl, Resources, SecretName};

/// Settings of an operand's container.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Operand {
    /// The image. Defaults to NVIDIA's or Google's image of the operand; the installer of source `RunFile` has no default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Environment variables of the container. They override the operator's own variables of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Env>", length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub env: Vec<EnvVar>,
    /// Additional arguments, which follow the operator's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub args: Vec<String>,
    /// Compute resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Resources>")]
    pub resources: Option<ResourceRequirements>,
}

/// An image reference.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!(has(self.tag) && has(self.digest))",
    "tag and digest exclude each other: keep digest to pin the image, or tag to follow updates"
))]
pub struct Image {
    /// Registry and path, such as `registry.example.com/nvidia/driver`. Defaults to the repository of the default
    /// image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 400))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?(/[a-z0-9._-]+)*$')",
        "write the registry and path of the image, without tag or digest, such as registry.example.com/nvidia/driver"
    ))]
    pub repository: Option<String>,
    /// Tag of the image, used as is. Defaults to the tag of the default image; for drivers this is
    /// `<version>-<operating system>`. If `repository` is set for an installer or for Google's device plugin, a tag or
    /// a digest is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z0-9_][-A-Za-z0-9_.]*$')",
        "a tag may contain only letters, digits, '-', '_' and '.'; write only the tag, such as v1.2.3"
    ))]
    pub tag: Option<String>,
    /// Digest of the image, such as `sha256:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    #[x_kube(validation = ("self.matches('^sha256:[0-9a-f]{64}$')", "write the digest as sha256: followed by 64 hexadecimal digits"))]
    pub digest: Option<String>,
}

/// The source of all images.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// Replaces the registry host of every default image, such as `registry.example.com/mirror`. Operands with
    /// `image.repository` are not affected.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "self == '' || self.matches('^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?(/[a-z0-9._-]+)*$')",
        "write the registry host, optionally with port and path, without a scheme, such as registry.example.com:5000/mirror"
    ))]
    pub registry: String,
    /// Image pull secrets in the operator's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pull_secrets: Vec<PullSecret>,
    /// The image pull policy. Defaults to `IfNotPresent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
}

/// An image pull secret.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PullSecret {
    /// Name of the Secret.
    #[schemars(with = "SecretName")]
    pub name: String,
}

/// The image pull policy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// Images are pulled before every start of a container.
    Always,
    /// Images are pulled if the node does not have them.
    #[default]
    IfNotPresent,
    /// Images are never pulled; they must be present on the node.
    Never,
}

impl PullPolicy {
    /// Returns the policy's name in Kubernetes' API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Proxy settings for all containers that a policy places on nodes. A change takes effect when pods are recreated; it
/// does not start a rollout.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Proxy {
    /// The proxy for HTTP, such as `http://proxy.example.com:3128`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ProxyUrl>")]
    pub http_proxy: Option<String>,
    /// The proxy for HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ProxyUrl>")]
    pub https_proxy: Option<String>,
    /// Hosts, domains and networks that are accessed without a proxy, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub no_proxy: Option<String>,
    /// Name of a ConfigMap in the operator's namespace. Its key `ca-bundle.crt` holds all trusted certificate
    /// authorities, including that of a proxy that intercepts HTTPS.
    #[serde(rename = "trustedCAConfigMap", default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ObjectName>")]
    pub trusted_ca_config_map: Option<String>,
}
