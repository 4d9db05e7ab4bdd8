//! What a report and a GpuNode are about: one boot of one Node. And GpuNodes whose Node was deleted.

use gpu_operator_plan::Plan;
use std::collections::{BTreeMap, BTreeSet};
use test_support::planned::Planned;

use crate::{
    law,
    robust::{NEW, OLD, busy, step_until_released},
    sim::{Faults, Sim, machine::new_gpu_node},
};
use gpu_operator_crd::{NodeName, Phase, health::HealthState, keys, reason::Reason};
use gpu_operator_plan::output::body::{Body, Kind};
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;

/// Returns the faults of a node whose GPUs are not allocatable yet, and whose probe does not report.
fn mute() -> Faults {
    Faults { mute_probe: true, publishes: Some(0), ..Faults::default() }
}

/// Returns a settled node that has been rebooted, and whose probe has not reported that.
fn rebooted(spec: &str) -> Sim {
    let mut sim = Sim::settled_fleet(spec, &["a"]);
    sim.faults.insert("a".into(), mute());
    sim.reboot("a", 0);
    sim
}

fn reason(sim: &Sim) -> Option<Reason> {
    sim.status("a").reason()
}

#[test]
fn a_report_of_an_earlier_boot_does_not_count() {
    let mut sim = rebooted("{nodeLabels: [{key: accelerator}]}");
    let (labels, known) = (sim.node("a").labels.clone(), sim.status("a"));
    let plans = sim.plans.len();
    sim.run(1);
    sim.run(20);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Discovery, Some(Reason::WaitingForReport)));
    assert_eq!((status.model, status.gpus.most_seen, status.gpus.expected), (known.model, Some(8), Some(8)));
    sim.sleep(60);
    sim.run(5);
    assert_eq!(reason(&sim), Some(Reason::ProbeMissing));
    sim.faults.clear();
    sim.settle();
    assert_eq!(reason(&sim), Some(Reason::AllGpusAllocatable));
    assert_eq!(sim.node("a").labels, labels);
    let written =
        sim.plans[plans..].iter().filter(|plan| !plan.labels().is_empty() || !plan.deleted(Kind::Pod).is_empty());
    assert_eq!(written.count(), 0, "no label is written, and no pod deleted");
    let failed = sim.plans[plans..].iter().flat_map(Plan::events).filter(|event| event.reason.is_failure());
    assert_eq!(failed.map(|event| event.reason).collect::<BTreeSet<_>>(), [Reason::ProbeMissing].into());
}

#[test]
fn after_a_reboot_allocatable_gpus_suffice_to_be_ready() {
    let mut sim = Sim::settled_fleet("{health: {minHealthyGPUs: 7}}", &["a"]);
    sim.report("a").gpus[0].health.state = HealthState::Unhealthy;
    sim.settle();
    let of_gpus = |sim: &Sim| {
        let status = sim.status("a");
        (status.phase, status.reason(), status.health, status.gpus)
    };
    let known = of_gpus(&sim);
    assert_eq!((known.0, known.1, known.3.unhealthy), (Phase::Ready, Some(Reason::GpuUnhealthy), 1));
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.reboot("a", 0);
    sim.settle();
    assert_eq!(of_gpus(&sim), known);
}

#[test]
fn the_driver_version_of_a_pool_is_kept_while_no_report_counts() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let version = |sim: &Sim| sim.policy_status("all").pools[0].driver_version.clone();
    let known = version(&sim);
    assert!(known.is_some());
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.reboot("a", 0);
    for _ in 0..30 {
        sim.step();
        sim.sleep(1);
        assert_eq!(version(&sim), known);
    }
}

#[test]
fn a_report_of_a_boot_unknown_to_kubelet_changes_nothing() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.faults.insert("a".into(), Faults { late_kubelet: true, ..Faults::default() });
    sim.reboot("a", 0);
    let writes = sim.writes.clone();
    sim.run(20);
    assert_eq!(sim.writes_to("node"), BTreeMap::from([("node/a", writes["node/a"])]));
    sim.faults.clear();
    sim.settle();
    assert_eq!(reason(&sim), Some(Reason::AllGpusAllocatable));
}

#[test]
fn a_boot_id_that_is_not_reported_contradicts_nothing() {
    for (kubelets, probes) in [("", "boot"), ("boot", ""), ("", "")] {
        let mut sim = Sim::settled_fleet("{}", &["a"]);
        sim.report("a").boot_id = probes.into();
        sim.settle();
        let mut world = sim.world();
        let mut node = sim.node("a").clone();
        node.boot_id = kubelets.into();
        world.nodes.insert("a".into(), node.into());
        assert!(sim.plan_for(world).is_empty(), "{kubelets:?} {probes:?}");
    }
}

#[test]
fn the_record_of_a_missing_precompiled_image_survives_a_reboot() {
    let mut sim =
        crate::sources::node("{defaults: {driver: {container: {precompiled: true}}}}", ("ubuntu", "24.04"), &[]);
    let image = "595-6.8.0-60-generic-ubuntu24.04".to_owned();
    sim.faults.insert("a".into(), Faults { missing_images: [image].into(), ..Faults::default() });
    sim.settle();
    let known = sim.status("a").missing_image;
    assert!(known.is_some());
    sim.faults.insert("a".into(), mute());
    sim.reboot("a", 0);
    sim.run(20);
    assert_eq!((reason(&sim), sim.status("a").missing_image), (Some(Reason::WaitingForReport), known));
}

/// Creates a Node again by its name: another machine with one T4, whose probe does not report. Its predecessor's GpuNode is still
/// there, or was created again by the predecessor's probe.
fn create_again(sim: &mut Sim, created_by_probe: bool) {
    let earlier = sim.gpu_nodes[&"a".into()].clone();
    if created_by_probe {
        sim.leave_with_a_running_probe(&"a".into());
    } else {
        sim.leave(&"a".into());
        sim.gpu_nodes.insert("a".into(), earlier);
    }
    sim.sleep(5);
    sim.faults.insert("a".into(), mute());
    sim.join_silent("a", &["1eb8"]);
    sim.label("a", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-t4"));
}

#[test]
fn a_gpu_node_of_an_earlier_node_does_not_count() {
    for created_by_probe in [false, true] {
        let mut sim = Sim::settled_fleet("{}", &["a"]);
        create_again(&mut sim, created_by_probe);
        let earlier = sim.gpu_nodes[&"a".into()].uid();
        sim.step();
        assert!(!sim.node("a").labels.contains_key(keys::DRIVER), "{:?}", sim.node("a").labels);
        let now = sim.gpu_nodes.get(&"a".into()).and_then(ResourceExt::uid);
        assert!(now.is_none() || now != earlier, "it is deleted and not adopted");
        sim.sleep(90);
        sim.run(20);
        assert_eq!(reason(&sim), Some(Reason::ProbeMissing), "{:#?}", sim.status("a"));
        sim.faults.clear();
        sim.settle();
        assert_eq!((reason(&sim), sim.status("a").gpus.most_seen), (Some(Reason::AllGpusAllocatable), Some(1)));
    }
}

#[test]
fn the_report_of_an_earlier_node_says_nothing_of_the_health() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.law = Some(law::holds);
    create_again(&mut sim, true);
    // The node is governed by its label, and its predecessor's GPUs have no probe pod any more.
    sim.step();
    assert!(sim.node("a").own_conditions.is_empty());
    sim.label("a", "cloud.google.com/gke-accelerator", None);
    sim.delete_policy("all");
    sim.settle();
    assert!(sim.policies.is_empty());
}

#[test]
fn a_spec_is_not_written_to_another_gpu_node_of_the_name() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.apply_policy("all", NEW);
    let plan = sim.plan();
    assert!(plan.specs().contains_key(&"a".into()));
    let another = new_gpu_node(&"a".into(), sim.now + SignedDuration::from_secs(1));
    sim.gpu_nodes.insert("a".into(), another.clone());
    let writes = plan.clone().take_writes().concat();
    let spec = writes.iter().find(|write| matches!(write.body, Body::Spec(_))).expect("a write of a spec");
    assert!(sim.write(spec).is_err_and(|why| why.starts_with("409")));
    assert_eq!(sim.gpu_nodes[&"a".into()], another);
}

#[test]
fn a_gpu_node_without_owner_and_node_is_deleted_after_a_minute() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    sim.leave_with_a_running_probe(&"a".into());
    sim.run(5);
    assert!(sim.gpu_nodes.contains_key(&"a".into()), "its Node may be known later");
    let due = sim.plan().check_again.expect("a time").duration_since(sim.now);
    assert!((50..60).contains(&due.as_secs()), "{due}");
    sim.sleep(60);
    sim.settle();
    assert!(sim.gpu_nodes.keys().eq([&NodeName::from("b")]));
    // One that has an owner is deleted by Kubernetes.
    let owned = gpu_operator_crd::GpuNode {
        metadata: sim.gpu_nodes[&"b".into()].metadata.clone(),
        ..new_gpu_node(&"c".into(), sim.now)
    };
    sim.gpu_nodes.insert("c".into(), owned);
    sim.sleep(600);
    assert!(sim.plan().is_empty());
}

#[test]
fn a_node_whose_gpu_node_cannot_be_parsed_keeps_its_turn() {
    let mut sim = Sim::settled_fleet(OLD, &["a", "b"]);
    sim.apply_policy("all", NEW);
    step_until_released(&mut sim, "a");
    let plan_without = |sim: &Sim, node: &str| {
        let mut world = sim.world();
        world.gpu_nodes.remove(&node.into());
        world.unreadable_gpu_nodes.insert(node.into());
        sim.plan_for(world)
    };
    let plan = plan_without(&sim, "a");
    assert!(plan.labels().is_empty(), "{plan:#?}");
    assert!(!plan.specs().contains_key(&"b".into()), "{plan:#?}");
}

#[test]
fn an_unparsed_node_may_still_restart_its_runtime() {
    let mut sim = crate::runtime_restart::fresh(&["a", "b"], "{}");
    while !sim.node("a").labels.contains_key(keys::TOOLKIT) {
        assert!(sim.step(), "the first node gets its toolkit");
        sim.sleep(1);
    }
    sim.pods.remove("toolkit@a");
    let restarts_b = |unreadable: bool| {
        let mut world = sim.world();
        if unreadable {
            world.gpu_nodes.remove(&"a".into());
            world.unreadable_gpu_nodes.insert("a".into());
        } else {
            world.nodes.remove(&"a".into());
        }
        sim.plan_for(world).labels().get(&"b".into()).is_some_and(|write| write.labels.contains_key(keys::TOOLKIT))
    };
    assert_eq!([true, false].map(restarts_b), [false, true]);
}

#[test]
fn pods_with_a_formerly_named_resource_keep_their_driver() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy(
        "all",
        "{pools: [{name: p, driver: {version: 595.91.07}, devicePlugin: {flavor: External, external: {resourceName: example.com/gpu}}}]}",
    );
    crate::coexistence::static_plugin(&mut sim);
    sim.label("a", "static", Some("yes"));
    sim.foreign_resource = "example.com/gpu".into();
    sim.settle();
    assert_eq!(
        (sim.status("a").phase, sim.status("a").past_resource_names),
        (Phase::Ready, vec!["example.com/gpu".into()])
    );
    busy(&mut sim, "a");
    sim.requests.insert("team/training".into(), "example.com/gpu".into());
    let driver = sim.node("a").labels[keys::DRIVER].clone();
    sim.apply_policy("all", "{pools: [{name: p, driver: {version: 590.10.01}, devicePlugin: {flavor: External}}]}");
    sim.run(60);
    assert_eq!(sim.node("a").labels[keys::DRIVER], driver);
    sim.gpu_pods.clear();
    sim.settle();
    assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("590.10.01"));
    assert_eq!(sim.status("a").past_resource_names, ["example.com/gpu"], "the Node still lists it");
    sim.node_mut("a").allocatable = [("nvidia.com/gpu", 8)].into_iter().collect();
    sim.foreign_resource = "nvidia.com/gpu".into();
    sim.settle();
    assert!(sim.status("a").past_resource_names.is_empty());
}

#[test]
fn a_reboot_of_a_healthy_node_is_no_failure() {
    let mps = "{defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}, rollout: {onFailure: RollBack}}";
    for (spec, slow) in [("{rollout: {onFailure: RollBack}}", 0), ("{rollout: {onFailure: RollBack}}", 40), (mps, 40)] {
        let mut sim = Sim::settled_fleet(spec, &["a", "b", "c"]);
        // The rollout is not complete as long as node c is busy.
        busy(&mut sim, "c");
        let policy = sim.policies[&"all".into()].spec.clone();
        let mut spec: serde_json::Value = serde_json::to_value(policy).expect("JSON");
        spec["defaults"]["driver"] = serde_json::json!({"version": "590.10.01"});
        sim.apply_spec("all", serde_json::from_value(spec).expect("a spec"));
        sim.steps(120);
        assert!(!sim.is_moving("a") && !sim.is_moving("b") && sim.status("a").is_ready());
        sim.faults.insert("a".into(), Faults { slow, ..Faults::default() });
        let plans = sim.plans.len();
        sim.reboot("a", 0);
        sim.steps(300);
        assert!(sim.status("a").is_ready(), "{}", sim.status("a").message);
        let failed = sim.plans[plans..].iter().flat_map(Plan::events).filter(|event| event.reason.is_failure());
        assert_eq!(failed.collect::<Vec<_>>(), Vec::<&gpu_operator_plan::output::events::Transition>::new(), "{slow}");
        assert_eq!(sim.condition("all", "Stalled").0, "False");
        let from = sim.node("c").labels[keys::DRIVER].clone();
        assert_ne!(sim.node("a").labels[keys::DRIVER], from, "the new driver stays");
    }
}
