//! What a bundle contains of each kind of object: the fields in these lists, and nothing else. They are names, numbers, states and the
//! operator's own messages. Values of variables, arguments, URLs, third-party annotations and what other programs print are in none.

use gpu_operator_crd::keys;
use serde_json::{Map, Value};

/// The path of an object, and those of its fields that are contained with everything below them. `*` is any name; lists need none.
type Fields = &'static [(&'static str, &'static str)];

const META: Fields = &[(
    "metadata",
    "name namespace uid generation creationTimestamp deletionTimestamp finalizers labels ownerReferences",
)];

const POLICY: Fields = &[
    ("spec", "compatibility deletionPolicy health images models nodeLabels nodeSelector priority readiness rollout"),
    ("spec.podMetadata", "labels"),
    // Of the defaults and of the pools.
    ("spec.*", "foreignStack gpusPerNode health match name nodeLabels priorityClassName rollout tolerations"),
    ("spec.*.driver", "cloudInstaller container image preinstalled resources source version"),
    ("spec.*.driver.runFile", "installDir sha256"),
    ("spec.*.toolkit", "distribution hostPaths image injection installDir resources runtime runtimeClass setAsDefault"),
    ("spec.*.devicePlugin", "external flavor google image mig resources sharing"),
    ("spec.*.*.env", "name"),
    ("", "status"),
];

const GPU_NODE: Fields = &[
    ("", "spec"),
    (
        "status",
        "cdiDisabled conditions cuda deadline foreign gpus health hostRuntime message missingImage model observedGeneration \
         pastResourceNames phase progressingSince publishedLabels reason since validation waitsOn",
    ),
    (
        "status.report",
        "bootID bridges gpuPods loadedRuntimes machine os passedThrough passedThroughAt probeVersion runtimes seLinux toolkitFolder vgpu",
    ),
    (
        "status.report.driver",
        "configDigest containerRan cudaError cudaVersion holders inUse installed loadID loaded waits",
    ),
    (
        "status.report.gpus",
        "computeCapability deviceID fabricClique heldBy memoryMiB migCapable migDevices pciAddress pciClass product uuid",
    ),
    ("status.report.gpus.health", "action energyMark restartedAt since state"),
    ("status.report.gpus.health.causes", "count kind recovering severity since xid"),
    ("status.report.nvml", "gpus state"),
];

const NODE: Fields = &[
    ("spec", "taints unschedulable"),
    ("status", "allocatable capacity nodeInfo"),
    ("status.conditions", "type status reason lastHeartbeatTime lastTransitionTime"),
];

/// A Deployment or DaemonSet, without its template.
const WORKLOAD: Fields = &[
    ("spec", "minReadySeconds replicas revisionHistoryLimit selector strategy updateStrategy"),
    ("spec.template.metadata", "labels"),
    (
        "status",
        "availableReplicas currentNumberScheduled desiredNumberScheduled numberAvailable numberMisscheduled numberReady numberUnavailable \
         observedGeneration readyReplicas replicas unavailableReplicas updatedNumberScheduled updatedReplicas",
    ),
    ("status.conditions", "type status reason lastTransitionTime lastUpdateTime"),
];

/// The fields of a pod below `spec`, which a template of pods has, too. `*` is a kind of containers.
const POD_SPEC: Fields = &[
    ("spec", "hostNetwork hostPID nodeName nodeSelector priorityClassName serviceAccountName tolerations"),
    ("spec.*", "image imagePullPolicy name resources"),
    ("spec.*.env", "name"),
];

const POD: Fields = &[
    ("status", "phase reason startTime"),
    ("status.conditions", "type status reason lastTransitionTime"),
    ("status.*", "image imageID name ready restartCount started"),
    ("status.*.state.*", "exitCode finishedAt reason signal startedAt"),
    ("status.*.lastState.*", "exitCode finishedAt reason signal startedAt"),
];

const EVENT: Fields = &[
    (
        "",
        "action count eventTime firstTimestamp lastTimestamp reason reportingComponent reportingInstance series source type",
    ),
    ("involvedObject", "fieldPath kind name namespace uid"),
];

/// Returns the paths of the fields of a kind that are in the bundle. Of a kind that is not listed, there is none.
pub fn paths(kind: &str) -> Vec<String> {
    let own: &[Fields] = match kind {
        "ClusterGpuPolicy" => &[META, POLICY],
        "GpuNode" => &[META, GPU_NODE],
        "Node" => &[META, NODE],
        "Deployment" | "DaemonSet" => &[META, WORKLOAD],
        "Pod" => &[META, POD_SPEC, POD],
        "Event" => &[META, EVENT],
        _ => &[],
    };
    let mut paths: Vec<String> = own.iter().flat_map(|fields| of(fields, "")).collect();
    if own.contains(&WORKLOAD) {
        paths.extend(of(POD_SPEC, "spec.template."));
    }
    paths
}

fn of(fields: Fields, prefix: &'static str) -> impl Iterator<Item = String> {
    fields.iter().flat_map(move |(path, names)| {
        let path = if path.is_empty() { prefix.to_owned() } else { format!("{prefix}{path}.") };
        names.split_whitespace().map(move |name| format!("{path}{name}"))
    })
}

/// Returns what the bundle contains of an object of a kind.
pub fn picked(kind: &str, object: &Value) -> Value {
    let paths = paths(kind);
    let mut kept = pick(object, &paths.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_or_default();
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    let own: Map<_, _> = annotations
        .filter(|(key, _)| key.starts_with(keys::PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if !own.is_empty() {
        kept["metadata"]["annotations"] = own.into();
    }
    // Other components' messages may contain anything.
    if kind == "Event" && object["reportingComponent"] == keys::MANAGER {
        kept["message"] = object["message"].clone();
    }
    kept
}

fn pick(value: &Value, paths: &[&str]) -> Option<Value> {
    match value {
        _ if paths.is_empty() => None,
        Value::Object(fields) => {
            let kept = fields.iter().filter_map(|(name, value)| {
                let below = paths.iter().filter_map(|path| {
                    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
                    (first == name || first == "*").then_some(rest)
                });
                let below: Vec<&str> = below.collect();
                let kept = if below.contains(&"") { Some(value.clone()) } else { pick(value, &below) };
                Some((name.clone(), kept?))
            });
            Some(kept.collect())
        }
        Value::Array(items) => Some(items.iter().filter_map(|item| pick(item, paths)).collect()),
        _ => None,
    }
}
