//! Configuration files of the plugins. An init container writes them from its arguments, so a file is part of the pod and of its revision,
//! and needs no `ConfigMap`.
//!
//! Only settings without an environment variable are in a file; a user's `env` can override the others.

use gpu_operator_crd::{
    keys,
    policy::{MigStrategy, Sharing, TimeSlicing},
};
use k8s_openapi::api::core::v1::{Container, Volume};
use serde_json::{Value, json};

use crate::{
    container_names::CONFIG_WRITER,
    desired::expected_resources::{PROFILES, mig_resource},
    manifests::pod::{Mode, empty_dir, mount, own_container},
    settings::Settings,
};

pub const NVIDIA_FILE: &str = "nvidia.json";
/// Kubelet and plugins have this folder built in, whatever kubelet's `--root-dir` is (Kubernetes 1.37,
/// `pkg/kubelet/cm/devicemanager/manager.go`).
pub const SOCKETS: &str = "/var/lib/kubelet/device-plugins";
pub const VOLUME: &str = "config";
/// Where the volume is mounted to write the file.
const FOLDER: &str = "/config";

/// The file of NVIDIA's plugin and of MPS's control daemon: configuration version v1 in JSON, which is valid YAML.
pub fn nvidia(sharing: &Sharing, mig: MigStrategy) -> String {
    let (kind, replicas, renamed) = match (&sharing.time_slicing, &sharing.mps) {
        (Some(slicing), _) => ("timeSlicing", slicing.replicas, slicing.rename_by_default),
        (None, Some(mps)) => ("mps", mps.replicas, mps.rename_by_default),
        (None, None) => ("timeSlicing", 1, None),
    };
    let mut names = vec![keys::GPU_RESOURCE.to_owned()];
    if mig == MigStrategy::Mixed {
        names.extend(PROFILES.iter().map(|profile| mig_resource(profile, false).into_owned()));
    }
    let resources: Vec<Value> = names.iter().map(|name| json!({"name": name, "replicas": replicas})).collect();
    let mut shared = json!({"resources": resources, "renameByDefault": renamed.unwrap_or_default()});
    if let Some(TimeSlicing { fail_requests_greater_than_one: Some(fail), .. }) = sharing.time_slicing {
        shared["failRequestsGreaterThanOne"] = json!(fail);
    }
    json!({"version": "v1", "sharing": {kind: shared}}).to_string()
}

pub fn gke(replicas: u32) -> String {
    let sharing = json!({"GPUSharingStrategy": "time-sharing", "MaxSharedClientsPerGPU": replicas});
    json!({"GPUSharingConfig": sharing}).to_string()
}

pub fn writer(settings: &Settings, name: &str, text: &str) -> Container {
    let path = format!("{FOLDER}/{name}");
    own_container(settings, CONFIG_WRITER, &["write", &path, text], vec![mount(VOLUME, FOLDER, Mode::Writable)])
}

pub fn volume() -> Volume {
    empty_dir(VOLUME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_contains_only_the_sharing_of_gpus() {
        let file = |sharing, mig| nvidia(&serde_yaml::from_str(sharing).unwrap(), mig);
        assert_eq!(
            file("{timeSlicing: {replicas: 4, failRequestsGreaterThanOne: true}}", MigStrategy::None),
            r#"{"sharing":{"timeSlicing":{"failRequestsGreaterThanOne":true,"renameByDefault":false,"resources":[{"name":"nvidia.com/gpu","replicas":4}]}},"version":"v1"}"#
        );
        assert_eq!(
            file("{mps: {replicas: 2, renameByDefault: true}}", MigStrategy::Single),
            r#"{"sharing":{"mps":{"renameByDefault":true,"resources":[{"name":"nvidia.com/gpu","replicas":2}]}},"version":"v1"}"#
        );
        let mixed = file("{timeSlicing: {replicas: 2}}", MigStrategy::Mixed);
        assert!(mixed.contains(r#"{"name":"nvidia.com/mig-1g.10gb","replicas":2}"#), "{mixed}");
        assert_eq!(gke(3), r#"{"GPUSharingConfig":{"GPUSharingStrategy":"time-sharing","MaxSharedClientsPerGPU":3}}"#);
    }
}
