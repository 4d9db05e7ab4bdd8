//! The example policies: each is valid, described and listed, and with a mirror set, all images are pulled from that
//! mirror.

use std::{collections::BTreeMap, fs, path::Path};
use test_support::planned::Planned;

use crate::sim::Sim;
use gpu_operator_crd::{
    ClusterGpuPolicy, NodeName,
    policy::{Stage, ValidationMode},
};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Container};

const MIRROR: &str = "mirror.example.com:5000/all";

/// Returns all examples, by file name.
fn examples() -> BTreeMap<String, (String, ClusterGpuPolicy)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files = fs::read_dir(folder).expect("the examples").map(|entry| entry.expect("an entry").path());
    let policies = files.filter(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    let read = |path: std::path::PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("an example");
        let policy = serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, (text, policy))
    };
    policies.map(read).collect()
}

/// Returns nodes of all kinds that the examples cover.
fn every_kind() -> Sim {
    let mut sim = Sim::new();
    let systems = [("ubuntu", "22.04"), ("ubuntu", "20.04"), ("rhel", "9.4"), ("centos", "7"), ("cos", "117")];
    let runtimes = ["containerd://2.1.4", "containerd://1.7.27", "docker://27.0.3", "cri-o://1.34.1"];
    for (number, device) in ["102d", "15f9", "13bb", "1eb8", "2330", "2901"].into_iter().enumerate() {
        for (os, (id, version)) in systems.into_iter().enumerate() {
            let name = NodeName::from(format!("n{number}-{id}-{version}"));
            sim.join(&name, device, 4);
            let report = sim.report(&name);
            (report.os.id, report.os.version_id) = (id.to_owned(), version.to_owned());
            let node = sim.node_mut(&name);
            node.runtime = runtimes[(number + os) % runtimes.len()].into();
            for (key, value) in [("gpu/nividia", "P630"), ("kubernetes.azure.com/accelerator", "nvidia")] {
                node.labels.insert(key.into(), value.into());
            }
            if os % 2 == 1 {
                sim.host_driver(&name, "470.256.02", true);
            }
        }
    }
    sim
}

fn containers(set: &DaemonSet) -> impl Iterator<Item = &Container> {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a pod");
    pod.init_containers.iter().flatten().chain(&pod.containers)
}

#[test]
fn every_example_is_valid_described_and_named_like_its_file() {
    for (name, (text, policy)) in examples() {
        let written: serde_yaml::Value = serde_yaml::from_str(&text).expect("YAML");
        let read = serde_yaml::to_value(&policy).expect("a policy");
        assert_eq!(written["spec"], read["spec"], "{name}");
        assert_eq!(policy.metadata.name.as_ref(), Some(&name));
        assert!(text.starts_with("# "), "{name} has no description");
        assert!(text.contains("o expect: "), "{name} does not describe what to expect");
    }
}

#[test]
fn every_example_is_listed() {
    let page = include_str!("../../../../examples/README.md");
    for name in examples().keys() {
        assert!(page.contains(&format!("[{name}.yaml]({name}.yaml)")), "{name}");
    }
    assert_eq!(page.matches(".yaml](").count(), examples().len(), "one row per example");
}

#[test]
fn with_a_mirror_all_images_of_all_examples_are_pulled_from_it() {
    let (mut stages, mut tested) = (BTreeMap::new(), 0);
    for (name, (_, policy)) in examples() {
        let mut spec = policy.spec;
        spec.images.registry = MIRROR.to_owned();
        spec.readiness.validation.mode = Some(ValidationMode::OnInstall);
        let pools = spec.pools.iter();
        let named = pools.flat_map(|pool| {
            let driver = pool.driver.as_ref().map(|driver| &driver.operand);
            let toolkit = pool.toolkit.as_ref().map(|toolkit| &toolkit.operand);
            [driver, toolkit, pool.device_plugin.as_ref().map(|plugin| &plugin.operand)]
        });
        let own: Vec<String> =
            named.flatten().filter_map(|operand| operand.image.as_ref()?.repository.clone()).collect();
        let mut sim = every_kind();
        // The chart's image.repository sets this image.
        sim.settings.probe_image = format!("{MIRROR}/nvml-probe:1");
        sim.apply_spec("all", spec);
        sim.run(40);
        let tests = sim.plans.iter().flat_map(|plan| plan.tests().into_values());
        for container in tests.filter_map(|pod| pod.spec.as_ref()).flat_map(|pod| &pod.containers) {
            let image = container.image.as_deref().expect("an image");
            assert!(image.starts_with(&format!("{MIRROR}/")), "{name}, a test: {image}");
            tested += 1;
        }
        for (stage, set) in
            Stage::ALL.iter().flat_map(|stage| sim.sets_of(*stage).into_iter().map(move |set| (stage, set)))
        {
            *stages.entry(stage.as_str()).or_insert(0) += 1;
            // An image that is on the node already is not pulled.
            let pulled = containers(set).filter(|container| container.image_pull_policy.as_deref() != Some("Never"));
            for image in pulled.map(|container| container.image.as_deref().expect("an image")) {
                // An image that the policy sets explicitly is not mirrored.
                let chosen = own.iter().any(|repository| image.starts_with(repository.as_str()));
                let mirrored = image.strip_prefix(MIRROR).is_some_and(|rest| rest.starts_with('/'));
                assert!(mirrored || chosen, "{name}, {}: {image}", stage.as_str());
            }
        }
    }
    assert!(Stage::ALL.iter().all(|stage| stages.contains_key(stage.as_str())), "all stages are covered: {stages:?}");
    assert!(tested > 0, "validation tests are covered");
}
