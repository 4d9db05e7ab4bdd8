//! What the API server refuses, and that its message says what to write instead. The rules run here as they run there.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use gpu_operator_crd::{ClusterGpuPolicy, ClusterGpuPolicySpec};
use kube::core::cel::validate_cel;

fn check(spec: &str) -> Result<(), String> {
    let spec: ClusterGpuPolicySpec = serde_yaml::from_str(spec).expect("a spec that fits the types");
    check_named("test", spec)
}

fn check_named(name: &str, spec: ClusterGpuPolicySpec) -> Result<(), String> {
    validate_cel(&ClusterGpuPolicy::new(name, spec)).map_err(|errors| format!("{errors:?}"))
}

#[test]
fn a_policys_name_fits_a_label() {
    assert!(check_named(&"a".repeat(63), ClusterGpuPolicySpec::default()).is_ok());
    let error = check_named(&"a".repeat(64), ClusterGpuPolicySpec::default()).expect_err("too long");
    assert!(error.contains("at most 63 characters"), "{error}");
}

#[test]
fn the_longest_duration_that_is_accepted_can_be_read() {
    // What the rule on `progressDeadline` lets through at most.
    let spec = "{readiness: {progressDeadline: 999999h999999h999999h}}";
    let spec: ClusterGpuPolicySpec = serde_yaml::from_str(spec).expect("read");
    assert!(spec.readiness.progress_deadline.is_some());
}

#[test]
fn what_users_write_is_accepted() {
    for spec in [
        "{}",
        "{nodeLabels: [accelerator, gpu/nividia, example.com/GPU_model]}",
        "{pools: [{name: p100, match: {models: [nvidia-tesla-p100]}, nodeLabels: [{key: gpu/nividia, value: P630}, {key: accelerator}], gpusPerNode: 8}]}",
        "{defaults: {driver: {source: Preinstalled}}}",
        "{defaults: {driver: {version: 580.173.02, kernelModule: Open, image: {digest: \"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}}}}",
        "{defaults: {driver: {version: \"384.66\"}}}",
        "{images: {registry: \"registry.example.com:5000/mirror\", pullSecrets: [a], pullPolicy: Always}}",
        "{readiness: {minReadyNodes: 3, progressDeadline: 45m}}",
        "{readiness: {minReadyNodes: 90%}}",
        "{nodeSelector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: In, values: [d]}, {key: e, operator: Exists}]}}",
    ] {
        check(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
}

#[test]
fn what_cannot_work_is_refused_with_what_to_write_instead() {
    for (spec, advice) in [
        ("{nodeLabels: [kubernetes.io/gpu]}", "write a key of your own"),
        ("{nodeLabels: [node.k8s.io/gpu]}", "write a key of your own"),
        ("{nodeLabels: [gpu.nodestack.dev/model]}", "write a key of your own"),
        ("{nodeLabels: [\"not a key\"]}", "write for example accelerator"),
        ("{nodeSelector: {matchExpressions: [{key: a, operator: In}]}}", "In and NotIn need values"),
        (
            "{pools: [{name: p, match: {nodeSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}}]}",
            "take none",
        ),
        ("{defaults: {driver: {image: {tag: 580-mine}}}}", "write its version as well"),
        ("{pools: [{name: Upper}]}", "lower-case letters"),
        ("{pools: [{name: p, nodeLabels: [{key: cloud.kubernetes.io/x}]}]}", "write a key of your own"),
        ("{pools: [{name: p, nodeLabels: [{key: a, value: \"-x\"}]}]}", "begins and ends with a letter or digit"),
        ("{defaults: {driver: {source: Preinstalled, version: 580.173.02}}}", "remove version"),
        ("{pools: [{name: p, driver: {source: Preinstalled, kernelModule: Open}}]}", "or write source: Container"),
        ("{defaults: {driver: {version: latest}}}", "580.173.02"),
        (
            "{defaults: {driver: {image: {digest: \"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}}}}",
            "write its version as well",
        ),
        (
            "{defaults: {toolkit: {image: {tag: v1, digest: \"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}}}}",
            "exclude each other",
        ),
        ("{defaults: {toolkit: {image: {digest: \"sha256:12\"}}}}", "64 hexadecimal digits"),
        ("{images: {registry: \"https://registry.example.com\"}}", "without a scheme"),
        (
            "{defaults: {devicePlugin: {image: {repository: \"registry.example.com/plugin:v1\"}}}}",
            "without tag or digest",
        ),
        ("{readiness: {minReadyNodes: -1}}", "from \"0%\" to \"100%\""),
        ("{readiness: {minReadyNodes: 150%}}", "from \"0%\" to \"100%\""),
    ] {
        let error = check(spec).expect_err(spec);
        assert!(error.replace("\\\"", "\"").contains(advice), "{spec}: {error}");
    }
}
