//! The names of the API server's users in its audit log.

/// The operator, and the chart's hook for `helm uninstall`.
pub const OPERATOR: &str = "system:serviceaccount:gpu-operator:nodestack-gpu-operator";
pub const PROBE: &str = "system:serviceaccount:gpu-operator:nodestack-nvml-probe";
pub const DETECTOR: &str = "system:serviceaccount:gpu-operator:nodestack-gpu-detector";
/// The default service account, for commands whose reads are counted.
pub const READER: &str = "system:serviceaccount:default:default";
/// The user of the cluster's kubeconfig, which a fleet's agent uses too. It has all rights.
pub const ADMIN: &str = "admin";
