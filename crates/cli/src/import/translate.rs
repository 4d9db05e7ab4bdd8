//! From the objects of NVIDIA's operator to a policy and remarks.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    policy::{
        ClusterGpuPolicySpec, Compatibility, CompatibleLabels, Defaults, DriverConfigMaps, DriverSource, Images,
        PodMetadata, PullPolicy, PullSecret, Selector,
    },
    selector::{Operator, Requirement},
};
use gpu_operator_plan::catalogue::Catalogue;
use k8s_openapi::api::core::v1::NodeSelectorTerm;
use serde_json::{Value, json};

use super::{
    driver::{driver, folder_of_hosts, of_hosts},
    objects::{ConfigMaps, Objects},
    plugin,
    pools::{MOST, Nodes, plugin_with, pools},
    rollout::rollout,
    selector,
    source::{Remark, Source},
    toolkit::toolkit,
};

#[derive(Debug)]
pub struct Imported {
    pub policy: ClusterGpuPolicySpec,
    pub remarks: Vec<Remark>,
}

/// Operands that are installed only if they are enabled, or only for virtual machines.
const SWITCHED: [&str; 6] = ["dcgm", "dcgmExporter", "nodeStatusExporter", "migManager", "gds", "gdrcopy"];
const OF_MACHINES: [&str; 8] = [
    "vgpuManager",
    "vgpuDeviceManager",
    "vfioManager",
    "sandboxDevicePlugin",
    "kataSandboxDevicePlugin",
    "kataManager",
    "ccManager",
    "sandboxWorkloads",
];
/// Labels that Helm and NVIDIA's chart set on all objects.
const OF_CHART: [&str; 2] = ["app.kubernetes.io/managed-by", "helm.sh/chart"];

pub fn import(objects: Objects, catalogue: &Catalogue) -> Imported {
    let Objects { policies, drivers, config_maps, .. } = objects;
    let mut policies = policies.into_iter();
    let mut source = policies.next().unwrap_or_else(|| {
        let mut missing = Source::new("NVIDIADriver".to_owned(), json!({"driver": {"useNvidiaDriverCRD": true}}));
        missing.remark(
            &[],
            "No ClusterPolicy was read: toolkit, device plugin and all other settings have this operator's defaults.",
        );
        missing
    });
    let mut policy = ClusterGpuPolicySpec { node_selector: switched(&mut source), ..ClusterGpuPolicySpec::default() };
    let mut remarks = Vec::new();
    for ignored in policies {
        source.remark(&[], format!("{} is ignored, as NVIDIA's operator does: it is not the oldest.", ignored.object));
    }
    policy.compatibility = Compatibility { labels: gfd(&mut source) };
    let uses_objects = source.switch("driver.useNvidiaDriverCRD") == Some(true);
    if !uses_objects && source.is_off("driver") {
        // No driver is updated.
        source.take("driver.upgradePolicy");
    }
    policy.rollout = rollout(&mut source).unwrap_or_default();
    let mut images = Collected::default();
    if uses_objects {
        // Without effect: NVIDIADriver objects set the drivers.
        source.take("driver");
        policy.defaults.driver = of_hosts(None);
    } else if source.switch("driver.enabled") == Some(false) {
        source.take("driver");
        policy.defaults.driver = of_hosts(folder_of_hosts(&mut source));
    } else {
        images.take(&mut source, "driver");
        policy.defaults.driver = driver(&mut source, &config_maps, catalogue);
    }
    images.take(&mut source, "toolkit");
    images.take(&mut source, "devicePlugin");
    policy.defaults.toolkit = toolkit(&mut source);
    daemonsets(&mut source, &mut policy);
    let mut nodes = Vec::new();
    // The one without a selector sets the defaults, with which the others are compared.
    let (selecting, defaults): (Vec<_>, Vec<_>) = drivers
        .into_iter()
        .partition(|(_, driver)| driver.has("driver.nodeSelector") || driver.has("driver.nodeAffinity"));
    for (name, mut driver) in defaults.into_iter().chain(selecting) {
        if uses_objects {
            images.take(&mut driver, "driver");
            nodes.extend(nodes_of(&name, &mut driver, &config_maps, catalogue, &mut policy));
        } else {
            driver.take("driver");
            driver.remark(&[], "It has no effect, because driver.useNvidiaDriverCRD of the ClusterPolicy is false.");
        }
        remarks.extend(driver.remarks());
    }
    if uses_objects && policy.defaults.driver.source == Some(DriverSource::Preinstalled) {
        source.remark(
            &["driver.useNvidiaDriverCRD"],
            "No NVIDIADriver without a selector was read: nodes of no pool get no driver.",
        );
    }
    policy.images = images.images(&mut source);
    let of_configs = device_plugin(&mut source, nodes, &config_maps, &mut policy);
    let drivers = policy.pools.iter().filter_map(|pool| pool.driver.as_ref()).chain([&policy.defaults.driver]);
    let has_files = drivers.into_iter().any(|driver| driver.container.config_maps != DriverConfigMaps::default());
    if has_files || !policy.images.pull_secrets.is_empty() {
        source.remark(
            &[],
            "Secrets and ConfigMaps that the policy names are read in the namespace of this operator: copy them to it.",
        );
    }
    remarks.splice(0..0, source.remarks());
    remarks.extend(of_configs);
    Imported { policy, remarks }
}

/// Removes the components that are switched off, and returns the nodes that are not for virtual machines.
fn switched(source: &mut Source) -> Option<Selector> {
    for component in SWITCHED {
        if source.is_off(component) {
            source.take(component);
        }
    }
    if source.switch("sandboxWorkloads.enabled") != Some(true) {
        for component in OF_MACHINES {
            source.take(component);
        }
        return None;
    }
    source.remark(
        &["sandboxWorkloads.enabled"],
        "Virtual machines are not served: nodeSelector excludes their nodes. Keep NVIDIA's operator for them.",
    );
    let is_container = source.text("sandboxWorkloads.defaultWorkload").is_none_or(|workload| workload == "container");
    let (operator, values) = if is_container {
        (Operator::NotIn, vec!["vm-passthrough", "vm-vgpu"])
    } else {
        (Operator::In, vec!["container"])
    };
    let values = values.into_iter().map(str::to_owned).collect();
    let requirement = Requirement { key: "nvidia.com/gpu.workload.config".to_owned(), operator, values };
    Some(Selector { match_expressions: vec![requirement], ..Selector::default() })
}

fn gfd(source: &mut Source) -> Option<CompatibleLabels> {
    if source.is_off("gfd") {
        source.take("gfd");
        return None;
    }
    source.take("gfd.enabled");
    Some(CompatibleLabels::Gfd)
}

fn daemonsets(source: &mut Source, policy: &mut ClusterGpuPolicySpec) {
    let mut labels: BTreeMap<String, String> = source.typed("daemonsets.labels").unwrap_or_default();
    labels.retain(|key, _| !OF_CHART.contains(&key.as_str()));
    let annotations = source.typed("daemonsets.annotations").unwrap_or_default();
    policy.pod_metadata = PodMetadata { labels, annotations };
    let Defaults { tolerations, priority_class_name, .. } = &mut policy.defaults;
    *tolerations = source.typed("daemonsets.tolerations");
    *priority_class_name = source.text("daemonsets.priorityClassName").filter(|class| class != "system-node-critical");
}

/// Sets the device plugin and the pools, and returns the remarks on configurations.
fn device_plugin(
    source: &mut Source,
    nodes: Vec<Nodes>,
    config_maps: &ConfigMaps,
    policy: &mut ClusterGpuPolicySpec,
) -> Vec<Remark> {
    let plugin = plugin::plugin(source);
    let (mut configs, remarks) = plugin::configs(source, config_maps);
    let mut layouts = plugin::layouts(source, config_maps);
    configs.remove_default();
    layouts.remove_default();
    let of_drivers = nodes.iter().filter(|nodes| !nodes.is_kept).count() + 1;
    if of_drivers * (configs.named.len() + 1) * (layouts.named.len() + 1) > MOST {
        let names: Vec<_> = layouts.named.drain(..).map(|(name, _)| name).collect();
        let text = format!(
            "A policy has at most {MOST} pools, so GPUs keep their MIG devices. Write pools for those of these layouts that nodes use: {}.",
            names.join(", ")
        );
        source.remark(&["migManager.config.name"], text);
        layouts.default = None;
    }
    let (of_defaults, problem) = plugin_with(&plugin, configs.default.as_ref(), layouts.default.as_ref());
    if let Some(problem) = problem {
        source.remark(&[], format!("Nodes without the labels of configurations: {problem}."));
    }
    policy.defaults.device_plugin = of_defaults;
    policy.pools = pools(source, nodes, &plugin, &configs, &layouts);
    if policy.pools.len() > MOST {
        source.remark(
            &[],
            format!("The policy has {} pools. At most {MOST} are allowed: write several policies.", policy.pools.len()),
        );
    }
    remarks
}

/// Translates an `NVIDIADriver` to what it sets for each of its selectors. One without a selector sets the defaults.
fn nodes_of(
    name: &str,
    source: &mut Source,
    config_maps: &ConfigMaps,
    catalogue: &Catalogue,
    policy: &mut ClusterGpuPolicySpec,
) -> Vec<Nodes> {
    const TERMS: &str = "driver.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let labels = source.typed("driver.nodeSelector").unwrap_or_default();
    source.take("driver.default");
    let terms: Vec<NodeSelectorTerm> = source.typed(TERMS).unwrap_or_default();
    let terms = if terms.is_empty() { vec![NodeSelectorTerm::default()] } else { terms };
    let selectors: Vec<_> = terms.iter().map(|term| selector::of_term(&labels, term)).collect();
    if selectors.contains(&None) {
        source.remark(&[TERMS], "A pool selects nodes by labels, with In, NotIn, Exists and DoesNotExist. A term with others is left out: its nodes belong to other pools.");
    }
    for member in ["labels", "annotations"] {
        let path = format!("driver.{member}");
        let mut own: BTreeMap<String, String> = source.typed(&path).unwrap_or_default();
        let all = if member == "labels" { &policy.pod_metadata.labels } else { &policy.pod_metadata.annotations };
        own.retain(|key, value| !OF_CHART.contains(&key.as_str()) && all.get(key) != Some(value));
        if !own.is_empty() {
            source.remark(
                &[&path],
                format!("Pods of all pools have the same {member}: write them to podMetadata.{member}."),
            );
        }
    }
    let is_kept =
        source.has("driver.driverType") && source.typed::<String>("driver.driverType").as_deref() != Some("gpu");
    let driver = if is_kept {
        source.remark(
            &["driver.driverType"],
            "vGPU is not served: nothing is installed on these nodes. Keep NVIDIA's operator for them.",
        );
        source.take("driver");
        of_hosts(None)
    } else {
        driver(source, config_maps, catalogue)
    };
    let rollout = rollout(source).filter(|rollout| *rollout != policy.rollout);
    let tolerations =
        source.typed("driver.tolerations").filter(|own| Some(own) != policy.defaults.tolerations.as_ref());
    let priority_class_name = source.text("driver.priorityClassName").filter(|class| class != "system-node-critical");
    let mut all = Vec::new();
    for selector in selectors.into_iter().flatten() {
        if selector != Selector::default() || is_kept {
            let (driver, rollout, tolerations) = (Some(driver.clone()), rollout.clone(), tolerations.clone());
            let (name, priority_class_name) = (name.to_owned(), priority_class_name.clone());
            all.push(Nodes { name, selector, driver, rollout, tolerations, priority_class_name, is_kept });
        } else if policy.defaults.driver.source == Some(DriverSource::Preinstalled) {
            let defaults = &mut policy.defaults;
            defaults.driver = driver.clone();
            defaults.tolerations = tolerations.clone().or(defaults.tolerations.take());
            defaults.priority_class_name = priority_class_name.clone().or(defaults.priority_class_name.take());
            policy.rollout = rollout.clone().unwrap_or_else(|| policy.rollout.clone());
        } else {
            source.remark(&[], "It is left out: another NVIDIADriver without a selector sets the defaults.");
        }
    }
    all
}

/// What all images of a policy have in common, but each component of NVIDIA's operator has by itself.
#[derive(Debug, Default)]
struct Collected {
    secrets: Vec<String>,
    /// The paths that set a policy, by policy.
    policies: BTreeMap<String, Vec<String>>,
}

impl Collected {
    fn take(&mut self, source: &mut Source, component: &str) {
        for secret in source.typed::<Vec<String>>(&format!("{component}.imagePullSecrets")).into_iter().flatten() {
            if !self.secrets.contains(&secret) {
                self.secrets.push(secret);
            }
        }
        let path = format!("{component}.imagePullPolicy");
        if let Some(policy) = source.text(&path) {
            self.policies.entry(policy).or_default().push(source.shown(&path));
        }
    }

    fn images(self, source: &mut Source) -> Images {
        let pull_secrets: Vec<_> = self.secrets.into_iter().map(|name| PullSecret { name }).collect();
        let mut policies = self.policies.into_iter();
        let pull_policy = match (policies.next(), policies.next()) {
            (Some((policy, paths)), None) => {
                let parsed = serde_json::from_value::<PullPolicy>(Value::String(policy.clone()));
                if parsed.is_err() {
                    let paths: Vec<_> = paths.iter().map(String::as_str).collect();
                    source.remark(&paths, format!("{policy} is no pull policy: write images.pullPolicy."));
                }
                parsed.ok().filter(|policy| *policy != PullPolicy::IfNotPresent)
            }
            (Some((first, paths)), Some((second, others))) => {
                let paths: Vec<_> = paths.iter().chain(&others).map(String::as_str).collect();
                source.remark(
                    &paths,
                    format!(
                        "All images have one pull policy, and these are {first} and {second}: write images.pullPolicy."
                    ),
                );
                None
            }
            _ => None,
        };
        Images { pull_secrets, pull_policy, ..Images::default() }
    }
}
