//! Machines without a GPU that a data centre driver supports: guests with virtual GPUs, and Jetsons.

use gpu_operator_crd::{Phase, keys, reason::Reason, report::VirtualGpus};

use crate::sim::Sim;

/// Returns node `a` with an L4 of a hypervisor with this driver.
fn guest(version: Option<&str>, branch: Option<&str>, policy: &str) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "27b8", 1);
    sim.report("a").vgpu = Some(VirtualGpus {
        present: true,
        host_driver_version: version.map(str::to_owned),
        host_driver_branch: branch.map(str::to_owned),
    });
    sim.apply_policy("all", policy);
    sim
}

#[test]
fn virtual_gpus_get_no_data_centre_driver() {
    for (version, branch, words) in [
        (
            Some("570.172"),
            Some("r570_00"),
            "whose driver is 570.172 (r570_00): they need NVIDIA's vGPU guest driver of branch 570",
        ),
        (Some("550.90"), None, "whose driver is 550.90: they need NVIDIA's vGPU guest driver of branch 550"),
        (None, Some("r580_00"), "guest driver of branch 580"),
        (None, None, "whose driver they do not report: they need NVIDIA's vGPU guest driver of its release"),
    ] {
        let mut sim = guest(version, branch, "{}");
        sim.settle();
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::DriverNotInstalled)), "{status:?}");
        assert!(status.message.contains(words), "{}", status.message);
        assert!(!sim.node("a").labels.contains_key(keys::DRIVER));
        // The guest driver is installed.
        sim.host_driver("a", "570.172.08", true);
        sim.settle();
        assert_eq!(sim.status("a").reason(), Some(Reason::AllGpusAllocatable));
    }
}

#[test]
fn the_source_of_a_guest_driver_is_the_users_choice() {
    let mut sim = guest(Some("570.172"), None, "{defaults: {driver: {source: Container, version: 570.172.08}}}");
    sim.settle();
    assert!(sim.node("a").labels.contains_key(keys::DRIVER), "{:?}", sim.status("a"));
    let mut sim = guest(None, None, "{}");
    sim.report("a").vgpu = Some(VirtualGpus::default());
    sim.settle();
    assert!(sim.node("a").labels.contains_key(keys::DRIVER), "its GPU is not virtual");
}

#[test]
fn a_policy_whose_only_nodes_are_jetsons_names_one() {
    let selector = "{nodeSelector: {matchLabels: {gpu: \"yes\"}}}";
    for (kernel, gpu, is_named) in
        [("5.15.148-tegra", "yes", true), ("6.8.12-tegra", "no", false), ("6.8.0-45-generic", "yes", false)]
    {
        let mut sim = Sim::new();
        sim.join_plain("edge");
        sim.node_mut("edge").kernel = kernel.into();
        sim.label("edge", "gpu", Some(gpu));
        sim.apply_policy("all", selector);
        sim.settle();
        assert_eq!(sim.condition("all", "Ready"), ("False".to_owned(), "NoMatchingNodes".to_owned()));
        let message = sim.message("all", "Ready");
        assert_eq!(message.contains("node edge is a Jetson"), is_named, "{kernel} {gpu}: {message}");
    }
}
