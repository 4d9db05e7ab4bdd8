//! The labels of GPU feature discovery on nodes: when they are set, changed and removed, and how those of other users
//! are kept.

use std::collections::BTreeMap;

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{keys, policy::Stage, reason::Reason, report::NvmlState};

const GFD: &str = "{compatibility: {labels: GFD}}";
const PRODUCT: &str = "nvidia.com/gpu.product";
const REPLICAS: &str = "nvidia.com/gpu.replicas";
const DRIVER: &str = "nvidia.com/cuda.driver-version.full";

/// Returns this operator's labels on a node that belong to GPU feature discovery.
fn discovered(sim: &Sim, node: &str) -> BTreeMap<String, String> {
    let node = sim.node(node);
    let owned = node.owned_labels.iter().filter(|key| keys::is_discovered(key));
    owned.map(|key| (key.to_string(), node.labels[key].to_string())).collect()
}

fn label(sim: &Sim, node: &str, key: &str) -> Option<String> {
    sim.node(node).labels.get(key).map(ToString::to_string)
}

#[test]
fn the_labels_are_set_by_nvmls_report_and_removed_on_demand() {
    let mut sim = Sim::new().policy("others", "{nodeSelector: {matchLabels: {team: x}}}").policy("all", GFD);
    sim.join("a", "2330", 8);
    sim.join("b", "2330", 8);
    sim.label("b", "team", Some("x"));
    sim.join_plain("cpu");
    sim.settle();
    insta::assert_yaml_snapshot!("whole", discovered(&sim, "a"));
    assert_eq!(sim.status("a").published_labels, discovered(&sim, "a"));
    // The older policy governs node b, and does not request the labels.
    assert!(discovered(&sim, "b").is_empty() && sim.node("cpu").labels.len() == 1);
    let others = |sim: &Sim| {
        let labels = sim.node("a").labels.iter().filter(|(key, _)| !keys::is_discovered(key));
        labels.map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>()
    };
    let before = others(&sim);
    sim.apply_policy("all", "{compatibility: {labels: None}}");
    sim.settle();
    assert_eq!((discovered(&sim, "a"), others(&sim)), (BTreeMap::new(), before));
    assert!(sim.status("a").published_labels.is_empty());
}

#[test]
fn before_a_driver_works_only_the_presence_of_gpus_is_labelled() {
    let mut sim = Sim::new().policy("all", GFD);
    sim.faults.insert("a".into(), Faults { driver_crash: Some("no headers".into()), ..Faults::default() });
    sim.join("a", "2330", 8);
    sim.run(60);
    assert_eq!(discovered(&sim, "a"), BTreeMap::from([(keys::GPU_PRESENT.to_owned(), "true".to_owned())]));
    sim.faults.clear();
    sim.settle();
    assert!(discovered(&sim, "a").len() > 20);
}

#[test]
fn the_labels_are_kept_without_a_report_and_follow_the_driver() {
    let mut sim =
        Sim::settled_fleet("{compatibility: {labels: GFD}, defaults: {driver: {version: 590.10.01}}}", &["a"]);
    let before = discovered(&sim, "a");
    assert_eq!(before[DRIVER], "590.10.01");
    sim.apply_policy("all", "{compatibility: {labels: GFD}, defaults: {driver: {version: 580.173.02}}}");
    let mut released = false;
    for _ in 0..60 {
        sim.step();
        sim.sleep(1);
        let nvml = sim.report("a").nvml.state;
        released |= nvml == NvmlState::Released;
        if nvml != NvmlState::Answering {
            assert_eq!(discovered(&sim, "a"), before);
        }
    }
    sim.settle();
    assert!(released, "the driver was released in between");
    let now = discovered(&sim, "a");
    assert_eq!((now[DRIVER].as_str(), &now[PRODUCT]), ("580.173.02", &before[PRODUCT]));
    for faults in [Faults { mute_probe: true, ..Faults::default() }, Faults { no_probe: true, ..Faults::default() }] {
        sim.faults.insert("a".into(), faults);
        sim.sleep(86_400);
        sim.settle();
        assert_eq!(discovered(&sim, "a"), now);
    }
    sim.gpu_nodes.remove(&"a".into());
    sim.settle();
    assert_eq!(discovered(&sim, "a"), now, "without any report");
}

#[test]
fn the_labels_follow_the_number_of_gpus() {
    let mut sim = Sim::settled_fleet(GFD, &["a"]);
    sim.report("a").gpus.truncate(6);
    sim.settle();
    assert_eq!(label(&sim, "a", "nvidia.com/gpu.count").as_deref(), Some("6"));
}

#[test]
fn the_sharing_labels_are_those_of_the_nodes_current_plugin() {
    let mut sim = Sim::settled_fleet(GFD, &["a", "b"]);
    let both = |sim: &Sim, key: &str| ["a", "b"].map(|node| label(sim, node, key).expect("a label"));
    let product = both(&sim, PRODUCT)[0].clone();
    assert_eq!(both(&sim, REPLICAS), ["1", "1"]);
    sim.apply_policy(
        "all",
        "{compatibility: {labels: GFD}, defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}}",
    );
    let mut one_by_one = false;
    for _ in 0..120 {
        sim.step();
        sim.sleep(1);
        let [a, b] = both(&sim, REPLICAS);
        one_by_one |= a != b;
    }
    sim.settle();
    assert!(one_by_one, "a pending node keeps its labels");
    assert_eq!(both(&sim, REPLICAS), ["4", "4"]);
    assert_eq!(both(&sim, PRODUCT), [format!("{product}-SHARED"), format!("{product}-SHARED")]);
    assert_eq!(both(&sim, "nvidia.com/mps.capable"), ["true", "true"]);
    sim.apply_policy(
        "all",
        "{compatibility: {labels: GFD}, defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 2, renameByDefault: true}}}}}",
    );
    sim.settle();
    assert_eq!(both(&sim, "nvidia.com/gpu.sharing-strategy"), ["time-slicing", "time-slicing"]);
    assert_eq!(both(&sim, PRODUCT), [product.clone(), product]);
}

#[test]
fn the_labels_of_mig_devices_follow_the_layout() {
    let mig = |layout: &str| {
        format!(
            "{{compatibility: {{labels: GFD}}, defaults: {{devicePlugin: {{mig: {{strategy: Mixed, layout: {layout}}}}}}}}}"
        )
    };
    let mut sim = Sim::settled_fleet(&mig("[{profiles: [{profile: 1g.10gb, count: 7}]}]"), &["a"]);
    let product = label(&sim, "a", PRODUCT).expect("a product");
    assert_eq!(label(&sim, "a", "nvidia.com/mig-1g.10gb.count").as_deref(), Some("56"));
    assert_eq!(label(&sim, "a", "nvidia.com/mig-1g.10gb.product"), Some(format!("{product}-MIG-1g.10gb")));
    assert_eq!(label(&sim, "a", "nvidia.com/mig.strategy").as_deref(), Some("mixed"));
    sim.apply_policy("all", &mig("[{devices: [0, 2], profiles: [{profile: 3g.40gb, count: 2}]}]"));
    sim.settle();
    assert_eq!(label(&sim, "a", "nvidia.com/mig-1g.10gb.count"), None);
    assert_eq!(label(&sim, "a", "nvidia.com/mig-3g.40gb.count").as_deref(), Some("4"));
    assert_eq!(label(&sim, "a", PRODUCT), Some(product));
    sim.apply_policy("all", GFD);
    sim.settle();
    assert!(!discovered(&sim, "a").contains_key("nvidia.com/mig.strategy"));
}

#[test]
fn labels_that_gpu_feature_discovery_has_written_are_kept() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    // NFD writes the labels for GPU feature discovery, some with the values of this operator, some with others.
    for (key, value) in [(PRODUCT, "NVIDIA-GPU-2330"), (REPLICAS, "4"), (keys::GPU_PRESENT, "true")] {
        sim.label("a", key, Some(value));
    }
    sim.apply_policy("all", GFD);
    sim.settle();
    let owned = discovered(&sim, "a");
    for key in [PRODUCT, REPLICAS, keys::GPU_PRESENT] {
        assert!(!owned.contains_key(key) && !sim.status("a").published_labels.contains_key(key), "{key}");
    }
    let status = sim.status("a");
    assert_eq!((status.reason(), status.is_ready()), (Some(Reason::LabelConflict), true));
    assert_eq!(
        status.message,
        "label nvidia.com/gpu.replicas already has value \"4\" and is left unchanged; remove the label from the node, or remove compatibility.labels from the policy"
    );
    // GPU feature discovery takes over one of this operator's labels, and changes one of its own.
    sim.label("a", "nvidia.com/gpu.count", Some("7"));
    sim.label("a", PRODUCT, Some("NVIDIA-GPU-2330-SHARED"));
    sim.settle();
    assert_eq!(label(&sim, "a", "nvidia.com/gpu.count").as_deref(), Some("7"));
    assert_eq!(label(&sim, "a", PRODUCT).as_deref(), Some("NVIDIA-GPU-2330-SHARED"));
    // GPU feature discovery is removed, together with its labels.
    for key in [PRODUCT, REPLICAS, "nvidia.com/gpu.count", keys::GPU_PRESENT] {
        sim.label("a", key, None);
    }
    sim.settle();
    let status = sim.status("a");
    assert!(status.is_ready() && status.reason() != Some(Reason::LabelConflict), "{status:?}");
    assert_eq!(label(&sim, "a", REPLICAS).as_deref(), Some("1"));
    sim.label("a", REPLICAS, Some("9"));
    sim.delete_policy("all");
    sim.settle();
    assert_eq!(label(&sim, "a", REPLICAS).as_deref(), Some("9"), "a label of another user is not removed");
    assert!(discovered(&sim, "a").is_empty());
}

#[test]
fn no_pool_matches_labels_that_its_policy_publishes() {
    let pool = "pools: [{name: p, match: {nodeSelector: {matchExpressions: [{key: nvidia.com/gpu.product, operator: Exists}]}}}]";
    let mut sim = Sim::settled_fleet(&format!("{{compatibility: {{labels: GFD}}, {pool}}}"), &["a"]);
    assert_eq!(label(&sim, "a", keys::POOL).as_deref(), Some("nvidia-h100-80gb"));
    let status = sim.policy_status("all");
    let found = status.pools.iter().find(|pool| pool.name == "p").expect("the pool");
    assert_eq!(found.reason(), Some(Reason::PoolMatchesOwnLabel), "{found:?}");
    assert!(found.message.ends_with("or remove compatibility.labels"), "{found:?}");
    // If the policy does not publish these labels, pools match labels of other users.
    sim.apply_policy("all", &format!("{{{pool}}}"));
    sim.settle();
    sim.label("a", PRODUCT, Some("third-party"));
    sim.settle();
    assert_eq!(label(&sim, "a", keys::POOL).as_deref(), Some("p"));
    assert_eq!(sim.sets_of(Stage::Driver).len(), 1);
}
