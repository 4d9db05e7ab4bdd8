//! Nodes that are ready, in progress or unavailable, and what else runs on them.

use super::{A, Attention, GpuNode, NodeEvent, Scenario, Steps};
use crate::{
    coexistence::{beside_a_dra_driver, beside_a_static_plugin, dra_driver, label, nvidias_operator, static_plugin},
    repairs::{contested, take_label},
    robust::{NEW, OLD, add_leaving_plugin, busy, step_until_released, updating_fleet},
    sim::{Faults, Program, Sim},
    unnamed_plugin::served,
    validation::node,
};
use gpu_operator_crd::{keys, reason::Reason};
use gpu_operator_plan::world::{Bystander, GpuPod, PodOwner};

fn ready() -> Sim {
    Sim::settled_fleet("{}", &["a"])
}

/// Returns a ready node with the label of another model.
fn label_mismatch() -> Sim {
    ready().then(|sim| sim.label("a", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-k80")))
}

/// The spec of a policy that selects no node.
const ELSEWHERE: &str = "{nodeSelector: {matchLabels: {no: node}}}";

/// Returns a node whose pod is evicted before an update.
fn evicting(gpu_pods: &str) -> Sim {
    updating_fleet(&["a"], &format!("{{gpuPods: {gpu_pods}}}")).then(|sim| busy(sim, "a"))
}

pub const SCENARIOS: &[Scenario] = &[
    (Reason::AllGpusAllocatable, A, ready),
    (Reason::ManagerConflict, A, || contested("{}", take_label)),
    (Reason::AllGpusAllocatable, A, || {
        node("{}", Faults::default()).then(|sim| sim.host_driver("a", "580.95.05", true))
    }),
    (Reason::GpusPassedThrough, A, || ready().then(|sim| sim.report("a").passed_through = 2)),
    (Reason::RolloutPending, GpuNode("b"), || {
        let faults = Faults { publishes: Some(7), ..Faults::default() };
        Sim::settled_fleet(OLD, &["a", "b"]).faulty(faults).policy("all", NEW)
    }),
    (Reason::GpuPodsInUse, A, || Sim::settled_fleet(OLD, &["a"]).then(|sim| busy(sim, "a")).policy("all", NEW)),
    (Reason::EvictingPods, A, || evicting("{mode: Evict}")),
    (Reason::EvictionBlocked, A, || {
        let why = "the disruption budget web needs 2 healthy pods and has 2 currently";
        evicting("{mode: Evict}").then(|sim| drop(sim.budgets.insert("team/training".into(), why.into())))
    }),
    (Reason::GpuPodsInUse, A, || {
        let bare = GpuPod { owner: PodOwner::None, ..GpuPod::default() };
        evicting("{mode: Evict}").then(|sim| drop(sim.pod_facts.insert("team/training".into(), bare)))
    }),
    (Reason::GpusHeld, A, || {
        let exporter = Program::of_pod("dcgm-exporter", Bystander::Stays("monitoring/dcgm-exporter-x7k2p".into()));
        let programs = vec![Program::of_host("nvidia-smi"), exporter];
        Sim::settled_fleet(OLD, &["a"]).then(|sim| drop(sim.programs.insert("a".into(), programs))).policy("all", NEW)
    }),
    (Reason::ReleasingGpus, A, || {
        Sim::settled_fleet(OLD, &["a"])
            .policy("all", NEW)
            .then(|sim| step_until_released(sim, "a"))
            .then(add_leaving_plugin)
    }),
    (Reason::ForeignDevicePlugin, GpuNode("third-party"), || beside_a_static_plugin("{}")),
    (Reason::TooManyGpus, A, || ready().then(|sim| sim.unnamed_plugins = [("a".into(), 80)].into()).run_for(100)),
    (Reason::ForeignDevicePlugin, A, || served(80, &["kube-system/hami-device-plugin"], "{}").run_for(20)),
    (Reason::ForeignDevicePlugin, A, || {
        served(80, &["kube-system/hami-device-plugin"], "{}").run_for(20).then(|sim| sim.sleep(120))
    }),
    (Reason::ForeignStack, A, || {
        node("{}", Faults::default()).then(|sim| {
            nvidias_operator(sim);
            sim.host_driver("a", "580.1.1", true);
            for part in ["driver", "container-toolkit", "device-plugin"] {
                label(sim, "a", &format!("nvidia.com/gpu.deploy.{part}"));
            }
        })
    }),
    (Reason::ForeignDraDriver, GpuNode("claims"), || beside_a_dra_driver("{}")),
    (Reason::StackConflict, A, || ready().then(static_plugin).then(|sim| sim.label("a", "static", Some("yes")))),
    (Reason::StackConflict, A, || ready().then(dra_driver).then(|sim| label(sim, "a", "dra"))),
    (Reason::NoPolicy, A, || Sim::new().gpu_node("a", "2330", 8)),
    (Reason::Leaving, A, || ready().then(|sim| sim.label("a", keys::MANAGED, Some("false")))),
    (Reason::Leaving, A, || ready().then(|sim| busy(sim, "a")).policy("all", ELSEWHERE).run_for(90)),
    (Reason::Leaving, Attention, || {
        ready().then(|sim| busy(sim, "a")).then(|sim| sim.delete_policy("all")).run_for(90)
    }),
    (Reason::OptedOut, A, || ready().then(|sim| sim.label("a", keys::MANAGED, Some("false"))).run_for(90)),
    (Reason::PolicyOverlap, A, || ready().policy("newer", "{}")),
    (Reason::WaitingForReport, Attention, || {
        Sim::new().policy("all", "{}").then(|sim| {
            sim.join_plain("gke");
            sim.label("gke", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-t4"));
        })
    }),
    (Reason::ProbeMissing, A, || {
        ready().faulty(Faults { no_probe: true, ..Faults::default() }).then(|sim| {
            sim.gpu_nodes.clear();
            label(sim, "a", "feature.node.kubernetes.io/pci-10de.present");
            sim.sleep(61);
        })
    }),
    (Reason::ProbeMissing, A, || {
        ready().faulty(Faults { mute_probe: true, ..Faults::default() }).then(|sim| {
            sim.gpu_nodes.clear();
            sim.sleep(61);
        })
    }),
    (Reason::WaitingForReport, A, || {
        ready().faulty(Faults { mute_probe: true, ..Faults::default() }).then(|sim| sim.reboot("a", 0)).run_for(20)
    }),
    (Reason::ProbeMissing, A, || {
        ready()
            .faulty(Faults { mute_probe: true, publishes: Some(0), ..Faults::default() })
            .then(|sim| sim.reboot("a", 0))
            .run_for(20)
            .then(|sim| sim.sleep(61))
    }),
    (Reason::NodeNotReady, A, || ready().then(|sim| sim.node_mut("a").ready = false)),
    (Reason::NodeNotReady, A, || {
        ready().then(|sim| sim.node_mut("a").allocatable = 0.into()).then(|sim| {
            sim.node_mut("a").runtime = "containerd://Unknown".into();
        })
    }),
    (Reason::NodeDeleting, A, || ready().then(|sim| sim.node_mut("a").deleting = true)),
    (Reason::ProgressDeadlineExceeded, A, || {
        node("{readiness: {progressDeadline: 5m}}", Faults { publishes: Some(0), ..Faults::default() })
            .run_for(40)
            .then(|sim| sim.sleep(300))
    }),
    (Reason::UntoleratedTaint, A, || {
        node("{defaults: {tolerations: []}}", Faults::default()).then(|sim| {
            sim.node_mut("a").taints = vec![gpu_operator_plan::world::TaintFact {
                key: "dedicated".into(),
                value: "ml".into(),
                effect: "NoSchedule".into(),
            }];
        })
    }),
    (Reason::LabelMismatch, A, label_mismatch),
    (Reason::LabelMismatch, NodeEvent, label_mismatch),
    (Reason::LabelConflict, A, || {
        ready()
            .then(|sim| sim.label("a", "accelerator", Some("gold")))
            .policy("all", "{nodeLabels: [{key: accelerator}]}")
    }),
    (Reason::InvalidAnnotation, A, || ready().then(|sim| sim.node_mut("a").gpu_count = Some("seven".into()))),
    (Reason::MixedModels, A, || ready().then(|sim| sim.report("a").gpus[1].device_id = "15f9".into())),
    (Reason::UnknownGpu, A, || Sim::new().gpu_node("a", "fff1", 1).policy("all", "{}")),
];
