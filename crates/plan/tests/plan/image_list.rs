//! The list of images that a policy's nodes may pull contains what random fleets pull, and little else.

use std::collections::BTreeSet;
use test_support::planned::Planned;

use gpu_operator_crd::{ClusterGpuPolicy, ClusterGpuPolicySpec};
use gpu_operator_plan::{
    catalogue::Catalogue,
    image_list::{Fleet, ImageList, images},
};
use k8s_openapi::api::core::v1::PodSpec;
use proptest::{collection::vec, prelude::*};
use test_support::random::config;

use crate::{
    properties::{
        after,
        events::{Event, policies},
        fleet,
    },
    sim::Sim,
};

/// Returns the list for a policy of this spec, on nodes that only these names describe.
fn list(spec: &str, systems: &[&str], models: &[&str]) -> ImageList {
    let catalogue = Catalogue::builtin().expect("a valid catalogue");
    let mut fleet = Fleet::of(&catalogue);
    if !systems.is_empty() {
        fleet.limit_systems(&systems.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    }
    fleet.models = models.iter().map(|&name| name.to_owned()).collect();
    let spec: ClusterGpuPolicySpec = serde_yaml::from_str(spec).expect("a spec");
    images(&Sim::new().settings, &catalogue, &ClusterGpuPolicy::new("all", spec), &fleet)
}

/// Returns the images that these pods pull.
fn pulled<'p>(pods: impl IntoIterator<Item = &'p PodSpec>) -> BTreeSet<String> {
    let containers = pods.into_iter().flat_map(|pod| pod.init_containers.iter().flatten().chain(&pod.containers));
    let pulled = containers.filter(|container| container.image_pull_policy.as_deref() != Some("Never"));
    pulled.map(|container| container.image.clone().expect("an image")).collect()
}

proptest! {
    #![proptest_config(config(32))]

    #[test]
    fn it_contains_every_image_of_random_fleets(
        machines in vec(fleet::machine().prop_map(|machine| Event::Joins(machine.named_by_its_gpus())), 1..6),
        policies in policies(),
    ) {
        let (mut sim, mut oracle) = after(&[&machines, &policies]);
        oracle.rest(&mut sim);
        let sets = sim.plans.iter().flat_map(|plan| plan.daemon_sets().into_values());
        let of_sets = sets.filter_map(|write| write.set.spec.as_ref()?.template.spec.as_ref());
        let tests = sim.plans.iter().flat_map(|plan| plan.tests().into_values()).filter_map(|pod| pod.spec.as_ref());
        let pulled = pulled(of_sets.chain(tests));
        let mut fleet = Fleet::of(&sim.catalogue);
        // Systems without images in the catalogue, but possibly with images that the policy names.
        fleet.systems.extend(sim.machines.values().map(|report| report.os.clone()));
        fleet.kernels = sim.nodes.values().map(|node| node.kernel.to_string()).collect();
        let listed: BTreeSet<String> = sim
            .policies
            .values()
            .flat_map(|policy| images(&sim.settings, &sim.catalogue, policy, &fleet).images)
            .collect();
        let missing: Vec<_> = pulled.difference(&listed).collect();
        prop_assert!(missing.is_empty(), "{missing:#?} of {listed:#?}");
    }
}

#[test]
fn it_is_limited_by_operating_system_and_model() {
    let probe = "registry.example.com/nvml-probe:1";
    let [toolkit, plugin, google] = [
        "nvcr.io/nvidia/k8s/container-toolkit:v1.20.2",
        "nvcr.io/nvidia/k8s-device-plugin:v0.19.3",
        "gcr.io/gke-release/nvidia-gpu-device-plugin@sha256:6b25281cd0fa3ca55f3e837a18be4a14b44952105568f466530dd85bcebde62f",
    ];
    for (spec, systems, models, expected) in [
        (
            "{}",
            &["ubuntu22.04"][..],
            &["nvidia-h100-80gb"][..],
            &[google, "nvcr.io/nvidia/driver:595.91.07-ubuntu22.04", plugin, toolkit, probe][..],
        ),
        (
            "{images: {pullPolicy: Never}, defaults: {driver: {source: Container}}}",
            &["ubuntu22.04"],
            &["nvidia-h100-80gb"],
            &["nvcr.io/nvidia/driver:595.91.07-ubuntu22.04", plugin, toolkit, probe],
        ),
        (
            "{defaults: {driver: {source: Container}}}",
            &["rhel8"],
            &["nvidia-tesla-k80"],
            &[
                "nvcr.io/nvidia/driver:470.256.02-rhel8.6",
                "nvcr.io/nvidia/driver:470.256.02-rhel8.7",
                "nvcr.io/nvidia/driver:470.256.02-rhel8.8",
                "nvcr.io/nvidia/driver:470.256.02-rhel8.9",
                plugin,
                toolkit,
                probe,
            ],
        ),
        (
            "{defaults: {driver: {source: Container, container: {precompiled: true}}}}",
            &["ubuntu24.04"],
            &["t4"],
            &[
                "nvcr.io/nvidia/driver:595-KERNEL-ubuntu24.04",
                "nvcr.io/nvidia/driver:595.91.07-ubuntu24.04",
                plugin,
                toolkit,
                probe,
            ],
        ),
        (
            "{defaults: {driver: {source: CloudInstaller}, devicePlugin: {flavor: Google}}}",
            &["cos"],
            &["t4"],
            // Google's installer is on the nodes already.
            &[google, probe],
        ),
        (
            "{images: {registry: mirror.example.com/all}, defaults: {driver: {source: RunFile, runFile: {sha256: a1}, version: 580.173.02, image: {repository: own/run-file, tag: a}}}, readiness: {validation: {mode: OnInstall}}}",
            &["debian12"],
            &["t4"],
            &[
                // GKE's nodes get the driver where Google's plugin expects it.
                "mirror.example.com/all/gke-release/nvidia-gpu-device-plugin@sha256:6b25281cd0fa3ca55f3e837a18be4a14b44952105568f466530dd85bcebde62f",
                "mirror.example.com/all/nvidia/k8s-device-plugin:v0.19.3",
                "mirror.example.com/all/nvidia/k8s/container-toolkit:v1.20.2",
                "mirror.example.com/all/nvidia/k8s/cuda-sample:vectoradd-cuda10.2",
                "mirror.example.com/all/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1",
                "mirror.example.com/all/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
                "own/run-file:a",
                probe,
            ],
        ),
    ] {
        let ImageList { images, notes, by_tag } = list(spec, systems, models);
        let expected: BTreeSet<String> = expected.iter().map(|&image| image.to_owned()).collect();
        assert_eq!(images, expected, "{spec} on {systems:?} with {models:?}");
        assert_eq!(notes, BTreeSet::new(), "{spec}");
        let tagged: BTreeSet<String> = by_tag.into_values().flatten().collect();
        let without_digest = images.into_iter().filter(|image| !image.contains("@sha256:"));
        assert_eq!(tagged, without_digest.collect(), "{spec}");
    }
}

#[test]
fn images_with_a_tag_have_the_field_for_their_digest() {
    let digest = format!("sha256:{:064}", 1);
    let all = "driver: {source: Container}, devicePlugin: {sharing: {mps: {replicas: 2}}}";
    let spec = format!("{{defaults: {{{all}}}, readiness: {{validation: {{mode: OnInstall}}}}}}");
    let by_tag = list(&spec, &["ubuntu22.04"], &["nvidia-h100-80gb"]).by_tag;
    let [driver, toolkit, plugin] = ["driver", "toolkit", "devicePlugin"].map(|part| format!("{part}.image.digest"));
    let fields: Vec<&str> = by_tag.keys().copied().collect();
    let test = "readiness.validation.image.digest";
    assert_eq!(fields, [&plugin, &driver, "image.digests.probe", test, &toolkit]);
    assert_eq!(by_tag[&*plugin].iter().collect::<Vec<_>>(), ["nvcr.io/nvidia/k8s-device-plugin:v0.19.3"]);
    assert!(by_tag[test].iter().all(|image| image.contains("cuda-sample:")), "{by_tag:?}");
    // Fixed where the field says, and nowhere else.
    let image = format!("image: {{digest: \"{digest}\"}}");
    let fixed = format!("{{defaults: {{driver: {{source: Container, {image}}}, devicePlugin: {{{image}}}}}}}");
    let by_tag = list(&fixed, &["ubuntu22.04"], &["nvidia-h100-80gb"]).by_tag;
    assert_eq!(by_tag.keys().collect::<Vec<_>>(), [&"image.digests.probe", &&*toolkit]);
}

#[test]
fn a_pool_that_names_models_has_the_drivers_of_these() {
    let pools = "[{name: old, match: {models: [nvidia-tesla-k80]}, driver: {image: {repository: own/old}}}, {name: rest, driver: {image: {repository: own/rest}}}]";
    let spec = format!("{{defaults: {{driver: {{source: Container}}}}, pools: {pools}}}");
    let images = list(&spec, &[], &[]).images;
    let drivers = |of: &str| images.iter().filter(|image| image.starts_with(of)).collect::<Vec<_>>();
    assert!(drivers("own/old:").iter().all(|image| image.starts_with("own/old:470.")), "{images:#?}");
    assert_eq!(drivers("own/old:").len(), 5);
    assert!(drivers("own/rest:").iter().any(|image| image.starts_with("own/rest:595.")), "{images:#?}");
    // No node is left for the defaults alone.
    assert_eq!(drivers("nvcr.io/nvidia/driver:"), Vec::<&String>::new());
}

#[test]
fn it_notes_why_a_model_gets_no_driver() {
    for (spec, systems, note) in [
        (
            "{defaults: {driver: {version: 595.91.07}}}",
            &[][..],
            "nvidia-tesla-k40m: nvidia-tesla-k40m (Kepler) is supported up to branch 470",
        ),
        (
            "{}",
            &["ubuntu24.04"],
            "nodes of no pool, GPUs such as nvidia-tesla-k40m: driver 470.256.02 has no known image for ubuntu24.04",
        ),
        (
            "{pools: [{name: p, driver: {source: RunFile}}]}",
            &[],
            "pool p, GPUs such as nvidia-tesla-k40m: source RunFile needs the file; write driver.runFile.sha256",
        ),
    ] {
        let notes = list(spec, systems, &["nvidia-tesla-k40m"]).notes;
        assert!(notes.len() == 1 && notes.iter().all(|found| found.contains(note)), "{spec}: {notes:#?}");
    }
    assert_eq!(list("{}", &[], &[]).notes, BTreeSet::new());
    assert_eq!(list("{defaults: {driver: {source: Preinstalled}}}", &[], &[]).notes, BTreeSet::new());
}
