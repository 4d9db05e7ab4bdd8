//! CUDA versions of images and drivers.

use super::{
    super::cuda::{self, Version, cuda_of},
    *,
};
use gpu_operator_plan::output::gpu_node::owner;

fn falls_short(required: &str, served: &str, branch: u32, consumer: bool) -> bool {
    let version = |text| Version::parse(text).unwrap();
    cuda::falls_short(version(required), version(served), branch, consumer)
}

pub fn fails(required: &str, cuda: &str, driver: &str) -> bool {
    cuda::fails(required, Version::parse(cuda).unwrap(), driver)
}

#[test]
fn an_images_cuda_version_is_read_but_never_guessed() {
    for (image, expected) in [
        ("nvidia/cuda:12.8.0-base-ubuntu24.04", Some("12.8")),
        ("mirror.example.com:5000/nvidia/cuda:8.0", Some("8.0")),
        ("nvidia/cuda:latest", None),
        ("nvidia/cuda:12-base", None),
        ("nvidia/cuda", None),
        ("nvidia/cuda@sha256:0123", None),
        ("example/cuda:12.8.0", None),
        ("pytorch/pytorch:2.1.0-cuda11.8-cudnn8-runtime", Some("11.8")),
        ("example.com/app:1.4-cuda11.7.1", Some("11.7")),
        ("example.com/app:1.4-cuda-11.7", Some("11.7")),
        ("example.com/app:v1_cu128", Some("12.8")),
        ("example.com/app:2.6.0+cu118", Some("11.8")),
        ("example.com/app-cu92:latest", Some("9.2")),
        ("nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda10.2", Some("10.2")),
        ("k8s.gcr.io/cuda-vector-add:v0.1", None),
        ("example.com/app:cuda", None),
        ("example.com/app:cuda12", None),
        ("example.com/app:cuda118", None),
        ("example.com/app:cu12", None),
        ("example.com/app:cu", None),
        ("example.com/app:cu1280", None),
        ("example.com/cuts:cut118", None),
        ("example.com/app:cuda99.1", None),
        ("example.com/app:cuda11.8-cuda12.1", None),
        ("example.com/cuda11.8/app:1", None),
        ("nvcr.io/nvidia/pytorch:24.01-py3", None),
    ] {
        assert_eq!(cuda_of(image).map(|version| version.to_string()).as_deref(), expected, "{image}");
    }
}

#[test]
fn a_driver_is_too_old_only_if_no_compatibility_helps() {
    for (required, served, branch, consumer, expected) in [
        ("8.0", "8.0", 375, false, false),
        ("8.0", "7.5", 352, false, true),
        ("9.2", "9.0", 384, false, true),
        ("11.7", "8.0", 375, false, true),
        // The image may contain the forward-compatibility package, which works on data center cards.
        ("10.2", "9.0", 384, false, false),
        ("10.2", "9.0", 384, true, true),
        ("10.2", "8.0", 375, false, true),
        ("11.8", "10.1", 418, false, false),
        ("12.8", "11.4", 470, false, false),
        ("12.8", "11.4", 470, true, true),
        ("12.8", "10.2", 440, false, true),
        ("13.0", "12.2", 535, false, false),
        ("13.0", "11.4", 470, false, true),
        // From CUDA 11 on, any driver for the same major version is sufficient.
        ("12.8", "12.2", 535, true, false),
        ("11.8", "11.0", 450, true, false),
        ("10.2", "10.1", 418, true, true),
        ("12.1", "13.1", 595, true, false),
        ("14.0", "13.1", 595, false, false),
        ("14.0", "13.1", 595, true, true),
    ] {
        let found = falls_short(required, served, branch, consumer);
        assert_eq!(found, expected, "{required} on {served}, branch {branch}, consumer {consumer}");
    }
}

#[test]
fn requirements_fail_only_if_no_alternative_can_hold() {
    for (required, expected) in [
        ("cuda>=8.0", false),
        ("cuda>=11.7", true),
        ("cuda>=11.7 brand=tesla,driver>=450,driver<451", true),
        ("cuda>=11.7 brand=tesla,driver>=375,driver<376", false),
        ("cuda>=11.7 brand=tesla", false),
        ("cuda<8.0", true),
        ("driver>=384", true),
        ("driver>=375.26", false),
        ("cuda>8.0,brand=tesla", true),
        ("arch>=7.0", false),
        ("whatever", false),
        ("cuda>=new", false),
        ("", false),
        (" ", false),
    ] {
        assert_eq!(fails(required, "8.0", "375.26"), expected, "{required}");
    }
}

/// Adds a node with a P100 whose driver supports this CUDA version.
fn with_driver(world: &mut World, name: &str, loaded: &str, cuda: Option<&str>) {
    node(world, name, "nvidia-tesla-p100", 8);
    edit(world, name, |_, gpu_node| {
        let report = json!({"driver": {"loaded": loaded, "cudaVersion": cuda}, "gpus": [{"product": "Tesla P100"}]});
        gpu_node.status.as_mut().unwrap().report = Some(serde_json::from_value(report).unwrap());
    });
}

fn asking(more: &str, container: &str) -> String {
    format!("{{{more} containers: [{{name: c, {container}, resources: {{limits: {{nvidia.com/gpu: '1'}}}}}}]}}")
}

#[test]
fn an_image_is_compared_with_the_driver_of_the_pods_own_node() {
    let mut world = world("{}");
    with_driver(&mut world, "old", "375.26", Some("8.0"));
    with_driver(&mut world, "new", "595.91.07", Some("13.1"));
    let image = "image: 'nvidia/cuda:11.7.1-base'";
    let found = found(&asking("nodeName: old,", image), &world);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, Mistake::CudaTooNew);
    let words = "driver 375.26 of node old supports CUDA 8.0, but image nvidia/cuda:11.7.1-base is built for CUDA 11.7";
    assert!(found[0].1.starts_with(words), "{}", found[0].1);
    for fine in [
        asking("nodeName: new,", image),
        asking("nodeName: unknown,", image),
        asking("nodeName: old,", "image: 'nvidia/cuda:8.0'"),
        asking("nodeName: old,", "image: 'nvidia/cuda:latest'"),
        "{nodeName: old, containers: [{name: c, image: 'nvidia/cuda:11.7.1-base', env: [{name: NVIDIA_VISIBLE_DEVICES, value: none}]}]}".to_owned(),
    ] {
        assert_eq!(reasons(&fine, &world), [], "{fine}");
    }
}

#[test]
fn a_report_counts_only_for_its_boot_and_its_node() {
    type Change = fn(&mut NodeFacts, &mut GpuNode);
    let of_old = asking("nodeName: old,", "image: 'nvidia/cuda:11.7.1-base'");
    let changes: [(Change, &[Mistake]); 3] = [
        (|_, _| (), &[Mistake::CudaTooNew]),
        (|node, _| node.boot_id = "later".into(), &[]),
        (|node, _| node.uid = "later".into(), &[]),
    ];
    for (change, expected) in changes {
        let mut world = world("{}");
        with_driver(&mut world, "old", "375.26", Some("8.0"));
        edit(&mut world, "old", |node, gpu_node| {
            (node.boot_id, node.uid) = ("boot".into(), "uid".into());
            gpu_node.metadata.owner_references = Some(vec![owner(node)]);
            let status = gpu_node.status.as_mut().unwrap();
            status.report.as_mut().unwrap().boot_id = "boot".into();
            change(node, gpu_node);
        });
        assert_eq!(reasons(&of_old, &world), expected);
    }
}

#[test]
fn requirements_in_the_environment_apply_unless_disabled() {
    let mut world = world("{}");
    with_driver(&mut world, "old", "375.26", Some("8.0"));
    let require = "{name: NVIDIA_REQUIRE_CUDA, value: 'cuda>=9.0'}";
    let env = |more: &str| asking("nodeName: old,", &format!("image: app, env: [{require}{more}]"));
    assert_eq!(reasons(&env(""), &world), [Mistake::CudaTooNew]);
    assert_eq!(reasons(&env(", {name: NVIDIA_DISABLE_REQUIRE, value: 'true'}"), &world), []);
}

#[test]
fn an_unscheduled_pod_is_reported_only_if_no_driver_suffices() {
    let image = "image: 'nvidia/cuda:11.7.1-base'";
    let unbound = asking("", image);
    let mut fleet = world("{}");
    with_driver(&mut fleet, "old", "375.26", Some("8.0"));
    assert_eq!(reasons(&unbound, &fleet), [Mistake::CudaTooNew]);
    let mut newer = fleet.clone();
    with_driver(&mut newer, "new", "595.91.07", Some("13.1"));
    assert_eq!(reasons(&unbound, &newer), []);
    let of_old = asking("nodeSelector: {kubernetes.io/hostname: old},", image);
    assert_eq!(reasons(&of_old, &newer), [Mistake::CudaTooNew]);
    with_driver(&mut fleet, "less-old", "384.66", Some("9.0"));
    let message = &found(&unbound, &fleet)[0].1;
    assert!(
        message.starts_with("driver 384.66 of node less-old, the newest of all eligible nodes, supports"),
        "{message}"
    );
    with_driver(&mut fleet, "mute", "", None);
    assert_eq!(reasons(&unbound, &fleet), [], "the CUDA version of one driver is unknown");
    assert_eq!(
        reasons(&unbound, &world("{}")),
        [Mistake::NoNodeFits],
        "without nodes, there is no driver to compare with"
    );
}
