//! The nodes on which the effects of fields are visible.

use gpu_operator_crd::{
    health::{Cause, CauseKind, GpuHealth, HealthState, Severity},
    keys,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    coexistence::static_plugin,
    properties::events::taint_at_start,
    sim::{Faults, Sim, faults::Test},
};

/// The kinds of nodes: name, PCI id of its two GPUs, container runtime, operating system.
const KINDS: [(&str, &str, &str, (&str, &str)); 13] = [
    ("cdi", "2330", "containerd://2.1.4", ("ubuntu", "22.04")),
    ("runtime", "1eb8", "containerd://1.7.27", ("ubuntu", "24.04")),
    ("k3s", "27b8", "containerd://1.7.27-k3s1", ("ubuntu", "22.04")),
    ("docker", "15f9", "docker://27.0.3", ("ubuntu", "22.04")),
    ("cos", "1db6", "containerd://2.1.4", ("cos", "117")),
    ("gke-ubuntu", "20b0", "containerd://1.7.27", ("ubuntu", "24.04")),
    ("third-party", "2901", "containerd://2.1.4", ("ubuntu", "22.04")),
    ("unknown", "fff1", "containerd://2.1.4", ("ubuntu", "22.04")),
    ("unhealthy", "2330", "containerd://2.1.4", ("ubuntu", "22.04")),
    ("named-by-cloud", "fff1", "containerd://2.1.4", ("ubuntu", "22.04")),
    ("waiting", "2330", "containerd://2.1.4", ("ubuntu", "22.04")),
    ("failing", "2330", "containerd://2.1.4", ("ubuntu", "22.04")),
    ("starting", "2330", "containerd://2.1.4", ("ubuntu", "22.04")),
];

/// Returns a fleet of these nodes.
pub fn fleet(names: &[&str]) -> Sim {
    let mut sim = Sim::new();
    for (name, gpu, runtime, (id, version)) in KINDS.into_iter().filter(|kind| names.contains(&kind.0)) {
        sim.join(name, gpu, 2);
        let os = &mut sim.report(name).os;
        (os.id, os.version_id) = (id.into(), version.into());
        sim.node_mut(name).runtime = runtime.into();
        add_traits(&mut sim, name);
    }
    assert_eq!(sim.nodes.len(), names.len(), "unknown nodes in {names:?}");
    sim
}

fn add_traits(sim: &mut Sim, name: &str) {
    let faulty = match name {
        "cos" | "gke-ubuntu" => return sim.label(name, "cloud.google.com/gke-nodepool", Some("gpus")),
        "starting" => {
            for key in
                [keys::STARTUP_TAINT, "startup-taint.cluster-autoscaler.kubernetes.io/gpu", "example.com/startup"]
            {
                taint_at_start(sim.node_mut(name), key, "NoSchedule");
            }
            return;
        }
        "cdi" => return sim.label(name, "zone", Some("a")),
        "k3s" => return sim.node_mut(name).kubelet = "v1.33.1+k3s1".into(),
        "third-party" => {
            sim.host_driver(name, "580.1.1", true);
            static_plugin(sim);
            return sim.label(name, "static", Some("yes"));
        }
        "unhealthy" => {
            lose_gpu(sim, name);
            Faults { publishes: Some(1), ..Faults::default() }
        }
        "named-by-cloud" => {
            sim.label(name, "karpenter.k8s.aws/instance-gpu-name", Some("custom"));
            return sim.label(name, "karpenter.k8s.aws/instance-gpu-memory", Some("4096"));
        }
        "waiting" => Faults { publishes: Some(1), ..Faults::default() },
        "failing" => Faults { test: Test::Fails("no device".into()), ..Faults::default() },
        _ => return,
    };
    sim.faults.insert(name.into(), faulty);
}

fn lose_gpu(sim: &mut Sim, name: &str) {
    let since = Time(sim.now);
    let cause = Cause {
        kind: CauseKind::GpuLost.into(),
        severity: Severity::Fatal,
        xid: None,
        count: None,
        evidence: String::new(),
        since: since.clone(),
        recovering: false,
    };
    let state = HealthState::Unhealthy;
    sim.report(name).gpus[0].health =
        GpuHealth { state, since: Some(since), causes: vec![cause], ..GpuHealth::default() };
}
