//! The pods to which kubelet has assigned GPUs. Pure.

use std::collections::BTreeSet;

use gpu_host::observe::pod_resources::{Assignment, Source};

/// The prefix of the resources of NVIDIA's and Google's device plugins.
const PREFIX: &str = "nvidia.com/";
const DRA_DRIVER: &str = "gpu.nvidia.com";

/// Returns the pods with GPUs as `<namespace>/<name>`. `offered` lists the node's GPU resources in addition to those with NVIDIA's prefix.
pub fn gpu_pods(assignments: &[Assignment], offered: &[String]) -> BTreeSet<String> {
    let with_gpus = assignments.iter().filter(|assignment| is_gpu(assignment, offered));
    with_gpus.map(|Assignment { namespace, pod, .. }| format!("{namespace}/{pod}")).collect()
}

fn is_gpu(assignment: &Assignment, offered: &[String]) -> bool {
    match &assignment.source {
        _ if assignment.devices.is_empty() => false,
        Source::Resource(name) => name.starts_with(PREFIX) || offered.contains(name),
        Source::Claim(driver) => driver == DRA_DRIVER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_counts_once_and_only_with_gpus() {
        let of = |pod: &str, source, devices: &[&str]| Assignment {
            namespace: "team".into(),
            pod: pod.into(),
            container: "main".into(),
            source,
            devices: devices.iter().map(|id| (*id).to_owned()).collect(),
        };
        let resource = |name: &str| Source::Resource(name.into());
        let assignments = [
            of("two", resource("nvidia.com/gpu"), &["GPU-1", "GPU-2"]),
            of("two", resource("nvidia.com/gpu"), &["GPU-3"]),
            of("mig", resource("nvidia.com/mig-1g.10gb"), &["MIG-1"]),
            of("renamed", resource("team.example/h100"), &["GPU-4"]),
            of("claims", Source::Claim("gpu.nvidia.com".into()), &["gpu-0"]),
            of("nic", resource("vendor.example/nic"), &["nic0"]),
            of("channel", Source::Claim("compute-domain.nvidia.com".into()), &["channel-0"]),
            of("none", resource("nvidia.com/gpu"), &[]),
        ];
        let names = |offered: &[String]| gpu_pods(&assignments, offered).into_iter().collect::<Vec<_>>();
        assert_eq!(names(&[]), ["team/claims", "team/mig", "team/two"]);
        let renamed = names(&["team.example/h100".to_owned()]);
        assert_eq!(renamed, ["team/claims", "team/mig", "team/renamed", "team/two"]);
    }
}
