//! What can be said of any operand: its image, environment, arguments and resources; and where all images come from.

use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{Env, Resources, SecretName};

/// What can be said of any operand's container.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Operand {
    /// The image. Absent: NVIDIA's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Environment variables, over those of ours by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Env>", length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub env: Vec<EnvVar>,
    /// Further arguments, after those of ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub args: Vec<String>,
    /// Compute resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Resources>")]
    pub resources: Option<ResourceRequirements>,
}

/// An image reference in its parts.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!(has(self.tag) && has(self.digest))",
    "tag and digest exclude each other: keep the digest to pin the image, or the tag to follow it"
))]
pub struct Image {
    /// Registry and path, such as `registry.example.com/nvidia/driver`. Absent: the default's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 400))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?(/[a-z0-9._-]+)*$')",
        "write the image's registry and path without tag or digest, such as registry.example.com/nvidia/driver"
    ))]
    pub repository: Option<String>,
    /// Tag, used as it is. Absent: the default's; for drivers `<version>-<operating system>`. Beside the repository of an
    /// installer or of Google's device plugin, a tag or a digest is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z0-9_][-A-Za-z0-9_.]*$')",
        "a tag has letters, digits, '-', '_' and '.' only; write the tag alone, such as v1.2.3"
    ))]
    pub tag: Option<String>,
    /// Digest, such as `sha256:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    #[x_kube(validation = ("self.matches('^sha256:[0-9a-f]{64}$')", "a digest is sha256: and 64 hexadecimal digits"))]
    pub digest: Option<String>,
}

/// Where images come from.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// Replaces the registry host of every default image, such as `registry.example.com/mirror`. An operand whose
    /// `image.repository` is set is left as it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "self == '' || self.matches('^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?(/[a-z0-9._-]+)*$')",
        "write a registry host, optionally with port and path and without a scheme, such as registry.example.com:5000/mirror"
    ))]
    pub registry: String,
    /// Names of pull secrets in the operator's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<SecretName>", length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub pull_secrets: Vec<String>,
    /// When nodes pull. Absent: `IfNotPresent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
}

/// When nodes pull an image.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    /// Before every start of a container.
    Always,
    /// Where the node does not have the image.
    #[default]
    IfNotPresent,
    /// Not at all: the images are on the nodes.
    Never,
}

impl PullPolicy {
    /// The word as Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}
