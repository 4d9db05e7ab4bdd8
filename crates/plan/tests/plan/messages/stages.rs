//! The stages after the driver: container toolkit, device plugin and validation, and their pods.

use super::{A, GpuNode, NodeStage, Scenario, Steps};
use crate::{
    host_runtime::loaded,
    mig::{SEVENTHS, change_manually, mixed, partitioned},
    runtime_restart::{fresh, set_progress},
    sim::{Faults, Sim, faults::MigOutcome},
    toolkit::{end_with, fleet, not_allocatable},
    validation::{ON_INSTALL, failing, hanging, node},
};
use gpu_operator_crd::reason::Reason;
use gpu_operator_plan::world::ContainerState;

/// Returns a node whose toolkit has ended with this message.
fn ended(words: &str) -> Sim {
    fleet("containerd://1.7.27", "v1.34.1", "{}").then(|sim| end_with(sim, "a", words)).then(not_allocatable)
}

/// Returns a node that cannot be partitioned by MIG, with this message.
fn unpartitioned(words: &str) -> Sim {
    node(&mixed(SEVENTHS), Faults { mig: MigOutcome::Fails(words.into()), ..Faults::default() })
}

/// Returns a node whose toolkit is at this init container.
fn at(container: &str) -> Sim {
    let steps = [(container, ContainerState::Running(None))];
    fleet("containerd://1.7.27", "v1.34.1", "{}").then(|sim| set_progress(sim, &steps, false)).then(not_allocatable)
}

pub const SCENARIOS: &[Scenario] = &[
    (Reason::PodStarting, A, || node("{}", Faults { slow: 600, ..Faults::default() })),
    (Reason::PodStarting, A, || at("wait-for-driver")),
    (Reason::StageProven, NodeStage("DriverReady"), || at("wait-for-driver")),
    (Reason::PodStarting, NodeStage("ToolkitReady"), || at("wait-for-driver")),
    (Reason::StagePending, NodeStage("DevicePluginReady"), || at("wait-for-driver")),
    (Reason::PodStarting, NodeStage("Ready"), || at("wait-for-driver")),
    (Reason::ToolkitInstalling, A, || at("install-toolkit")),
    (Reason::ToolkitInstalling, A, || {
        fleet("containerd://1.7.27", "v1.34.1", "{}").then(not_allocatable).then(|sim| {
            sim.node_mut("a").runtime_handlers = ["runc".into()].into();
        })
    }),
    (Reason::RuntimeTurnPending, GpuNode("b"), || {
        let restart = Some("RuntimeDown: the container runtime does not start: unknown key".to_owned());
        fresh(&["a", "b"], "{}").faulty(Faults { restart, ..Faults::default() })
    }),
    (Reason::RuntimeConfigDrifted, A, || {
        ended("RuntimeConfigDrifted: runtime nvidia is no longer in /etc/containerd/config.toml")
    }),
    (Reason::RuntimeConfigRejected, A, || {
        ended("RuntimeConfigRejected: the container runtime does not start: unexpected end of file")
    }),
    (Reason::RuntimeDown, A, || ended("RuntimeDown: the container runtime does not start: unexpected end of file")),
    (Reason::RuntimeUnsupported, A, || fleet("containerd://1.6.9", "v1.34.1", "{injection: CDI}")),
    (Reason::CdiDisabled, A, || {
        node("{}", Faults::default()).then(|sim| sim.report("a").loaded_runtimes = loaded(Some(true), &["/etc/cdi"]))
    }),
    (Reason::WaitingForAllocatable, A, || node("{}", Faults { publishes: Some(7), ..Faults::default() })),
    (Reason::WaitingForAllocatable, A, || {
        node("{}", Faults { publishes: Some(7), ..Faults::default() }).then(|sim| sim.node_mut("a").withheld = 1.into())
    }),
    (Reason::MigBlocked, A, || {
        unpartitioned("MigBlocked: GPU 0000:06:00.0 cannot be repartitioned: in use by python (4711)")
    }),
    (Reason::MigResetNeeded, A, || unpartitioned("MigResetNeeded: GPU 0000:06:00.0: reboot the node")),
    (Reason::MigLayoutRefused, A, || {
        unpartitioned("MigLayoutRefused: GPU 0000:06:00.0: the GPU has no profile 1g.10gb")
    }),
    (Reason::MigLayoutDiffers, A, || {
        partitioned(&["a"]).then(|sim| {
            change_manually(sim, "a");
            sim.gpu_pods.insert("a".into(), vec!["team/training".into()]);
            sim.sleep(601);
        })
    }),
    (Reason::Validating, A, || node(ON_INSTALL, hanging())),
    (Reason::ValidationFailed, A, || node(ON_INSTALL, failing())),
    (Reason::PodsForbidden, A, || {
        let words = "violates PodSecurity \"baseline:latest\": privileged";
        node("{}", Faults { pods_forbidden: Some(words), ..Faults::default() })
    }),
    (Reason::PodUnschedulable, A, || {
        node("{}", Faults { slow: 600, ..Faults::default() }).run_for(40).then(|sim| {
            let pod = sim.pods.get_mut("driver@a").expect("a pod");
            pod.unschedulable = Some("0/1 nodes are available: 1 Insufficient memory.".into());
            sim.sleep(60);
        })
    }),
    (Reason::ImagePullFailed, A, || {
        node("{}", Faults { slow: 600, ..Faults::default() }).run_for(40).then(|sim| {
            let message = "Back-off pulling image \"x\": ErrImagePull: pull access denied".into();
            let state = ContainerState::Waiting { reason: "ImagePullBackOff".into(), message };
            sim.pods.get_mut("driver@a").expect("a pod").containers[0].state = state;
        })
    }),
];
