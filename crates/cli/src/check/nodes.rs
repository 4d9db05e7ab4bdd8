//! The checks of nodes.

use gpu_operator_crd::Reason;
use gpu_operator_plan::{
    catalogue::{Accelerator, Catalogue},
    desired::container_runtime::Runtime,
    inventory::gpus,
};
use kube::ResourceExt;

use crate::{
    check::{
        facts::Facts,
        host::Host,
        judgement::{Judged, bad, count, good, listed, skipped},
    },
    read::ReadError,
};

/// How many minor versions a kubelet may be older than the API server.
const MAX_SKEW: u32 = 3;

/// Checks the versions of kubelets.
pub fn kubelet_skew(facts: &Facts) -> Judged<'_> {
    let version = facts.kubernetes.as_ref()?;
    let Some(minor) = Facts::minor(version) else { return skipped(format!("cannot parse version {version:?}")) };
    let nodes = facts.nodes.as_ref()?;
    let is_beyond = |node: &&Host| {
        let kubelet = Facts::minor(node.facts.kubelet.as_str());
        kubelet.is_some_and(|kubelet| kubelet > minor || minor - kubelet > MAX_SKEW)
    };
    let beyond: Vec<String> = nodes
        .iter()
        .filter(is_beyond)
        .map(|node| format!("{} ({})", node.name(), node.facts.kubelet.as_str()))
        .collect();
    if beyond.is_empty() {
        return good(count(nodes.len(), "node"));
    }
    bad(
        format!("Kubernetes {version} does not support the kubelet of {}", listed(&beyond)),
        "upgrade these kubelets, or the control plane if it is the older one",
    )
}

/// Returns the nodes that may have GPUs and whose runtime answers.
fn runtimes(facts: &Facts) -> Result<Vec<(&Host, Runtime)>, &ReadError> {
    let hosts = facts.possible_gpu_hosts()?.into_iter();
    let known = hosts.filter(|host| !host.facts.runtime_is_silent() && !host.facts.runtime.as_str().is_empty());
    Ok(known.map(|host| (host, Runtime::of(host.facts.runtime.as_str()))).collect())
}

/// Checks the kinds of container runtimes.
pub fn container_runtime(facts: &Facts) -> Judged<'_> {
    let runtimes = runtimes(facts)?;
    if runtimes.is_empty() {
        return skipped("no node that could have GPUs");
    }
    let unknown = runtimes.iter().filter(|(_, runtime)| runtime.kind.is_none());
    let unknown: Vec<String> = unknown.map(|(host, runtime)| format!("{} ({runtime})", host.name())).collect();
    if unknown.is_empty() {
        return good(format!("supported on {}", count(runtimes.len(), "node")));
    }
    bad(
        format!("the container runtime is none of containerd, CRI-O and Docker on {}", listed(&unknown)),
        "use one of these runtimes, or label the nodes gpu.nodestack.dev/managed=false",
    )
}

/// Checks CDI in container runtimes.
pub fn runtime_cdi(facts: &Facts) -> Judged<'_> {
    let mut runtimes = runtimes(facts)?;
    runtimes.retain(|(_, runtime)| runtime.kind.is_some());
    if runtimes.is_empty() {
        return skipped("no node with a known container runtime");
    }
    let without = runtimes.iter().filter(|(_, runtime)| !runtime.has_cdi());
    let without: Vec<String> = without.map(|(host, runtime)| format!("{} ({runtime})", host.name())).collect();
    if !without.is_empty() {
        return bad(
            format!(
                "no CDI on {}: NVIDIA's runtime becomes the default there, and the runtime is restarted once",
                listed(&without)
            ),
            "upgrade to containerd 2, or plan for the restart",
        );
    }
    match runtimes.iter().filter(|(_, runtime)| !runtime.takes_cdi()).count() {
        0 => good(format!("on {}", count(runtimes.len(), "node"))),
        disabled => good(format!("after a restart of containerd on {}", count(disabled, "node"))),
    }
}

/// Checks driver images for operating systems.
pub fn driver_image(facts: &Facts) -> Judged<'_> {
    let hosts = facts.gpu_hosts()?;
    let gpu_nodes = &facts.gpu_nodes.as_ref()?.items;
    let mut without = Vec::new();
    let mut known = 0;
    for host in hosts {
        let gpu_node = gpu_nodes.iter().find(|gpu_node| gpu_node.name_any() == host.name());
        let governed = gpu_node.filter(|gpu_node| gpu_node.spec.policy.is_some());
        if let Some(status) = governed.and_then(|gpu_node| gpu_node.status.as_ref()) {
            known += 1;
            // The policy may use another source, or an image of its own.
            if status.reason() == Some(Reason::NoDriverImageForOS) {
                without.push(format!("{} ({})", host.name(), host.os_image));
            }
        } else if let Some((id, version)) = host.os_release() {
            known += 1;
            if !has_image(&facts.catalogue, host, id, version) {
                without.push(format!("{} ({})", host.name(), host.os_image));
            }
        }
    }
    if !without.is_empty() {
        return bad(
            format!("no driver image for the operating system of {}", listed(&without)),
            "install the driver on the host, or set driver.image or driver.source in the policy",
        );
    }
    if known == 0 { skipped("no node is known to have GPUs") } else { good(format!("for {}", count(known, "node"))) }
}

/// Returns whether there is an image for a system. A model that no driver supports does not count: that is no fact about the system.
fn has_image(catalogue: &Catalogue, host: &Host, id: &str, version: &str) -> bool {
    let found = gpus::discover(catalogue, &host.facts, None);
    let models: Vec<&Accelerator> = found.map(|found| found.accelerators).unwrap_or_default();
    let any = |models: &[&Accelerator]| catalogue.default_driver_for(models, id, version).is_some();
    any(&models) || catalogue.default_driver(&models).is_err()
}
