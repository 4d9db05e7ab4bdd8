//! Models: by what a node's model is known, which driver it gets, and models that a policy adds.

use crate::{
    sim::{Faults, Sim},
    sources::node,
};
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};

const GKE: &str = "cloud.google.com/gke-accelerator";

#[test]
fn each_model_gets_the_newest_driver_that_supports_it() {
    let models = [("k80", "102d"), ("p100", "15f9"), ("t4", "1eb8"), ("h100", "2330"), ("b200", "2901")];
    let mut sim = Sim::new().policy("all", "{}");
    for (name, id) in models {
        sim.join(name, id, 2);
    }
    sim.settle();
    let mut images: Vec<_> = sim.sets_of(Stage::Driver).into_iter().map(Sim::image).collect();
    images.sort();
    let tags = images.iter().map(|image| image.strip_prefix("nvcr.io/nvidia/driver:").expect("NVIDIA's image"));
    let newest = "595.91.07-ubuntu22.04";
    let expected = ["470.256.02-ubuntu20.04", "580.173.02-ubuntu22.04", newest, newest, newest];
    assert_eq!(tags.collect::<Vec<_>>(), expected);
    assert!(models.iter().all(|(node, _)| sim.status(*node).is_ready()));
    let conditions = ["Ready", "Reconciling", "Stalled"].map(|kind| sim.condition("all", kind).0);
    assert_eq!(conditions, ["True", "False", "False"]);
    let status = sim.policy_status("all");
    assert_eq!((status.summary.nodes.as_str(), status.summary.gpus.as_str()), ("5/5", "10/10"));
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
        sim.label(node, key, Some(value));
    }
    sim.settle();
    for node in sim.nodes.values() {
        assert_eq!(node.labels[keys::MODEL], "nvidia-tesla-t4", "{}", node.name);
        assert_eq!(sim.status(&node.name).reason(), Some(Reason::AllGpusAllocatable), "{}", node.name);
    }
    assert_eq!(sim.sets.len(), 3, "one pool, one variant");
}

#[test]
fn an_override_takes_precedence_over_all_labels_and_the_pci_bus() {
    let mut sim = Sim::new()
        .gpu_node("a", "1eb8", 1)
        .policy("all", "{nodeLabels: [{key: accelerator}], pools: [{name: custom, match: {models: [custom]}}]}");
    sim.label("a", GKE, Some("nvidia-tesla-t4"));
    sim.label("a", keys::MODEL_OVERRIDE, Some("custom"));
    sim.settle();
    assert_eq!(
        (sim.node("a").labels["accelerator"].as_str(), sim.node("a").labels[keys::POOL].as_str()),
        ("custom", "custom")
    );
    let image = Sim::image(sim.sets_of(Stage::Driver)[0]);
    assert!(image.contains("595.91.07"), "the driver is chosen for the hardware: {image}");
}

#[test]
fn several_models_share_a_driver_and_the_label_mixed() {
    let mut sim = Sim::new().gpu_node("a", "2330", 2).policy("all", "{nodeLabels: [{key: accelerator}]}");
    sim.report("a").gpus[1].device_id = "15f9".into();
    sim.settle();
    assert_eq!(sim.node("a").labels["accelerator"], "mixed");
    let image = Sim::image(sim.sets_of(Stage::Driver)[0]);
    assert!(image.contains(":580."), "the newest branch for both: {image}");
}

#[test]
fn a_removed_hint_about_the_model_changes_nothing() {
    let mut sim = Sim::new().gpu_node("a", "1eb8", 4).policy("all", "{}");
    sim.label("a", GKE, Some("nvidia-tesla-t4"));
    sim.settle();
    let labels = |sim: &Sim| {
        let mut labels = sim.node("a").labels.clone();
        labels.remove(GKE);
        labels
    };
    let before = (labels(&sim), sim.sets.clone());
    sim.label("a", GKE, None);
    sim.settle();
    assert_eq!((labels(&sim), sim.sets.clone()), before);
    sim.gpu_nodes.remove(&"a".into());
    sim.run(5);
    assert_eq!(labels(&sim), before.0, "without a GpuNode there is no report");
}

#[test]
fn a_label_that_announces_a_gpu_counts_until_the_probe_reports() {
    let mut sim = Sim::new().policy("all", "{nodeLabels: [{key: accelerator}]}");
    sim.join_plain("a");
    sim.faults.insert("a".into(), Faults { no_probe: true, ..Faults::default() });
    sim.label("a", "feature.node.kubernetes.io/pci-10de.present", Some("true"));
    sim.run(3);
    assert!(!sim.node("a").labels.contains_key(keys::POOL), "the model is not known yet: {:?}", sim.node("a").labels);
    sim.sleep(61);
    sim.run(3);
    assert_eq!((sim.status("a").reason(), sim.status("a").model), (Some(Reason::ProbeMissing), None));
    assert!(!sim.node("a").labels.contains_key("accelerator"));
    sim.faults.clear();
    sim.settle();
    assert!(sim.gpu_nodes.is_empty(), "{:?}", sim.gpu_nodes);
    let own: Vec<_> = sim.node("a").labels.iter().filter(|(key, _)| key.starts_with(keys::PREFIX)).collect();
    assert_eq!(own, [(&keys::PRESENT.into(), &"false".into())]);
}

const CUSTOM: &str = "{models: [{name: nvidia-custom, pciIDs: [fff1], architecture: Kepler, memoryMiB: 4096}], pools: [{name: p, match: {models: [nvidia-custom]}}]}";

#[test]
fn a_model_that_a_policy_adds_applies_to_all_policies() {
    let mut sim = Sim::new().gpu_node("a", "fff1", 2).policy("older", "{nodeSelector: {matchLabels: {zone: a}}}");
    sim.label("a", "zone", Some("a"));
    sim.report("a").os.version_id = "20.04".into();
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::MODEL], "nvidia-10de-fff1");
    sim.apply_policy("newer", CUSTOM);
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::MODEL], "nvidia-custom", "{}", sim.status("a").message);
    assert_eq!(sim.node("a").labels[keys::POOL], "nvidia-custom", "the older policy governs the node");
    assert_eq!(Sim::image(sim.sets_of(Stage::Driver)[0]), "nvcr.io/nvidia/driver:470.256.02-ubuntu20.04");
    assert_eq!(sim.condition("newer", "Accepted").0, "True");
}

#[test]
fn a_model_of_an_unknown_architecture_gets_the_described_driver() {
    let added = "{models: [{name: nvidia-r100, pciIDs: [fff1], architecture: Rubin, driver: {firstBranch: 590}, modules: OpenOnly}]}";
    let mut sim = Sim::new().gpu_node("a", "fff1", 2).policy("all", added);
    sim.settle();
    assert_eq!(sim.node("a").labels[keys::MODEL], "nvidia-r100", "{}", sim.status("a").message);
    assert!(sim.status("a").is_ready(), "{}", sim.status("a").message);
    let pinned = added.replacen('{', "{defaults: {driver: {version: 580.173.02}}, ", 1);
    sim.apply_policy("all", &pinned);
    sim.settle();
    let pool = &sim.policy_status("all").pools[0];
    assert!(pool.message.contains("nvidia-r100 (Rubin) is supported from branch 590 on"), "{}", pool.message);
}

#[test]
fn a_known_model_is_reported_and_changes_nothing() {
    for (models, words) in [
        ("[{name: nvidia-tesla-t4, pciIDs: [fff1], architecture: Ada}]", "nvidia-tesla-t4 is already in the catalogue"),
        ("[{name: custom, pciIDs: [1eb8], architecture: Ada}]", "PCI id 1eb8 of custom belongs to nvidia-tesla-t4"),
        (
            "[{name: custom, pciIDs: [fff1], architecture: Ada}, {name: other, pciIDs: [fff1], architecture: Ada}]",
            "PCI id fff1 of other belongs to custom",
        ),
    ] {
        let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
        sim.settle();
        let before = (sim.sets.clone(), sim.node("a").labels.clone());
        sim.apply_policy("all", &format!("{{models: {models}}}"));
        sim.settle();
        assert_eq!((sim.sets.clone(), sim.node("a").labels.clone()), before, "{models}");
        assert_eq!(sim.condition("all", "Accepted"), ("False".into(), "InvalidPolicy".into()), "{models}");
        let conditions = sim.policy_status("all").conditions;
        assert!(conditions.iter().any(|condition| condition.message.contains(words)), "{models}: {conditions:?}");
    }
}

#[test]
fn of_two_policies_that_add_a_model_the_older_one_applies() {
    let mut sim = Sim::new().gpu_node("a", "fff1", 2).policy("older", CUSTOM);
    sim.report("a").os.version_id = "20.04".into();
    sim.apply_policy("newer", &CUSTOM.replace("Kepler", "Hopper"));
    sim.settle();
    assert_eq!(Sim::image(sim.sets_of(Stage::Driver)[0]), "nvcr.io/nvidia/driver:470.256.02-ubuntu20.04");
    assert_eq!(sim.condition("newer", "Accepted").0, "False");
    assert_eq!(sim.condition("older", "Accepted").0, "True");
    sim.apply_policy("newer", CUSTOM);
    sim.settle();
    assert_eq!(sim.condition("newer", "Accepted").0, "True", "equal definitions do not conflict");
}

#[test]
fn the_highest_cuda_version_follows_the_driver() {
    let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
    sim.settle();
    let reported = |sim: &Sim| {
        (sim.node("a").labels[keys::CUDA_VERSION].to_string(), sim.status("a").cuda.expect("a CUDA version"))
    };
    assert_eq!(reported(&sim), ("13.2".into(), "13.2".into()));
    assert!(sim.writes["node/a"] <= 4, "{:?}", sim.writes);
    // A driver whose update is pending is not the one in use.
    sim.gpu_pods.insert("a".into(), vec!["default/training".into()]);
    sim.apply_policy("all", "{defaults: {driver: {version: 535.309.01}}}");
    sim.run(30);
    assert_eq!(reported(&sim), ("13.2".into(), "13.2".into()));
    sim.gpu_pods.clear();
    sim.settle();
    assert_eq!(reported(&sim), ("12.2".into(), "12.2".into()));
    sim.delete_policy("all");
    sim.settle();
    assert!(!sim.node("a").labels.contains_key(keys::CUDA_VERSION));
}

#[test]
fn an_unknown_host_driver_reports_its_cuda_version_itself() {
    for (version, expected) in [("430.34", "10.1"), ("999.1.1", "99.1")] {
        let mut sim = node("{}", ("ubuntu", "22.04"), &[]);
        sim.host_driver("a", version, true);
        sim.report("a").driver.cuda_version = Some("99.1".into());
        sim.settle();
        assert_eq!(sim.status("a").cuda.as_deref(), Some(expected), "{version}");
    }
}
