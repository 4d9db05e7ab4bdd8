//! Findings from a pod's spec alone.

use super::*;

fn check(rows: &[(&str, &[Mistake])]) {
    for (spec, expected) in rows {
        assert_eq!(reasons(spec, &World::default()), *expected, "{spec}");
    }
}

#[test]
fn a_request_for_the_legacy_resource_gets_the_replacement() {
    check(&[
        (
            "{containers: [{name: c, resources: {limits: {alpha.kubernetes.io/nvidia-gpu: '1'}}}]}",
            &[Mistake::LegacyGpuResource],
        ),
        (
            "{containers: [{name: c, resources: {requests: {alpha.kubernetes.io/nvidia-gpu: '1'}}}]}",
            &[Mistake::LegacyGpuResource],
        ),
        ("{containers: [{name: c, resources: {limits: {alpha.kubernetes.io/nvidia-gpu: '0'}}}]}", &[]),
        ("{containers: [{name: c, resources: {limits: {example.com/nvidia-gpu: '1'}}}]}", &[]),
        ("{containers: [{name: c}]}", &[]),
    ]);
    let spec = "{containers: [{name: c, resources: {limits: {alpha.kubernetes.io/nvidia-gpu: '2'}}}]}";
    let message = &found(spec, &World::default())[0].1;
    assert!(message.contains("limits: {nvidia.com/gpu: 2}"), "{message}");
}

fn mounting(path: &str, more: &str) -> String {
    format!(
        "{{{more} containers: [{{name: c, volumeMounts: [{{name: v, mountPath: /x}}]}}], volumes: [{{name: v, hostPath: {{path: {path}}}}}]}}"
    )
}

#[test]
fn the_driver_of_the_host_is_recognized_by_its_paths() {
    for (path, expected) in [
        ("/usr/lib/nvidia-375", true),
        ("/usr/lib64/nvidia", true),
        ("/usr/lib64/nvidia/", true),
        ("/home/kubernetes/bin/nvidia/lib64", true),
        ("/var/lib/nvidia-docker/volumes/nvidia_driver/375.26", true),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.375.66", true),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", true),
        ("/usr/local/nvidia", true),
        ("/dev/nvidia0", true),
        ("/dev/nvidiactl", true),
        ("/dev/nvidia-caps-imex-channels", false),
        ("/usr/local/nvidia/toolkit", false),
        ("/usr/local/nvidia-tools", false),
        ("/usr/lib/x86_64-linux-gnu", false),
        ("/usr/lib", false),
        ("/dev", false),
        ("/dev/shm", false),
        ("/data/nvidia", false),
        ("/home/kubernetes/bin", false),
        ("/var/lib/nvidia-results", false),
    ] {
        let expected: &[Mistake] = if expected { &[Mistake::HostDriverMounted] } else { &[] };
        assert_eq!(reasons(&mounting(path, ""), &World::default()), expected, "{path}");
    }
}

#[test]
fn a_driver_volume_without_a_mount_is_ignored() {
    check(&[("{containers: [{name: c}], volumes: [{name: v, hostPath: {path: /dev/nvidia0}}]}", &[])]);
}

#[test]
fn node_components_may_mount_the_driver() {
    let equipment = mounting("/home/kubernetes/bin/nvidia", "priorityClassName: system-node-critical,");
    assert_eq!(reasons(&equipment, &World::default()), []);
    let mut installer = pod("p", &mounting("/home/kubernetes/bin/nvidia", ""));
    let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true}]);
    installer.metadata.owner_references = Some(serde_json::from_value(owner).unwrap());
    assert_eq!(diagnosed(&installer, &World::default()).findings, []);
}

#[test]
fn a_privileged_container_is_reported_as_such() {
    let spec = "{containers: [{name: c, securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /x}, {name: w, mountPath: /y}]}], volumes: [{name: v, hostPath: {path: /dev/nvidia0}}, {name: w, hostPath: {path: /usr/lib64/nvidia}}]}";
    let message = &found(spec, &World::default())[0].1;
    assert!(message.contains("privileged, mounts /dev/nvidia0 and 1 more"), "{message}");
}

#[test]
fn a_pod_that_selects_gpus_without_a_request_is_reported() {
    let env = |value: &str| format!("env: [{{name: NVIDIA_VISIBLE_DEVICES, value: {value}}}]");
    let all = env("all");
    for (spec, expected) in [
        (format!("{{containers: [{{name: c, {all}}}]}}"), true),
        (format!("{{containers: [{{name: c, {}}}]}}", env("\"0,1\"")), true),
        (format!("{{containers: [{{name: c, {}}}]}}", env("none")), false),
        (format!("{{containers: [{{name: c, {}}}]}}", env("void")), false),
        (format!("{{containers: [{{name: c, {}}}]}}", env("\"\"")), false),
        ("{containers: [{name: c, env: [{name: NVIDIA_VISIBLE_DEVICES, valueFrom: {configMapKeyRef: {name: m, key: k}}}]}]}".to_owned(), false),
        (format!("{{containers: [{{name: c, {all}, securityContext: {{privileged: true}}}}]}}"), false),
        (format!("{{priorityClassName: system-node-critical, containers: [{{name: c, {all}}}]}}"), false),
        (format!("{{resourceClaims: [{{name: gpu}}], containers: [{{name: c, {all}}}]}}"), false),
        (
            format!("{{nodeName: n, containers: [{{name: c, {all}}}, {{name: d, resources: {{limits: {{nvidia.com/gpu: '1'}}}}}}]}}"),
            false,
        ),
    ] {
        let expected: &[Mistake] = if expected { &[Mistake::GpuNotRequested] } else { &[] };
        assert_eq!(reasons(&spec, &World::default()), expected, "{spec}");
    }
}

#[test]
fn pods_that_do_not_involve_gpus_are_ignored() {
    for (spec, kept) in [
        ("{containers: [{name: c, resources: {limits: {cpu: '1'}}}]}", false),
        ("{containers: [{name: c}], volumes: [{name: v, hostPath: {path: /dev}}]}", false),
        ("{containers: [{name: c}], runtimeClassName: gvisor}", false),
        ("{containers: [{name: c}], runtimeClassName: nvidia}", true),
        ("{containers: [{name: c, resources: {limits: {nvidia.com/mig-1g.5gb: '1'}}}]}", true),
        // A third-party plugin's resource: what a node offers of it is unknown.
        ("{containers: [{name: c, resources: {limits: {nvidia.com/gpumem: '3000'}}}]}", false),
    ] {
        assert_eq!(pending::PendingPod::of(&pod("p", spec)).is_some(), kept, "{spec}");
    }
}

#[test]
fn messages_of_findings_are_bounded() {
    let mount = format!("volumeMounts: [{{name: v, mountPath: /m}}], name: c{}", "ä".repeat(3000));
    let spec = format!("{{containers: [{{{mount}}}], volumes: [{{name: v, hostPath: {{path: /dev/nvidia0}}}}]}}");
    assert_eq!(found(&spec, &World::default())[0].1.chars().count(), 1000);
}

#[test]
fn a_pod_that_is_being_deleted_is_ignored() {
    let mut leaving = pod("p", &mounting("/dev/nvidia0", ""));
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:30:00Z")).unwrap();
    assert_eq!(diagnosed(&leaving, &World::default()).findings, []);
}

#[test]
fn a_runtime_class_is_needed_only_where_plain_pods_get_no_gpu() {
    let asks = |more: &str| {
        format!("{{nodeName: old, {more} containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: '1'}}}}}}]}}")
    };
    let in_words = |toolkit: &str, runtime: &str, has_toolkit: bool, spec: &str| {
        let mut world = world(&format!("{{defaults: {{toolkit: {toolkit}}}}}"));
        node(&mut world, "old", "nvidia-tesla-t4", 8);
        edit(&mut world, "old", |node, _| {
            node.runtime = runtime.into();
            if has_toolkit {
                node.labels.insert("gpu.nodestack.dev/toolkit".into(), "t4-1".into());
            }
        });
        let found = found(spec, &world).into_iter().find(|(mistake, _)| *mistake == Mistake::RuntimeClassNotNamed);
        found.map(|(_, message)| message)
    };
    let (docker, class) = ("docker://27.0.3", "{setAsDefault: false, runtimeClass: gpu}");
    let message = in_words(class, docker, true, &asks("")).unwrap();
    assert!(
        message.ends_with("runtimeClassName: gpu, or remove toolkit.setAsDefault: false from the policy"),
        "{message}"
    );
    assert_eq!(in_words(class, docker, true, &asks("runtimeClassName: gpu,")), None);
    let unassigned = asks("").replace("nodeName: old,", "");
    assert_eq!(in_words(class, docker, true, &unassigned), None, "it may still be assigned to another node");
    assert_eq!(in_words(class, docker, true, "{nodeName: old, containers: [{name: c}]}"), None);
    assert_eq!(in_words(class, docker, false, &asks("")), None, "the toolkit is a third party's");
    for (toolkit, runtime) in [
        ("{}", docker),
        ("{}", "containerd://1.6.9"),
        ("{}", "containerd://1.7.27"),
        (class, "containerd://1.7.27"),
        (class, "containerd://2.1.4"),
    ] {
        assert_eq!(in_words(toolkit, runtime, true, &asks("")), None, "{toolkit} on {runtime}");
    }
}
