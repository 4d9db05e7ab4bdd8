//! The device plugin: `devicePlugin` and `mig`, and the configurations in ConfigMaps of the plugin and of the MIG manager, which nodes
//! choose by a label.

use std::collections::BTreeMap;

use gpu_operator_crd::policy::{
    DevicePlugin, Mig, MigLayoutEntry, MigMode, MigProfile, MigStrategy, Mps, PluginFlavor, Sharing, TimeSlicing,
};
use gpu_operator_plan::desired::images;
use k8s_openapi::api::core::v1::EnvVar;
use serde::Deserialize;
use serde_json::Value;

use super::{
    driver::operand,
    objects::ConfigMaps,
    source::{Remark, Source},
    toolkit::tagged,
};

/// A configuration of the plugin.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    pub sharing: Sharing,
    pub strategy: Option<MigStrategy>,
    pub env: Vec<EnvVar>,
}

/// The configurations of a kind, and the one of nodes without a label.
#[derive(Debug)]
pub struct Configs<T> {
    pub named: Vec<(String, T)>,
    pub default: Option<T>,
}

impl<T: PartialEq> Configs<T> {
    /// Removes those that nodes have without the label, too.
    pub fn remove_default(&mut self) {
        let default = &self.default;
        self.named.retain(|(_, config)| default.as_ref() != Some(config));
    }
}

/// A layout of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub mode: Option<MigMode>,
    pub entries: Vec<MigLayoutEntry>,
}

const UNKNOWN: &str =
    "The device plugin gets no configuration file. If there is a variable for this, write it to devicePlugin.env.";

pub fn plugin(source: &mut Source) -> DevicePlugin {
    if source.switch("devicePlugin.enabled") == Some(false) {
        source.take("devicePlugin");
        return DevicePlugin { flavor: Some(PluginFlavor::External), ..DevicePlugin::default() };
    }
    let mut plugin = DevicePlugin { operand: operand(source, "devicePlugin"), ..DevicePlugin::default() };
    plugin.operand.image = tagged(source, "devicePlugin", images::DEVICE_PLUGIN.0);
    plugin.mig = source.text("mig.strategy").and_then(|text| {
        let strategy = strategy(&text);
        if strategy.is_none() {
            source.remark(
                &["mig.strategy"],
                format!("{text} is no strategy: write devicePlugin.mig.strategy, None, Single or Mixed."),
            );
        }
        strategy
            .filter(|strategy| *strategy != MigStrategy::None)
            .map(|strategy| Mig { strategy: Some(strategy), ..Mig::default() })
    });
    plugin
}

fn strategy(text: &str) -> Option<MigStrategy> {
    [MigStrategy::None, MigStrategy::Single, MigStrategy::Mixed].into_iter().find(|strategy| strategy.as_str() == text)
}

/// Returns the configurations of the plugin, and remarks on them.
pub fn configs(source: &mut Source, config_maps: &ConfigMaps) -> (Configs<Config>, Vec<Remark>) {
    let mut configs = Configs { named: Vec::new(), default: None };
    let default = source.text("devicePlugin.config.default");
    let mut remarks = Vec::new();
    let Some(name) = source.text("devicePlugin.config.name") else {
        if default.is_some() {
            source.remark(
                &["devicePlugin.config.default"],
                "It has no effect without a ConfigMap in devicePlugin.config.name.",
            );
        }
        return (configs, remarks);
    };
    let paths = ["devicePlugin.config.name", "devicePlugin.config.default"];
    let Some(data) = config_maps.get(&name) else {
        let text = format!(
            "ConfigMap {name} was not read. Add it to the file, or write devicePlugin.sharing, in a pool for each value of label \
             nvidia.com/device-plugin.config."
        );
        source.remark(&paths, text);
        return (configs, remarks);
    };
    for (key, text) in data {
        let object = format!("ConfigMap {name}, key {key}");
        let Ok(fields) = serde_yaml::from_str::<Value>(text) else {
            source.remark(&paths[..1], format!("{object} is not valid YAML."));
            continue;
        };
        let mut of_key = Source::of_config(object, fields, UNKNOWN);
        configs.named.push((key.clone(), config(&mut of_key)));
        remarks.extend(of_key.remarks());
    }
    configs.default = default.and_then(|default| {
        let found = configs.named.iter().find(|(key, _)| *key == default).map(|(_, config)| config.clone());
        if found.is_none() {
            source.remark(&paths[1..], format!("ConfigMap {name} has no key {default}."));
        }
        found
    });
    (configs, remarks)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shared {
    name: String,
    replicas: u32,
    rename: Option<String>,
    devices: Option<Value>,
}

fn config(source: &mut Source) -> Config {
    source.take("version");
    let mut config =
        Config { strategy: source.text("flags.migStrategy").as_deref().and_then(strategy), ..Config::default() };
    for (path, name) in [
        ("flags.failOnInitError", "FAIL_ON_INIT_ERROR"),
        ("flags.plugin.passDeviceSpecs", "PASS_DEVICE_SPECS"),
        ("flags.plugin.deviceIDStrategy", "DEVICE_ID_STRATEGY"),
    ] {
        let value = source.take(path).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        config.env.extend(value.map(|value| EnvVar { name: name.to_owned(), value: Some(value), value_from: None }));
    }
    let rename = |source: &mut Source, kind: &str| source.switch(&format!("sharing.{kind}.renameByDefault"));
    if let Some((replicas, is_renamed)) = shared(source, "timeSlicing") {
        let rename_by_default = rename(source, "timeSlicing").or(is_renamed);
        let fail_requests_greater_than_one = source.switch("sharing.timeSlicing.failRequestsGreaterThanOne");
        config.sharing.time_slicing = Some(TimeSlicing { replicas, rename_by_default, fail_requests_greater_than_one });
    } else if let Some((replicas, is_renamed)) = shared(source, "mps") {
        // Without effect: MPS rejects such requests in any case.
        source.take("sharing.mps.failRequestsGreaterThanOne");
        config.sharing.mps = Some(Mps { replicas, rename_by_default: rename(source, "mps").or(is_renamed) });
    }
    config
}

/// Takes the number of replicas, which is one for all resources in a policy, and whether they are renamed.
fn shared(source: &mut Source, kind: &str) -> Option<(u32, Option<bool>)> {
    let path = format!("sharing.{kind}.resources");
    let resources: Vec<Shared> = source.typed(&path)?;
    let chosen = resources.iter().find(|shared| shared.name == "nvidia.com/gpu").or(resources.first())?;
    if resources.iter().any(|shared| shared.replicas != chosen.replicas) {
        source.remark(&[&path], format!("A policy has one number of replicas for all resources: {}.", chosen.replicas));
    }
    if resources.iter().any(|shared| shared.devices.as_ref().is_some_and(|devices| devices != "all")) {
        source.remark(&[&path], "All GPUs of a node are shared, without a choice of devices.");
    }
    let renamed = resources.iter().filter_map(|shared| Some((&shared.name, shared.rename.as_ref()?)));
    let (own, other): (Vec<_>, Vec<_>) = renamed.partition(|(name, rename)| **rename == format!("{name}.shared"));
    if !other.is_empty() {
        source.remark(
            &[&path],
            "A shared resource can only be renamed to its name with .shared: write renameByDefault: true.",
        );
    }
    (chosen.replicas > 1).then_some((chosen.replicas, (!own.is_empty()).then_some(true)))
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct MigFile {
    mig_configs: BTreeMap<String, Vec<MigEntry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct MigEntry {
    devices: Value,
    #[serde(default)]
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: BTreeMap<String, u32>,
    device_filter: Option<Value>,
}

/// Returns the layouts of the MIG manager.
pub fn layouts(source: &mut Source, config_maps: &ConfigMaps) -> Configs<Layout> {
    const NAME: &str = "migManager.config.name";
    const DEFAULT: &str = "migManager.config.default";
    let (name, default) = (source.text(NAME), source.text(DEFAULT));
    let mut layouts = Configs { named: Vec::new(), default: None };
    if name.is_none() && default.is_none() {
        return layouts;
    }
    let data = name.as_ref().and_then(|name| config_maps.get(name)?.get("config.yaml"));
    let file = data.and_then(|text| serde_yaml::from_str::<MigFile>(text).ok());
    let Some(file) = file else {
        let paths: &[&str] = if name.is_some() { &[NAME, DEFAULT] } else { &[DEFAULT] };
        let what = name
            .map_or_else(String::new, |name| format!("ConfigMap {name} was not read, or has no valid config.yaml. "));
        let text = format!(
            "{what}GPUs keep their MIG devices. To repartition them, write devicePlugin.mig.layout, in a pool for each value of label nvidia.com/mig.config."
        );
        source.remark(paths, text);
        return layouts;
    };
    for (name, entries) in file.mig_configs {
        match layout(&entries) {
            Ok(layout) => layouts.named.push((name, layout)),
            Err(why) => {
                source.remark(&[NAME], format!("GPUs of nodes with layout {name} keep their MIG devices: {why}."));
                layouts.named.push((name, Layout { mode: None, entries: Vec::new() }));
            }
        }
    }
    let of_default =
        |default: &String| layouts.named.iter().find(|(name, _)| name == default).map(|(_, layout)| layout.clone());
    layouts.default = default.as_ref().and_then(of_default);
    if let Some(default) = default.filter(|_| layouts.default.is_none()) {
        source.remark(&[DEFAULT], format!("There is no layout {default} that can be translated: nodes without label nvidia.com/mig.config keep their MIG devices."));
    }
    layouts
}

fn layout(entries: &[MigEntry]) -> Result<Layout, &'static str> {
    let mut layout = Vec::new();
    for entry in entries {
        if entry.device_filter.is_some() {
            return Err("device-filter has no counterpart; write a pool for each model, with match.models");
        }
        let devices = match &entry.devices {
            Value::String(all) if all == "all" => Vec::new(),
            devices => Vec::deserialize(devices).map_err(|_| "devices is neither all nor a list of indices")?,
        };
        // MIG is disabled on GPUs without an entry.
        if entry.mig_enabled && !entry.mig_devices.is_empty() {
            let profiles =
                entry.mig_devices.iter().map(|(profile, &count)| MigProfile { profile: profile.clone(), count });
            layout.push(MigLayoutEntry { devices, profiles: profiles.collect() });
        } else if entry.mig_enabled {
            return Err("it enables MIG without MIG devices");
        }
    }
    let mode = layout.is_empty().then_some(MigMode::Disabled);
    Ok(Layout { mode, entries: layout })
}
