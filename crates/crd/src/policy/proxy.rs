//! The way out of the cluster.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{ObjectName, ProxyUrl};

/// The way out of the cluster for every container that a policy puts onto nodes. A change reaches a node when its pods are
/// next made; it moves none.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Proxy {
    /// The proxy for http, such as `http://proxy.example.com:3128`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ProxyUrl>")]
    pub http_proxy: Option<String>,
    /// The proxy for https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ProxyUrl>")]
    pub https_proxy: Option<String>,
    /// What is reached without a proxy: hosts, domains and networks, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub no_proxy: Option<String>,
    /// A ConfigMap in the operator's namespace whose key `ca-bundle.crt` holds all certificates by which servers are
    /// trusted, a proxy that looks into https among them.
    #[serde(rename = "trustedCAConfigMap", default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ObjectName>")]
    pub trusted_ca_config_map: Option<String>,
}
