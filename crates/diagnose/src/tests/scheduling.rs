//! Pods that wait for a node or for their start.

use std::time::Duration;

use gpu_operator_crd::{Phase, reason::Reason};

use super::*;
use crate::finding::NO_PLACE_GRACE;

use gpu_operator_plan::time::later;

fn asking(more: &str, resource: &str, count: u32) -> String {
    format!("{{{more} containers: [{{name: c, resources: {{limits: {{{resource}: '{count}'}}}}}}]}}")
}

fn gpus(more: &str, count: u32) -> String {
    asking(more, "nvidia.com/gpu", count)
}

fn fleet() -> World {
    let mut world = world(
        "{nodeLabels: [{key: accelerator}], pools: [{name: lab, nodeLabels: [{key: gpu/nividia, value: P630}]}]}",
    );
    node(&mut world, "p100", "nvidia-tesla-p100", 8);
    node(&mut world, "h100", "nvidia-h100-80gb", 4);
    for (name, model) in [("p100", "nvidia-tesla-p100"), ("h100", "nvidia-h100-80gb")] {
        edit(&mut world, name, |node, _| {
            drop(node.labels.insert("accelerator".into(), model.into()));
            let gpus = node.allocatable.total();
            // Other resources of a node are ignored.
            node.allocatable = [("devices.kubevirt.io/kvm", 110), ("nvidia.com/gpu", gpus)].into_iter().collect();
        });
    }
    world
}

#[test]
fn a_pod_that_no_node_can_ever_run_gets_an_explanation() {
    let world = fleet();
    for (spec, words) in [
        (gpus("", 16), "the pod requests 16 nvidia.com/gpu, but no node that the pod may be placed on has more than 8"),
        (gpus("nodeSelector: {accelerator: nvidia-h100-80gb},", 8), "has more than 4"),
        (
            gpus("nodeSelector: {accelerator: nvidia-tesla-k80},", 1),
            "the pod requires accelerator=nvidia-tesla-k80, which no node has; nodes have nvidia-tesla-p100, nvidia-h100-80gb",
        ),
        (gpus("nodeSelector: {gpu.nodestack.dev/model: p100},", 1), "gpu.nodestack.dev/model=p100, which no node has"),
        (gpus("nodeSelector: {gpu/nividia: P630},", 1), "no node has the label gpu/nividia"),
        (
            gpus(
                "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: accelerator, operator: In, values: [k80, p4]}]}]}}},",
                1,
            ),
            "accelerator=k80|p4, which no node has",
        ),
        (
            asking("", "nvidia.com/gpu.shared", 1),
            "the pod requests nvidia.com/gpu.shared, which no node that the pod may be placed on offers; these nodes offer nvidia.com/gpu",
        ),
        (asking("", "nvidia.com/mig-1g.5gb", 1), "nvidia.com/mig-1g.5gb, which no node"),
    ] {
        let found = found(&spec, &world);
        assert_eq!(found.iter().map(|(reason, _)| *reason).collect::<Vec<_>>(), [Mistake::NoNodeFits], "{spec}");
        assert!(found[0].1.contains(words), "{}", found[0].1);
    }
}

#[test]
fn only_own_claims_are_offered_as_a_resource() {
    let mut world = fleet();
    edit(&mut world, "h100", |node, gpu_node| {
        node.allocatable = Resources::default();
        let status = gpu_node.status.as_mut().unwrap();
        (status.phase, status.reason) = (Phase::DevicePlugin, Some(Reason::ForeignDraDriver.into()));
    });
    let pod = gpus("nodeSelector: {accelerator: nvidia-h100-80gb},", 1);
    assert_eq!(found(&pod, &world).iter().map(|(reason, _)| *reason).collect::<Vec<_>>(), [Mistake::NoNodeFits]);
    edit(&mut world, "h100", |_, gpu_node| {
        let status = gpu_node.status.as_mut().unwrap();
        (status.phase, status.reason) = (Phase::Ready, Some(Reason::AllGpusAllocatable.into()));
        (status.gpus.by_claims, status.gpus.allocatable) = (true, 8);
    });
    assert!(found(&pod, &world).is_empty());
}

#[test]
fn a_pod_that_may_be_placed_has_no_finding() {
    let mut world = fleet();
    edit(&mut world, "h100", |node, _| {
        let offered = [("nvidia.com/gpu", 8), ("nvidia.com/gpu.shared", 8), ("nvidia.com/mig-1g.5gb", 7)];
        node.allocatable = offered.into_iter().collect();
    });
    for spec in [
        // If all are in use, the scheduler reports it.
        gpus("", 8),
        gpus("nodeSelector: {accelerator: nvidia-h100-80gb},", 4),
        asking("", "nvidia.com/gpu.shared", 8),
        asking("", "nvidia.com/mig-1g.5gb", 7),
        // A label that no policy uses for models.
        gpus("nodeSelector: {zone: nowhere},", 1),
        gpus("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-tesla-t4},", 1),
        // Any of several terms may match.
        gpus("affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: accelerator, operator: In, values: [k80]}]}, {matchExpressions: [{key: zone, operator: Exists}]}]}}},", 1),
        gpus("schedulingGates: [{name: queue}],", 99),
        "{containers: [{name: c}], initContainers: [{name: a, resources: {limits: {nvidia.com/gpu: '8'}}}, {name: b, resources: {limits: {nvidia.com/gpu: '8'}}}]}".to_owned(),
        "{containers: [{name: c}], runtimeClassName: nvidia}".to_owned(),
    ] {
        assert_eq!(found(&spec, &world), [], "{spec}");
    }
}

#[test]
fn a_node_that_an_autoscaler_announces_is_awaited() {
    let (world, pod) = (fleet(), pod("p", &gpus("", 16)));
    let say = |reason: &str| diagnose(&pod, Some(&[event(reason, "")]), &world, now()).findings.len();
    assert_eq!(say("TriggeredScaleUp"), 0);
    assert_eq!(say("Nominated"), 0);
    assert_eq!(say("NotTriggerScaleUp"), 1);
    assert_eq!(say("FailedScheduling"), 1);
    assert_eq!(diagnose(&pod, None, &world, now()), Diagnosis::default(), "its Events are not known");
}

fn event(reason: &str, message: &str) -> Event {
    Event { reason: Some(reason.into()), message: Some(message.into()), ..Event::default() }
}

#[test]
fn nothing_is_reported_in_the_grace_period() {
    let created: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let (soon, due) = (later(created, Duration::from_secs(59)), later(created, NO_PLACE_GRACE));
    let pod = pod("p", &gpus("", 16));
    for events in [Some(&[][..]), None] {
        let early = diagnose(&pod, events, &fleet(), soon);
        assert_eq!((early.findings.len(), early.check_again), (0, Some(due)));
        let certain = diagnose(&pod, events, &fleet(), due);
        assert_eq!((certain.findings.len(), certain.check_again), (events.iter().len(), None));
    }
}

#[test]
fn a_pod_without_ready_nodes_gets_the_progress_of_the_nearest() {
    let mut world = fleet();
    coming(&mut world, "b200", "nvidia-b200", 8);
    for more in ["nodeSelector: {accelerator: nvidia-b200},", "nodeSelector: {gpu.nodestack.dev/model: nvidia-b200},"] {
        let found = found(&gpus(more, 8), &world);
        let message = "node b200, the only eligible one, does not offer its GPUs yet; it is in phase Driver, DriverInstalling: installing 595.91.07";
        assert_eq!(found, [(Mistake::GpuNodesNotReady, message.to_owned())]);
    }
    coming(&mut world, "b201", "nvidia-b200", 8);
    edit(&mut world, "b201", |_, gpu_node| {
        let status =
            json!({"model": "nvidia-b200", "phase": "DevicePlugin", "reason": "WaitingForAllocatable", "gpus": {}});
        gpu_node.status = Some(serde_json::from_value(status).unwrap());
    });
    let several = &found(&gpus("nodeSelector: {accelerator: nvidia-b200},", 8), &world)[0].1;
    let words = "none of the 2 eligible nodes offers its GPUs yet; the nearest, node b201, is in phase DevicePlugin, WaitingForAllocatable";
    assert_eq!(several, words);
    assert!(!Mistake::GpuNodesNotReady.is_warning());
}

#[test]
fn nodes_in_progress_count_only_if_they_will_fit_and_none_does() {
    let mut world = fleet();
    coming(&mut world, "b200", "nvidia-b200", 8);
    assert_eq!(reasons(&gpus("", 8), &world), [], "p100 fits");
    let b200 = |count| gpus("nodeSelector: {accelerator: nvidia-b200},", count);
    assert_eq!(reasons(&b200(9), &world), [Mistake::NoNodeFits], "eight are expected");
    edit(&mut world, "b200", |_, gpu_node| gpu_node.status.as_mut().unwrap().gpus.expected = None);
    assert_eq!(reasons(&b200(9), &world), [Mistake::GpuNodesNotReady], "the number is unknown");
    edit(&mut world, "b200", |node, _| {
        node.taints = vec![gpu_operator_plan::world::TaintFact {
            key: "t".into(),
            value: String::new(),
            effect: "NoSchedule".into(),
        }];
    });
    assert_eq!(reasons(&b200(8), &world), [], "the scheduler reports taints");
    let tolerating = gpus("tolerations: [{key: t, operator: Exists}], nodeSelector: {accelerator: nvidia-b200},", 8);
    assert_eq!(reasons(&tolerating, &world), [Mistake::GpuNodesNotReady]);
    edit(&mut world, "b200", |node, _| node.cordoned = true);
    assert_eq!(reasons(&tolerating, &world), []);
}

#[test]
fn the_shared_gpus_of_a_node_in_progress_are_unknown() {
    let mut world = fleet();
    coming(&mut world, "b200", "nvidia-b200", 8);
    assert_eq!(reasons(&asking("", "nvidia.com/gpu.shared", 1), &world), [Mistake::GpuNodesNotReady]);
}

#[test]
fn a_gpu_node_that_cannot_be_parsed_may_have_any_gpus() {
    let mut world = fleet();
    node(&mut world, "odd", "x", 0);
    world.gpu_nodes.remove(&"odd".into());
    world.unreadable_gpu_nodes.insert("odd".into());
    assert_eq!(reasons(&gpus("", 16), &world), []);
    assert_eq!(reasons(&gpus("nodeSelector: {accelerator: nvidia-tesla-k80},", 1), &world), []);
}

#[test]
fn a_node_whose_gpus_are_unknown_may_have_the_requested_ones() {
    let mut world = fleet();
    coming(&mut world, "new", "x", 8);
    edit(&mut world, "new", |_, gpu_node| gpu_node.status = None);
    assert_eq!(reasons(&gpus("nodeSelector: {accelerator: nvidia-tesla-k80},", 1), &world), []);
    assert_eq!(reasons(&gpus("", 16), &world), []);
    edit(&mut world, "new", |_, gpu_node| {
        gpu_node.status = Some(serde_json::from_value(json!({"report": {"gpus": []}})).unwrap());
    });
    assert_eq!(reasons(&gpus("", 16), &world), [Mistake::NoNodeFits], "the probe has found no GPUs");
}

#[test]
fn a_missing_runtime_handler_is_read_from_the_pods_events() {
    let failed = |message: &str| vec![event("FailedCreatePodSandBox", message)];
    let containerd = "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for \"nvidia\" is configured";
    let bound = pod("p", "{nodeName: n, runtimeClassName: nvidia, containers: [{name: c}]}");
    let other = pod("p", "{nodeName: n, containers: [{name: c, resources: {limits: {nvidia.com/gpu: '1'}}}]}");
    for (events, expected) in [
        (failed(containerd), 1),
        (failed("Failed to create pod sandbox: failed to find runtime handler nvidia from runtime list map[]"), 1),
        (failed("Failed to create pod sandbox: no runtime for \"gvisor\" is configured"), 0),
        (failed("Failed to create pod sandbox: failed to set up network"), 0),
        (vec![event("Failed", containerd)], 0),
        (vec![], 0),
    ] {
        let diagnosis = diagnose(&bound, Some(&events), &World::default(), now());
        assert_eq!(diagnosis.findings.len(), expected, "{events:?}");
        let diagnosis = diagnose(&other, Some(&events), &World::default(), now());
        assert_eq!(diagnosis, Diagnosis::default(), "the pod sets no RuntimeClass");
    }
}
