//! Mixed fleets: which policy and which pool governs a node, and how conflicts are reported.

use crate::{gpu_counts::reported, sim::Sim};
use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason};

#[test]
fn a_node_that_opts_out_is_not_managed_and_counted_as_such() {
    let mut sim = Sim::settled_fleet("{nodeLabels: [{key: accelerator}]}", &["a", "b"]);
    sim.label("a", keys::MANAGED, Some("false"));
    sim.settle();
    assert_eq!((reported(&sim, "a").0, reported(&sim, "a").1), (Phase::Unmanaged, Reason::OptedOut));
    let left: Vec<_> = sim.node("a").labels.keys().filter(|key| key.starts_with(keys::PREFIX)).collect();
    assert_eq!(left, [keys::MANAGED, keys::PRESENT], "a label that the user set is kept, and the probe stays");
    assert!(!sim.node("a").labels.contains_key("accelerator"));
    let status = sim.policy_status("all");
    assert_eq!((status.nodes.total, status.nodes.opted_out, status.summary.nodes.as_str()), (1, 1, "1/1"));
    sim.label("b", keys::MANAGED, Some("no"));
    sim.settle();
    let status = sim.policy_status("all");
    assert!(status.conditions[0].message.contains(keys::MANAGED), "{:?}", status.conditions[0]);
    sim.label("a", keys::MANAGED, Some("true"));
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

#[test]
fn of_two_policies_the_older_governs_a_node_and_both_report_it() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    sim.label("b", "team", Some("x"));
    sim.apply_policy("newer", "{nodeSelector: {matchLabels: {team: x}}, nodeLabels: [{key: accelerator}]}");
    sim.settle();
    assert_eq!(reported(&sim, "b").1, Reason::PolicyOverlap);
    assert_eq!(reported(&sim, "a").1, Reason::AllGpusAllocatable, "only the other node is reported");
    assert!(!sim.node("b").labels.contains_key("accelerator"));
    let overlap = |policy: &str| {
        let overlaps = sim.policy_status(policy).overlaps;
        (overlaps[0].policy.clone(), overlaps[0].nodes, overlaps[0].governed_by.clone(), overlaps.len())
    };
    assert_eq!(overlap("all"), ("newer".into(), 1, "all".into(), 1));
    assert_eq!(overlap("newer"), ("all".into(), 1, "all".into(), 1));
    assert_eq!(sim.condition("newer", "Ready"), ("False".into(), "NoMatchingNodes".into()));
}

#[test]
fn priority_decides_and_swapped_ages_of_policies_change_no_node() {
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
    let revisions: std::collections::BTreeSet<_> =
        ready.iter().map(|node| sim.node(*node).labels[keys::DEVICE_PLUGIN].clone()).collect();
    assert_eq!(revisions.len(), ready.len(), "{revisions:?}");
    for node in ready {
        assert_eq!(sim.status(node).phase, Phase::Ready, "{node}: {:?}", reported(&sim, node));
    }
    for (node, reason) in [("exotic", Reason::NoDriverImageForOS), ("old", Reason::RuntimeUnsupported)] {
        assert_eq!(reported(&sim, node).1, reason, "{node}");
        assert!(Stage::ALL.iter().all(|stage| !sim.node(node).labels.contains_key(stage.key())), "{node}");
    }
}

#[test]
fn of_several_taints_the_untolerated_one_is_named() {
    let mut sim = Sim::new()
        .gpu_node("a", "2330", 8)
        .policy("all", "{defaults: {tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]}}");
    let taint = |key: &str| gpu_operator_plan::world::TaintFact {
        key: key.into(),
        value: "ml".into(),
        effect: "NoSchedule".into(),
    };
    sim.node_mut("a").taints = vec![taint("nvidia.com/gpu"), taint("dedicated")];
    sim.settle();
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::UntoleratedTaint), "{}", status.message);
    assert!(status.message.contains("dedicated=ml:NoSchedule"), "{}", status.message);
    sim.apply_policy("all", "{}");
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
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
        assert_eq!(sim.condition("all", "Stalled").0, "True");
    }
    // A manually set label still matches.
    let spec = "{pools: [{name: by-label, match: {nodeSelector: {matchLabels: {gpu/nividia: P630}}}}]}";
    let mut sim = Sim::new().gpu_node("a", "13bb", 1).policy("all", spec);
    sim.label("a", "gpu/nividia", Some("P630"));
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::POOL], "by-label");
}
