//! The pod that tests a node.

use k8s_openapi::api::core::v1::Pod;
use test_support::planned::Planned;

use crate::{sim::Sim, sources::NODE_POOL};

/// Returns the pod of the only test of a node with these GPUs, under a policy that requests tests.
fn test_pod(gpu: &str, runtime: &str, rest: &str) -> Pod {
    let spec = format!("{{readiness: {{validation: {{mode: OnInstall, timeout: 90s}}}}{rest}}}");
    let mut sim = Sim::new().gpu_node("a", gpu, 8).policy("all", &spec);
    sim.node_mut("a").runtime = runtime.into();
    if rest.contains("CloudInstaller") {
        sim.label("a", NODE_POOL, Some("gpus"));
    }
    sim.settle();
    let made: Vec<_> = sim.plans.iter().flat_map(|plan| plan.tests().into_values()).collect();
    assert_eq!(made.len(), 1, "{made:#?}");
    made[0].clone()
}

/// Returns the pods whose containers may differ in their privileges.
pub(crate) fn every_shape() -> Vec<(&'static str, Pod)> {
    [
        ("validation", "containerd://2.1.4", ""),
        ("validation-class", "docker://27.0.3", ", defaults: {toolkit: {setAsDefault: false, runtimeClass: gpu}}"),
        ("validation-google", "containerd://2.1.4", ", defaults: {driver: {source: CloudInstaller}}"),
    ]
    .map(|(case, runtime, rest)| (case, test_pod("2330", runtime, rest)))
    .into()
}

#[test]
fn a_test_requests_one_gpu_of_its_node_and_never_preempts() {
    let pod = test_pod(
        "2330",
        "containerd://2.1.4",
        ", images: {registry: mirror.example.com, pullSecrets: [{name: mirror}]}",
    );
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_yaml_snapshot!("validation-pod", pod);
    });
}

/// The resource is that of the node, the image fits its driver, NVIDIA's runtime class is used only where plain pods get no GPU, and the
/// path is that where Google's plugin mounts the driver.
#[test]
fn a_test_fits_its_node() {
    const RUN_FILE: &str = "driver: {source: RunFile, runFile: {sha256: a1}, version: 580.173.02, image: {repository: own/run-file, tag: a}}";
    let (cdi, enabled, docker) = ("containerd://2.1.4", "containerd://1.7.27", "docker://27.0.3");
    let (own, cuda12, cuda11) = ("example.com/burn:v1", "vectoradd-cuda12.5.0", "vectoradd-cuda11.7.1");
    let sample = |tag: &str| format!("nvcr.io/nvidia/k8s/cuda-sample:{tag}");
    let renamed = "devicePlugin: {sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}}";
    let with_google = format!("{RUN_FILE}, devicePlugin: {{flavor: Google}}");
    let folder = Some("/usr/local/nvidia/lib64");
    for (gpu, runtime, defaults, resource, image, class, path) in [
        ("2330", cdi, "", "nvidia.com/gpu", cuda12, None, None),
        ("2330", cdi, renamed, "nvidia.com/gpu.shared", cuda12, None, None),
        ("102d", cdi, "", "nvidia.com/gpu", cuda11, None, None),
        ("2330", cdi, with_google.as_str(), "nvidia.com/gpu", cuda12, None, folder),
        ("2330", cdi, RUN_FILE, "nvidia.com/gpu", cuda12, None, None),
        ("2330", enabled, "", "nvidia.com/gpu", cuda12, None, None),
        ("2330", docker, "", "nvidia.com/gpu", cuda12, None, None),
        (
            "2330",
            docker,
            "toolkit: {setAsDefault: false, runtimeClass: gpu}",
            "nvidia.com/gpu",
            cuda12,
            Some("gpu"),
            None,
        ),
        (
            "2330",
            cdi,
            "toolkit: {injection: Runtime, setAsDefault: false}",
            "nvidia.com/gpu",
            cuda12,
            Some("nvidia"),
            None,
        ),
        ("2330", enabled, "toolkit: {injection: None}", "nvidia.com/gpu", cuda12, None, None),
    ] {
        let spec = test_pod(gpu, runtime, &format!(", defaults: {{{defaults}}}")).spec.expect("a spec");
        let container = &spec.containers[0];
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref()).expect("limits");
        assert_eq!(limits.keys().collect::<Vec<_>>(), [resource], "{runtime} {defaults}");
        assert_eq!(container.image, Some(sample(image)), "{runtime} {defaults}");
        assert_eq!(spec.runtime_class_name.as_deref(), class, "{runtime} {defaults}");
        let found = container.env.iter().flatten().find(|variable| variable.name == "LD_LIBRARY_PATH");
        assert_eq!(found.and_then(|variable| variable.value.as_deref()), path, "{runtime} {defaults}");
    }
    let burn = "{readiness: {validation: {mode: OnInstall, image: {repository: example.com/burn, tag: v1}}}}";
    let sim = Sim::settled_fleet(burn, &["a"]);
    let pods = sim.plans.iter().flat_map(|plan| plan.tests().into_values());
    let images: Vec<_> = pods.filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone()).collect();
    assert_eq!(images, [own]);
}
