//! Mixed fleets: how nodes are recognized, which policy governs them, and how conflicts are reported.

use crate::sim::Sim;
use gpu_operator_crd::{NodeName, Phase, keys, policy::Stage, reason::Reason};
use gpu_operator_plan::Plan;

const GKE: &str = "cloud.google.com/gke-accelerator";

fn label(sim: &mut Sim, node: &str, key: &str, value: &str) {
    sim.node_mut(node).labels.insert(key.into(), value.into());
}

fn reported(sim: &Sim, node: impl Into<NodeName>) -> (Phase, Reason, String) {
    let status = sim.status(node);
    (status.phase, status.reason().expect("a reason"), status.message)
}

#[test]
fn every_source_of_a_model_name_leads_to_the_same_model() {
    let mut sim = Sim::new().policy("all", "{}");
    for (node, key, value) in [
        ("gke", GKE, "nvidia-tesla-t4"),
        ("karpenter", "karpenter.k8s.aws/instance-gpu-name", "t4"),
        ("eks", "k8s.amazonaws.com/accelerator", "nvidia-tesla-t4"),
        ("nfd", "feature.node.kubernetes.io/pci-0302_10de_1eb8.present", "true"),
        ("user", keys::MODEL_OVERRIDE, "t4"),
        ("probe", "anything", "else"),
    ] {
        sim.join(node, "1eb8", 1);
        label(&mut sim, node, key, value);
    }
    sim.settle();
    for node in sim.nodes.values() {
        assert_eq!(node.labels[keys::MODEL], "nvidia-tesla-t4", "{}", node.name);
        assert_eq!(reported(&sim, &node.name).1, Reason::AllGpusAllocatable, "{}", node.name);
    }
    assert_eq!(sim.sets.len(), 3, "one pool, one variant");
}

#[test]
fn an_override_takes_precedence_over_all_labels_and_the_pci_bus() {
    let mut sim = Sim::new()
        .gpu_node("a", "1eb8", 1)
        .policy("all", "{nodeLabels: [{key: accelerator}], pools: [{name: custom, match: {models: [custom]}}]}");
    label(&mut sim, "a", GKE, "nvidia-tesla-t4");
    label(&mut sim, "a", keys::MODEL_OVERRIDE, "custom");
    sim.settle();
    assert_eq!(
        (sim.node("a").labels["accelerator"].as_str(), sim.node("a").labels[keys::POOL].as_str()),
        ("custom", "custom")
    );
    let image = Sim::image(sim.sets_of(Stage::Driver)[0]);
    assert!(image.contains("595.91.07"), "the driver is chosen for the hardware: {image}");
}

#[test]
fn a_label_that_contradicts_the_pci_bus_is_reported_and_kept() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    label(&mut sim, "a", GKE, "nvidia-tesla-k80");
    sim.settle();
    let (phase, reason, message) = reported(&sim, "a");
    assert_eq!((phase, reason), (Phase::Ready, Reason::LabelMismatch), "{message}");
    assert!(message.contains("nvidia-tesla-k80") && message.contains("nvidia-h100-80gb"), "{message}");
    assert_eq!(sim.node("a").labels[GKE], "nvidia-tesla-k80");
    assert_eq!(sim.condition("all", "Ready").0, "True");
    let status = sim.policy_status("all");
    assert_eq!(status.attention[0].reason, Reason::LabelMismatch);
    assert!(sim.plans.iter().flat_map(Plan::events).any(|event| event.reason == Reason::LabelMismatch));
}

#[test]
fn a_node_with_several_models_gets_a_driver_for_all_of_them_and_the_label_mixed() {
    let mut sim = Sim::new().gpu_node("a", "2330", 2).policy("all", "{nodeLabels: [{key: accelerator}]}");
    sim.report("a").gpus[1].device_id = "15f9".into();
    sim.settle();
    let (phase, reason, message) = reported(&sim, "a");
    assert_eq!((phase, reason), (Phase::Ready, Reason::MixedModels), "{message}");
    assert!(message.contains("nvidia-h100-80gb, nvidia-tesla-p100"), "{message}");
    assert_eq!(sim.node("a").labels["accelerator"], "mixed");
    let image = Sim::image(sim.sets_of(Stage::Driver)[0]);
    assert!(image.contains(":580."), "the newest branch for both: {image}");
}

#[test]
fn a_removed_hint_about_the_model_changes_nothing() {
    let mut sim = Sim::new().gpu_node("a", "1eb8", 4).policy("all", "{}");
    label(&mut sim, "a", GKE, "nvidia-tesla-t4");
    sim.settle();
    let labels = |sim: &Sim| {
        let mut labels = sim.node("a").labels.clone();
        labels.remove(GKE);
        labels
    };
    let before = (labels(&sim), sim.sets.clone());
    sim.node_mut("a").labels.remove(GKE);
    sim.settle();
    assert_eq!((labels(&sim), sim.sets.clone()), before);
    sim.gpu_nodes.remove(&"a".into());
    sim.run(5);
    assert_eq!(labels(&sim), before.0, "without a GpuNode there is no report");
}

#[test]
fn a_label_that_only_announces_a_gpu_is_trusted_until_the_probe_reports() {
    let mut sim = Sim::new().policy("all", "{nodeLabels: [{key: accelerator}]}");
    sim.join_plain("a");
    label(&mut sim, "a", "feature.node.kubernetes.io/pci-10de.present", "true");
    sim.run(3);
    assert!(!sim.node("a").labels.contains_key(keys::POOL), "the model is not known yet: {:?}", sim.node("a").labels);
    sim.sleep(61);
    sim.run(3);
    assert_eq!((reported(&sim, "a").1, sim.status("a").model), (Reason::ProbeMissing, None));
    assert!(!sim.node("a").labels.contains_key("accelerator"));
    sim.report("a").os.id = "ubuntu".into();
    sim.settle();
    assert_eq!((sim.status("a").phase, sim.status("a").reason()), (Phase::Unmanaged, Some(Reason::NoPolicy)));
    assert!(!sim.node("a").labels.keys().any(|key| key.starts_with(keys::PREFIX)));
}

#[test]
fn a_node_that_opts_out_is_not_managed_and_counted_as_such() {
    let mut sim = Sim::settled_fleet("{nodeLabels: [{key: accelerator}]}", &["a", "b"]);
    label(&mut sim, "a", keys::MANAGED, "false");
    sim.settle();
    assert_eq!((reported(&sim, "a").0, reported(&sim, "a").1), (Phase::Unmanaged, Reason::OptedOut));
    let left: Vec<_> = sim.node("a").labels.keys().filter(|key| key.starts_with(keys::PREFIX)).collect();
    assert_eq!(left, [keys::MANAGED], "a label that the user set is kept");
    assert!(!sim.node("a").labels.contains_key("accelerator"));
    let status = sim.policy_status("all");
    assert_eq!((status.nodes.total, status.nodes.opted_out, status.summary.nodes.as_str()), (1, 1, "1/1"));
    label(&mut sim, "b", keys::MANAGED, "no");
    sim.settle();
    let status = sim.policy_status("all");
    assert!(status.conditions[0].message.contains(keys::MANAGED), "{:?}", status.conditions[0]);
    sim.node_mut("a").labels.insert(keys::MANAGED.into(), "true".into());
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

#[test]
fn of_two_policies_the_older_governs_a_node_and_both_report_it() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    label(&mut sim, "b", "team", "x");
    sim.apply_policy("newer", "{nodeSelector: {matchLabels: {team: x}}, nodeLabels: [{key: accelerator}]}");
    sim.settle();
    let (phase, reason, message) = reported(&sim, "b");
    assert_eq!((phase, reason), (Phase::Ready, Reason::PolicyOverlap));
    assert!(message.contains(r#""all" and "newer""#) && message.contains(r#""all" governs it"#), "{message}");
    assert_eq!(reported(&sim, "a").1, Reason::AllGpusAllocatable, "only the other node is reported");
    assert!(!sim.node("b").labels.contains_key("accelerator"));
    let overlap = |policy: &str| {
        let overlaps = sim.policy_status(policy).overlaps;
        (overlaps[0].policy.clone(), overlaps[0].nodes, overlaps[0].governed_by.clone(), overlaps.len())
    };
    assert_eq!(overlap("all"), ("newer".into(), 1, "all".into(), 1));
    assert_eq!(overlap("newer"), ("all".into(), 1, "all".into(), 1));
    assert_eq!(sim.condition("newer", "Ready"), ("False".into(), "NoMatchingNodes".into()));
    let status = sim.policy_status("newer");
    assert!(
        status.conditions[0].message.contains(r#"policy "all", which has a higher priority or is older"#),
        "{:?}",
        status.conditions[0]
    );
}

#[test]
fn priority_decides_and_a_restore_that_swaps_the_ages_of_policies_changes_no_node() {
    let mut sim = Sim::new();
    sim.apply_policy("low", "{}");
    sim.sleep(60);
    sim.apply_policy("high", "{priority: 1, pools: [{name: p}]}");
    for node in ["a", "b"] {
        sim.join(node, "2330", 8);
    }
    sim.settle();
    assert_eq!(sim.spec("a").policy, Some("high".into()));
    let ages = ["low", "high"].map(|policy| sim.policies[&policy.into()].metadata.creation_timestamp.clone());
    for (policy, age) in ["high", "low"].into_iter().zip(ages) {
        sim.policies.get_mut(&policy.into()).expect("a policy").metadata.creation_timestamp = age;
    }
    assert!(sim.plan().is_empty(), "{:#?}", sim.plan());
    sim.apply_policy("high", "{pools: [{name: p}]}");
    sim.sleep(60);
    sim.settle();
    assert_eq!(sim.spec("a").policy, Some("high".into()), "of the same priority, and now the older one");
    sim.apply_policy("low", "{priority: 2}");
    sim.settle();
    assert_eq!(sim.spec("a").policy, Some("low".into()));
}

#[test]
fn a_gpu_that_is_missing_after_a_reboot_is_reported_by_its_last_address_until_the_count_is_set() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let gone = sim.report("a").gpus.remove(3).pci_address;
    sim.report("a").boot_id = "boot-2".into();
    sim.settle();
    let (phase, reason, message) = reported(&sim, "a");
    assert_eq!((phase, reason), (Phase::DevicePlugin, Reason::GpuMissing), "{message}");
    assert!(message.contains("7 of 8") && message.contains(&gone) && message.contains(keys::GPU_COUNT), "{message}");
    sim.node_mut("a").gpu_count = Some("7".into());
    sim.settle();
    assert_eq!(reported(&sim, "a").1, Reason::AllGpusAllocatable);
    sim.node_mut("a").gpu_count = None;
    sim.settle();
    assert_eq!(
        (reported(&sim, "a").1, sim.status("a").gpus.most_seen),
        (Reason::AllGpusAllocatable, Some(7)),
        "the former number of GPUs is no longer recorded"
    );
    sim.node_mut("a").gpu_count = Some("seven".into());
    sim.settle();
    let (phase, reason, message) = reported(&sim, "a");
    assert_eq!((phase, reason), (Phase::Ready, Reason::InvalidAnnotation), "{message}");
}

/// Returns a node whose eight H100 were replaced by GPUs of these PCI device ids, with or without a reboot.
fn replaced(reboots: bool, device_ids: &[&str]) -> Sim {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    if reboots {
        sim.reboot("a", 0);
    }
    sim.plug("a", device_ids);
    sim.settle();
    sim
}

/// Returns the messages of the Events about a replacement of all GPUs, in order.
fn replacements(sim: &Sim) -> Vec<&str> {
    let events = sim.plans.iter().flat_map(Plan::events);
    events.filter(|event| event.reason == Reason::GpusReplaced).map(|event| event.message.as_str()).collect()
}

#[test]
fn a_machine_that_was_rebooted_with_gpus_of_another_model_only_is_expected_to_have_those() {
    let mut sim = replaced(true, &["1eb8"; 4]);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::AllGpusAllocatable)), "{}", status.message);
    assert_eq!((status.model.as_deref(), status.gpus.most_seen), (Some("nvidia-tesla-t4"), Some(4)));
    let message = "all GPUs were replaced while the node was rebooted: 8 GPUs (nvidia-h100-80gb) by 4 GPUs (nvidia-tesla-t4); the earlier GPUs are no longer expected";
    assert_eq!(replacements(&sim), [message; 2], "one Event on the Node, one on the GpuNode");
    sim.reboot("a", 1);
    sim.settle();
    let (_, reason, message) = reported(&sim, "a");
    assert_eq!(reason, Reason::GpuMissing);
    assert!(message.starts_with("3 of 4 expected GPUs"), "{message}");
    assert_eq!(replacements(&sim).len(), 2);
}

#[test]
fn gpus_that_only_vanished_or_were_replaced_without_a_reboot_are_missing() {
    let mixed = ["1eb8", "1eb8", "1eb8", "2330"];
    for (reboots, device_ids) in
        [(true, &["2330"; 4][..]), (true, &mixed), (true, &[]), (true, &["", "1eb8"]), (false, &["1eb8"; 4])]
    {
        let sim = replaced(reboots, device_ids);
        let (_, reason, message) = reported(&sim, "a");
        let missing = format!("{} of 8 expected GPUs", device_ids.len());
        assert!(reason == Reason::GpuMissing && message.starts_with(&missing), "{device_ids:?}: {reason}: {message}");
        assert_eq!(replacements(&sim).len(), 0, "{reboots} {device_ids:?}");
    }
}

#[test]
fn a_node_that_lost_all_gpus_reports_this_instead_of_a_driver_crash() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.report("a").gpus.clear();
    sim.report("a").driver = gpu_operator_crd::report::DriverFacts::default();
    sim.settle();
    let (phase, reason, message) = reported(&sim, "a");
    assert_eq!((phase, reason), (Phase::Driver, Reason::GpuMissing), "{message}");
    assert!(message.contains("0 of 8"), "{message}");
}

#[test]
fn a_taint_that_the_policy_does_not_tolerate_is_named() {
    let mut sim = Sim::new()
        .gpu_node("a", "2330", 8)
        .policy("all", "{defaults: {tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]}}");
    let taint = |key: &str, effect: &str| gpu_operator_plan::world::TaintFact {
        key: key.into(),
        value: "ml".into(),
        effect: effect.into(),
    };
    sim.node_mut("a").taints = vec![taint("nvidia.com/gpu", "NoSchedule"), taint("dedicated", "NoSchedule")];
    sim.settle();
    let (phase, reason, message) = reported(&sim, "a");
    assert_eq!((phase, reason), (Phase::Driver, Reason::UntoleratedTaint), "{message}");
    assert!(
        message.contains("dedicated=ml:NoSchedule") && message.contains("tolerations of defaults or of its pool"),
        "{message}"
    );
    sim.apply_policy("all", "{}");
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

#[test]
fn nodes_with_different_variants_share_no_daemon_set() {
    let mut sim = Sim::new().policy(
        "all",
        "{pools: [{name: old, match: {nodeSelector: {matchLabels: {zone: old}}}, toolkit: {injection: CDI}}]}",
    );
    for (node, os, version, arch) in [
        ("jammy", "ubuntu", "22.04", "amd64"),
        ("noble", "ubuntu", "24.04", "amd64"),
        ("rhel", "rhel", "9.4", "amd64"),
        ("arm", "ubuntu", "24.04", "arm64"),
        ("exotic", "plan9", "4", "amd64"),
    ] {
        sim.join(node, "2330", 8);
        let os_release = &mut sim.report(node).os;
        (os_release.id, os_release.version_id) = (os.into(), version.into());
        sim.node_mut(node).arch = arch.into();
    }
    sim.join("host", "2330", 8);
    sim.host_driver("host", "580.1.1", true);
    sim.join("old", "2330", 8);
    sim.node_mut("old").runtime = "containerd://1.6.9".into();
    sim.label("old", "zone", Some("old"));
    sim.join("older", "2330", 8);
    sim.node_mut("older").runtime = "containerd://1.7.27".into();
    sim.settle();
    let ready = ["arm", "host", "jammy", "noble", "older", "rhel"];
    let groups: std::collections::BTreeSet<_> =
        ready.iter().map(|node| sim.node(*node).labels[keys::DEVICE_PLUGIN].clone()).collect();
    assert_eq!(groups.len(), ready.len(), "{groups:?}");
    for node in ready {
        assert_eq!(sim.status(node).phase, Phase::Ready, "{node}: {:?}", reported(&sim, node));
    }
    for (node, reason) in [("exotic", Reason::NoDriverImageForOS), ("old", Reason::RuntimeUnsupported)] {
        assert_eq!(reported(&sim, node).1, reason, "{node}");
        assert!(Stage::ALL.iter().all(|stage| !sim.node(node).labels.contains_key(stage.key())), "{node}");
    }
}

#[test]
fn a_pool_accepts_any_clouds_name_of_a_model_and_an_unknown_name_is_reported() {
    let mut sim = Sim::new().gpu_node("a", "1eb8", 1).policy(
        "all",
        "{pools: [{name: inference, match: {models: [t4]}}, {name: training, match: {models: [nvidia-h100-80g]}}]}",
    );
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::POOL], "inference");
    let pool = sim.policy_status("all").pools[1].clone();
    assert_eq!(pool.reason(), Some(Reason::UnknownModel));
    assert!(
        pool.message.contains("nvidia-h100-80g ") && pool.message.contains("write nvidia-h100-80gb"),
        "{}",
        pool.message
    );
    assert_eq!(sim.condition("all", "Accepted"), ("False".into(), "InvalidPolicy".into()));
    assert_eq!(sim.condition("all", "Ready").0, "True", "running nodes are not disrupted");
}

#[test]
fn a_pool_that_matches_a_label_of_its_own_policy_is_reported() {
    // With the first selector, a node would join the pool once it is labelled; with the second, it would leave the pool
    // and rejoin.
    for (requirement, pool) in [
        ("{matchLabels: {gpu/nividia: P630}}", "nvidia-quadro-k620"),
        ("{matchExpressions: [{key: gpu/nividia, operator: DoesNotExist}]}", "by-label"),
    ] {
        let spec = format!(
            "{{nodeLabels: [{{key: team}}], pools: [{{name: by-label, match: {{nodeSelector: {requirement}}}, nodeLabels: [{{key: gpu/nividia, value: P630}}]}}, {{name: rest, match: {{nodeSelector: {{matchLabels: {{zone: b}}}}}}, nodeLabels: [{{key: gpu/nividia, value: P630}}]}}]}}"
        );
        let mut sim = Sim::new().gpu_node("a", "13bb", 1).policy("all", &spec);
        sim.settle();
        assert_eq!(sim.node("a").labels[keys::POOL], pool, "{requirement}");
        let moves = sim.writes["node/a"];
        sim.sleep(3600);
        sim.settle();
        assert_eq!(
            (sim.writes["node/a"], &*sim.node("a").labels[keys::POOL]),
            (moves, pool),
            "the node does not change pools repeatedly"
        );
        let status = sim.policy_status("all");
        let found = status.pools.iter().find(|pool| pool.name == "by-label").expect("the pool");
        assert_eq!(found.reason(), Some(Reason::PoolMatchesOwnLabel), "{found:?}");
        assert!(
            found.message.contains("gpu/nividia") && found.message.contains("match by models"),
            "{}",
            found.message
        );
        assert_eq!(sim.condition("all", "Stalled").0, "True");
    }
    // A manually set label still matches.
    let spec = "{pools: [{name: by-label, match: {nodeSelector: {matchLabels: {gpu/nividia: P630}}}}]}";
    let mut sim = Sim::new().gpu_node("a", "13bb", 1).policy("all", spec);
    sim.label("a", "gpu/nividia", Some("P630"));
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::POOL], "by-label");
    let message = sim.status("a").message;
    assert!(message.contains("the node is labelled gpu/nividia=P630, but the GPUs are of model"), "{message}");
}
