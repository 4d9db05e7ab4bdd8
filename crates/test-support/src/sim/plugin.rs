//! Device plugins: the resources that they offer, according to the template of their pod.

use std::collections::BTreeMap;

use gpu_operator_common::mig_layout::MigLayout;
use gpu_operator_crd::{
    Report,
    report::{Gpu, MigAttributes, MigDevices},
};
use gpu_operator_plan::world::Resources;
use k8s_openapi::{api::core::v1::PodSpec, apimachinery::pkg::api::resource::Quantity};
use serde_json::Value;

/// Returns the resources that this operator's device plugin offers for the GPUs that it finds.
pub fn offered(template: &PodSpec, machine: &Report, seen: u32) -> Resources {
    let file = file(template);
    let main = &template.containers[0];
    let strategy = main.env.iter().flatten().find(|env| env.name == "MIG_STRATEGY");
    let strategy = strategy.and_then(|env| env.value.as_deref()).unwrap_or("none");
    let mut found: BTreeMap<String, u32> = BTreeMap::new();
    for gpu in machine.gpus.iter().take(seen as usize) {
        for (name, count) in devices(gpu, strategy) {
            *found.entry(name).or_default() += count;
        }
    }
    // The plugin also registers GPUs that have disappeared with kubelet.
    if found.is_empty() && machine.gpus.is_empty() {
        found.insert("nvidia.com/gpu".into(), 0);
    }
    found.into_iter().map(|(name, count)| shared(&file, name, count)).collect()
}

/// Returns the resources as a Node's status lists them, where the API server writes quantities in their shortest form.
pub fn published(offered: &Resources) -> Resources {
    let shortest = |mut amount: u32| {
        let mut suffixes = ["", "k", "M", "G"].into_iter();
        let mut suffix = suffixes.next().unwrap_or_default();
        while amount > 0 && amount.is_multiple_of(1000) {
            (amount, suffix) = (amount / 1000, suffixes.next().expect("u32 ends before T"));
        }
        Quantity(format!("{amount}{suffix}"))
    };
    let status = offered.names().map(|name| (name.to_string(), shortest(offered.amount(name)))).collect();
    Resources::of(&status)
}

/// Returns the number of pods that share a GPU, according to the template of a plugin's pod.
pub fn replicas(template: &PodSpec) -> u32 {
    shared(&file(template), "nvidia.com/gpu".into(), 1).1
}

/// Returns the devices of a GPU, by the resource names of NVIDIA's plugin.
fn devices(gpu: &Gpu, strategy: &str) -> Vec<(String, u32)> {
    let Some(mig) = gpu.mig_devices.as_ref().filter(|_| strategy != "none") else {
        return vec![("nvidia.com/gpu".into(), 1)];
    };
    let name = |profile: &str| match strategy {
        "mixed" => format!("nvidia.com/mig-{}", profile.replace('+', ".")),
        _ => "nvidia.com/gpu".to_owned(),
    };
    mig.iter().map(|MigDevices { profile, count, .. }| (name(profile), *count)).collect()
}

/// Returns a resource and its amount as the plugin's configuration file shares it.
fn shared(file: &Value, name: String, count: u32) -> (String, u32) {
    if let Some(clients) = file["GPUSharingConfig"]["MaxSharedClientsPerGPU"].as_u64() {
        return (name, count * u32::try_from(clients).expect("few"));
    }
    let sharing = ["timeSlicing", "mps"].map(|kind| &file["sharing"][kind]);
    let Some(sharing) = sharing.into_iter().find(|sharing| sharing.is_object()) else {
        return (name, count);
    };
    let resources = sharing["resources"].as_array().expect("resources");
    let Some(resource) = resources.iter().find(|resource| resource["name"] == name.as_str()) else {
        return (name, count);
    };
    let replicas = u32::try_from(resource["replicas"].as_u64().expect("replicas")).expect("few");
    let renamed = sharing["renameByDefault"].as_bool().unwrap_or_default();
    (if renamed { format!("{name}.shared") } else { name }, count * replicas)
}

/// Returns the plugin's configuration file, which an init container writes.
fn file(template: &PodSpec) -> Value {
    let args = template.init_containers.iter().flatten().filter_map(|init| init.args.as_ref());
    let written = args.filter(|args| args.first().is_some_and(|first| first == "write")).find_map(|args| args.get(2));
    written.map_or(Value::Null, |text| serde_json::from_str(text).expect("JSON"))
}

/// Returns the MIG layout that a plugin's pod applies before the plugin starts.
pub fn layout(template: &PodSpec) -> Option<MigLayout> {
    let partitioner = template.init_containers.iter().flatten().find(|init| init.name == "divide-gpus")?;
    let text = partitioner.args.iter().flatten().skip_while(|arg| *arg != "--layout").nth(1);
    text.map(|text| serde_json::from_str(text).expect("a layout"))
}

/// Returns these GPUs with a MIG layout.
pub fn partitioned(gpus: &[Gpu], layout: &MigLayout) -> Vec<Gpu> {
    let mut gpus = gpus.to_vec();
    for (index, gpu) in (0..).zip(&mut gpus) {
        let devices = layout.of_gpu(index).iter().map(|(profile, count)| MigDevices {
            profile: profile.clone(),
            count: *count,
            attributes: Some(MigAttributes::default()),
        });
        gpu.mig_devices = Some(devices.collect()).filter(|devices: &Vec<_>| !devices.is_empty());
    }
    gpus
}

pub fn waits_for(template: &PodSpec, stage: &str) -> bool {
    let args = template.init_containers.iter().flatten().filter_map(|init| init.args.as_ref());
    args.into_iter().any(|args| args.iter().take(2).eq(["wait", stage]))
}
