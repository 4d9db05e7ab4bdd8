//! The CEL rules: which specs they reject, and with which messages. The rules are evaluated as in the API server.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use std::{collections::BTreeSet, sync::LazyLock};

use gpu_operator_crd::{ClusterGpuPolicy, ClusterGpuPolicySpec, policy::NodeLabel};
use kube::core::cel::{CompiledSchema, ValidationError, ValidationErrors, Validator, compile_schema};
use serde_json::{Value, json};
use test_support::rejected::{REJECTED, Report};

/// The schema, as in the file of the CRD.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let (_, crd) = gpu_operator_crd::crds().into_iter().next().expect("the policy");
    let mut crd = serde_json::to_value(crd).expect("JSON");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
});
static RULES: LazyLock<CompiledSchema> = LazyLock::new(|| compile_schema(&SCHEMA));

/// Returns the rules that a policy violates, whether or not it matches the types.
fn broken_rules(policy: &Value) -> Vec<ValidationError> {
    Validator::new().validate_compiled(&RULES, policy, None).err().map(ValidationErrors::into_vec).unwrap_or_default()
}

fn check(spec: &str) -> Result<(), String> {
    let spec: ClusterGpuPolicySpec = serde_yaml::from_str(spec).expect("a spec that fits the types");
    check_named("test", spec)
}

fn check_named(name: &str, spec: ClusterGpuPolicySpec) -> Result<(), String> {
    let policy = serde_json::to_value(ClusterGpuPolicy::new(name, spec)).expect("JSON");
    let broken = broken_rules(&policy);
    if broken.is_empty() { Ok(()) } else { Err(format!("{broken:?}")) }
}

#[test]
fn a_policy_name_that_is_too_long_for_a_label_is_rejected() {
    assert!(check_named(&"a".repeat(63), ClusterGpuPolicySpec::default()).is_ok());
    let error = check_named(&"a".repeat(64), ClusterGpuPolicySpec::default()).expect_err("too long");
    assert!(error.contains("at most 63 characters"), "{error}");
}

#[test]
fn the_longest_accepted_duration_can_be_parsed() {
    // The longest value that the rule of `progressDeadline` accepts.
    let spec = "{readiness: {progressDeadline: 999999h999999h999999h}}";
    let spec: ClusterGpuPolicySpec = serde_yaml::from_str(spec).expect("read");
    assert!(spec.readiness.progress_deadline.is_some());
}

#[test]
fn valid_specs_are_accepted() {
    for spec in [
        "{}",
        "{nodeLabels: [{key: accelerator}, {key: gpu/nividia}, {key: example.com/GPU_model, value: H100}]}",
        "{pools: [{name: p100, match: {models: [nvidia-tesla-p100]}, nodeLabels: [{key: gpu/nividia, value: P630}, {key: accelerator}], gpusPerNode: 8}]}",
        "{defaults: {driver: {source: Preinstalled}}}",
        "{defaults: {driver: {source: Preinstalled, preinstalled: {installDir: /opt/vendor/lib}}}}",
        "{defaults: {driver: {version: 580.173.02, container: {kernelModule: Open}, image: {digest: \"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}}}}",
        "{defaults: {driver: {version: \"384.66\"}}}",
        // An installer's image contains no driver, so a tag does not require a version.
        "{defaults: {driver: {source: RunFile, runFile: {sha256: 0f23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef, url: \"https://mirror.example.com/NVIDIA-Linux-x86_64-580.173.02.run\"}, image: {repository: own/run-file, tag: ubuntu22.04}}}}",
        "{defaults: {driver: {source: CloudInstaller, image: {repository: own/installer, digest: \"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}}}}",
        "{defaults: {driver: {source: CloudInstaller, cloudInstaller: {channel: Default}, image: {repository: gcr.io/cos-cloud/cos-gpu-installer, tag: v2.3.0}}}}",
        "{defaults: {driver: {source: RunFile, version: 580.173.02, runFile: {sha256: 0f23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef}, image: {repository: own/run-file, tag: ubuntu22.04}}}, pools: [{name: a, driver: {}}, {name: b, driver: {source: Preinstalled}}]}",
        "{defaults: {driver: {source: Preinstalled}}, pools: [{name: a, driver: {version: 580.173.02}}, {name: b, devicePlugin: {google: {metricsPort: 2112}}}]}",
        "{defaults: {driver: {image: {repository: own/driver}}, toolkit: {image: {repository: own/toolkit}}, devicePlugin: {image: {repository: own/plugin}}}}",
        "{images: {registry: \"registry.example.com:5000/mirror\", pullSecrets: [{name: a}], pullPolicy: Always}}",
        "{defaults: {devicePlugin: {mig: {strategy: Mixed, layout: [{profiles: [{profile: 1g.24gb, count: 1}, {profile: 1g.24gb+me, count: 1}, {profile: 1g.24gb+gfx, count: 1}, {profile: 1g.24gb-me, count: 1}]}]}}}}",
        "{defaults: {devicePlugin: {mig: {strategy: Mixed, layout: [{profiles: [{profile: 1g.24gb+me.all, count: 1}, {profile: 2g.48gb.me.all, count: 1}, {profile: 1g.24gb.gfx, count: 1}, {profile: 1g.10gb.me, count: 1}]}]}}}}",
        "{defaults: {devicePlugin: {mig: {strategy: Mixed, layout: [{devices: [0, 63], profiles: [{profile: 1g.10gb, count: 7}]}, {devices: [62, 8], profiles: [{profile: 1g.10gb, count: 7}]}, {profiles: [{profile: 3g.40gb, count: 2}]}]}}}}",
        "{defaults: {devicePlugin: {flavor: External, mig: {strategy: Mixed, mode: Unmanaged}}}, pools: [{name: a, devicePlugin: {mig: {mode: Disabled}}}, {name: b, devicePlugin: {sharing: {mps: {replicas: 2}}, mig: {strategy: Single, mode: Unmanaged}}}]}",
        "{health: {onUnhealthy: {taint: {}}}, pools: [{name: a, health: {onUnhealthy: {}}}, {name: b, devicePlugin: {sharing: {}}}]}",
        "{health: {onUnhealthy: {taint: {effect: PreferNoSchedule, key: nvidia.com/gpu}}}}",
        "{health: {onUnhealthy: {taint: {effect: NoExecute, key: gpu-unhealthy}}}}",
        "{readiness: {minReadyNodes: 3, progressDeadline: 45m}}",
        "{readiness: {minReadyNodes: 90%}}",
        "{readiness: {minReadyNodes: 0}}",
        "{defaults: {tolerations: [{operator: Exists}, {key: example.com/gpu, value: b, effect: NoSchedule}, {key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 30}]}}",
        "{defaults: {driver: {env: [{name: A, value: \"\"}, {name: b.c-d, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}}}",
        "{defaults: {toolkit: {resources: {limits: {cpu: 2, memory: 1Gi, example.com/device: 1}, requests: {cpu: \"0.15\", memory: 1Gi}}}}}",
        "{defaults: {toolkit: {resources: {requests: {cpu: 500m}}}}}",
        "{rollout: {windows: [{start: \"00:00\", duration: 168h}, {days: [], start: \"23:59\", duration: 1h30m, timeZone: Etc/GMT+5}]}, pools: [{name: a, rollout: {windows: [{days: [Sunday, Monday], start: \"09:05\", duration: 1s, timeZone: America/Argentina/Buenos_Aires}]}}]}",
        "{nodeSelector: {matchLabels: {a: b}, matchExpressions: [{key: c, operator: In, values: [d]}, {key: e, operator: Exists}]}}",
    ] {
        check(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
}

#[test]
fn a_driver_root_that_is_not_a_plain_path_is_rejected() {
    let (_, crd) = gpu_operator_crd::crds().remove(1);
    let schema = serde_json::to_value(&crd.spec.versions[0].schema).expect("JSON")["openAPIV3Schema"].take();
    let rules = compile_schema(&schema);
    let is_valid = |root: &str| {
        let node = json!({"metadata": {"name": "a"}, "spec": {"driverRoot": root}});
        Validator::new().validate_compiled(&rules, &node, None).is_ok()
    };
    for root in ["/opt/nvidia", "/home/kubernetes/bin/nvidia", "/opt/vendor_x-1.2/lib"] {
        assert!(is_valid(root), "{root}");
    }
    for root in [
        "",
        "/",
        "/tmp",
        "opt/nvidia",
        "/opt/../tmp/x",
        "/opt/./x",
        "/opt/nvidia/",
        "/opt//x",
        "/opt/a b",
        "/opt/$(x)",
        "/opt/x\n",
    ] {
        assert!(!is_valid(root), "{root:?}");
    }
}

#[test]
fn every_rule_rejects_with_the_message_in_the_docs() {
    for row in &REJECTED.by_rule {
        let written = &row.written;
        let spec: Value = serde_yaml::from_str(written).expect("YAML");
        let errors = broken_rules(&json!({"metadata": {"name": "test"}, "spec": spec}));
        let said: Vec<_> = errors.iter().map(|error| (error.field_path.clone(), error.message.as_str())).collect();
        assert_eq!(said, [(dotted(&row.at), row.message.as_str())], "{written}");
    }
}

#[test]
fn keys_of_gfd_are_rejected_and_other_keys_of_nvidia_are_not() {
    for (name, refused) in [
        ("gpu.present", true),
        ("gpu.product", true),
        ("gpu.count", true),
        ("gpu.replicas", true),
        ("gpu.sharing-strategy", true),
        ("gpu.memory", true),
        ("gpu.family", true),
        ("gpu.compute.major", true),
        ("gpu.machine", true),
        ("gpu.mode", true),
        ("gpu.clique", true),
        ("gpu.multiprocessors", true),
        ("gpu.slices.gi", true),
        ("gpu.engines.copy", true),
        ("mig.capable", true),
        ("mig.strategy", true),
        ("mig-1g.10gb.product", true),
        ("mps.capable", true),
        ("cuda.driver-version.full", true),
        ("cuda.driver.rev", true),
        ("vgpu.present", true),
        ("vgpu.host-driver-branch", true),
        ("gpu.deploy.device-plugin", false),
        ("gpu.model", false),
        ("mig.config", false),
        ("device-plugin.config", false),
    ] {
        let key = format!("nvidia.com/{name}");
        let spec = ClusterGpuPolicySpec {
            node_labels: vec![NodeLabel { key: key.clone(), value: None }],
            ..ClusterGpuPolicySpec::default()
        };
        let said = check_named("test", spec);
        assert_eq!(said.is_err(), refused, "{key}: {said:?}");
        assert_eq!(gpu_operator_crd::keys::is_discovered(&key), refused, "{key}");
    }
}

/// Returns a path with map keys as the rule engine in these tests writes them: `.key` instead of the API server's `[key]`.
fn dotted(path: &str) -> String {
    path.replace("[memory]", ".memory").replace("[zone]", ".zone")
}

#[test]
fn every_rule_has_an_invalid_policy() {
    let mut messages = BTreeSet::new();
    collect_messages(&SCHEMA["properties"]["spec"], &mut messages);
    let listed: BTreeSet<_> = REJECTED.by_rule.iter().map(|row| row.message.clone()).collect();
    assert_eq!(listed, messages);
}

fn collect_messages(schema: &Value, messages: &mut BTreeSet<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        messages.insert(rule["message"].as_str().expect("a message").to_owned());
    }
    let children =
        schema.as_object().into_iter().flat_map(|map| map.values()).chain(schema.as_array().into_iter().flatten());
    children.for_each(|child| collect_messages(child, messages));
}

#[test]
fn corrections_in_the_docs_are_accepted() {
    let rejected = REJECTED.by_rule.iter().chain(&REJECTED.by_type).map(|row| &row.write);
    for spec in rejected.chain(REJECTED.reported.iter().filter_map(|row| row.write.as_ref())) {
        check(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
}

#[test]
fn specs_that_are_invalid_only_for_some_nodes_are_accepted() {
    for Report { written: spec, .. } in &REJECTED.reported {
        check(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
}
