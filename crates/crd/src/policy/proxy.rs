//! Proxy settings.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{ObjectName, ProxyUrl};

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
