//! Taking over the driver of NVIDIA's operator: its container must have ended first, and takes the libraries with it.

use crate::{
    coexistence::{TAKE_OVER, label, managed_stages, nvidias_operator},
    sim::Sim,
};
use gpu_operator_crd::{Phase, policy::Stage, reason::Reason, report::InstalledDriver};

/// Returns a settled fleet of node `a`, whose driver is installed by a container of NVIDIA's operator.
fn with_nvidias_driver(deployed: &[&str]) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    nvidias_operator(&mut sim);
    for what in deployed {
        label(&mut sim, "a", &format!("nvidia.com/gpu.deploy.{what}"));
    }
    let pod = "{metadata: {name: p, namespace: kube-system, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: nvidia-driver-daemonset, uid: u}]}, spec: {nodeName: a, volumes: [{name: v, hostPath: {path: /run/nvidia}}], containers: [{name: c, image: nvidia/driver, securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /m, mountPropagation: Bidirectional}]}]}}";
    sim.foreign_pods.push(serde_yaml::from_str(pod).expect("a pod"));
    let driver = &mut sim.report("a").driver;
    driver.loaded = Some("595.91.07".into());
    driver.container_ran = true;
    let root = InstalledDriver { root: "/run/nvidia/driver".into(), version: "595.91.07".into(), ..Default::default() };
    driver.installed.push(root);
    sim.apply_policy("all", TAKE_OVER);
    sim.settle();
    sim
}

#[test]
fn a_takeover_waits_until_the_other_driver_has_ended() {
    let parts = ["driver", "container-toolkit", "device-plugin"];
    let mut sim = with_nvidias_driver(&parts);
    for what in parts {
        sim.label("a", &format!("nvidia.com/gpu.deploy.{what}"), Some("false"));
    }
    sim.run(40);
    assert!(managed_stages(&sim, "a").is_empty(), "the driver's pod is still ending");
    let message = &sim.status("a").message;
    assert!(message.contains("pod kube-system/p installs an NVIDIA driver"), "{message}");
    assert!(message.contains("wait until it has ended"), "{message}");
    sim.foreign_pods.clear();
    sim.settle();
    assert_eq!(managed_stages(&sim, "a").len(), 3);
    assert_eq!(sim.status("a").reason(), Some(Reason::AllGpusAllocatable));
}

#[test]
fn a_node_whose_other_driver_has_ended_is_not_ready() {
    let mut sim = with_nvidias_driver(&["driver"]);
    assert_eq!(managed_stages(&sim, "a"), [Stage::Toolkit, Stage::DevicePlugin]);
    assert_eq!(sim.status("a").phase, Phase::Ready);
    // The container ends under a GPU pod: the module stays loaded, and the libraries are gone.
    sim.gpu_pods.insert("a".into(), vec!["team/train".into()]);
    sim.label("a", "nvidia.com/gpu.deploy.driver", Some("false"));
    sim.foreign_pods.clear();
    sim.report("a").driver.installed.clear();
    sim.run(40);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::DriverDown)), "{}", status.message);
    assert!(status.message.contains("libraries are gone"), "{}", status.message);
    assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("595.91.07"), "the driver is in use");
    sim.gpu_pods.clear();
    sim.settle();
    assert_eq!(managed_stages(&sim, "a").len(), 3);
    assert_eq!(sim.status("a").reason(), Some(Reason::AllGpusAllocatable));
}
