//! What `import` reads: objects of NVIDIA's operator and the ConfigMaps that they name, or the values of NVIDIA's chart.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::source::Source;

/// The data of ConfigMaps, by name.
pub type ConfigMaps = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug, Default)]
pub struct Objects {
    pub policies: Vec<Source>,
    /// The `NVIDIADriver` objects by name, with their fields below `driver`.
    pub drivers: Vec<(String, Source)>,
    pub config_maps: ConfigMaps,
    /// The kinds of all other objects.
    pub others: BTreeSet<String>,
}

/// The fields that name a ConfigMap whose content decides.
const CONFIG_MAPS: [&str; 6] = [
    "devicePlugin.config.name",
    "migManager.config.name",
    "driver.kernelModuleConfig.name",
    "driver.repoConfig.configMapName",
    "driver.repoConfig.name",
    "driver.certConfig.name",
];

/// The values of NVIDIA's chart, as if they were a `ClusterPolicy`.
const VALUES: &str = "values";

impl Objects {
    /// Sorts objects, and those in lists of them.
    pub fn of(documents: Vec<Value>) -> Self {
        let mut all = Vec::new();
        for document in documents {
            match document["items"].as_array().filter(|_| kind(&document).ends_with("List")) {
                Some(items) => all.extend(items.iter().cloned()),
                None => all.push(document),
            }
        }
        // Of several ClusterPolicies NVIDIA's operator follows the oldest.
        let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        all.sort_by_key(|object| (text(object, "creationTimestamp"), text(object, "name")));
        let mut objects = Self::default();
        for mut object in all {
            let (name, kind) = (text(&object, "name"), kind(&object).to_owned());
            let is_of_nvidia = object["apiVersion"].as_str().is_some_and(|version| version.starts_with("nvidia.com/"));
            let spec = object["spec"].take();
            match kind.as_str() {
                "ClusterPolicy" if is_of_nvidia => objects.policies.push(Source::new(format!("{kind} {name}"), spec)),
                "NVIDIADriver" if is_of_nvidia => {
                    let source = Source::new(format!("{kind} {name}"), below_driver(spec));
                    objects.drivers.push((name, source));
                }
                "ConfigMap" => {
                    let data = BTreeMap::deserialize(&object["data"]).unwrap_or_default();
                    objects.config_maps.insert(name, data);
                }
                _ => drop(objects.others.insert(kind)),
            }
        }
        objects
    }

    /// Translates the chart's values to what the chart would make of them.
    pub fn of_values(mut values: Map<String, Value>) -> Self {
        let mut objects = Self::default();
        for component in ["devicePlugin", "migManager"] {
            let mut fields = taken(&mut values, component);
            let mut config = taken(&mut fields, "config");
            objects.take_config_map(component, &mut config);
            fields.insert("config".to_owned(), config.into());
            values.insert(component.to_owned(), fields.into());
        }
        let mut mig = taken(&mut values, "mig");
        mig.entry("strategy").or_insert_with(|| "single".into());
        values.insert("mig".to_owned(), mig.into());
        let mut driver = taken(&mut values, "driver");
        let mut upgrades = taken(&mut driver, "upgradePolicy");
        if let Some(value) = upgrades.remove("gpuPodDeletion") {
            upgrades.insert("podDeletion".to_owned(), value);
        }
        driver.insert("upgradePolicy".to_owned(), upgrades.into());
        let crd = taken(&mut driver, "nvidiaDriverCRD");
        if crd.get("enabled") == Some(&Value::Bool(true)) {
            let enabled = driver.remove("enabled").unwrap_or_default();
            values.insert("driver".to_owned(), json!({"enabled": enabled, "useNvidiaDriverCRD": true}));
            if crd.get("deployDefaultCR") != Some(&Value::Bool(false)) {
                let of_crd = crd.into_iter().filter(|(name, _)| name == "driverType" || name == "nodeSelector");
                driver.extend(of_crd);
                objects.drivers.push(("default".to_owned(), Source::new(VALUES.to_owned(), json!({"driver": driver}))));
            }
        } else {
            values.insert("driver".to_owned(), driver.into());
        }
        objects.policies.push(Source::new(VALUES.to_owned(), values.into()));
        objects
    }

    /// Takes a ConfigMap that the chart creates.
    fn take_config_map(&mut self, component: &str, config: &mut Map<String, Value>) {
        let data = config.remove("data").unwrap_or_default();
        if config.remove("create") != Some(Value::Bool(true)) {
            return;
        }
        let name =
            config.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()).unwrap_or(component).to_owned();
        config.insert("name".to_owned(), name.clone().into());
        self.config_maps.insert(name, BTreeMap::deserialize(&data).unwrap_or_default());
    }

    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.drivers.is_empty()
    }

    /// Returns the names of the ConfigMaps that objects name.
    pub fn config_map_names(&self) -> BTreeSet<String> {
        let sources = self.policies.iter().chain(self.drivers.iter().map(|(_, source)| source));
        sources.flat_map(|source| CONFIG_MAPS.iter().filter_map(|path| source.named(path))).collect()
    }
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// Takes an object out of an object.
fn taken(object: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match object.remove(name) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Returns the fields of an `NVIDIADriver` where a `ClusterPolicy` has them.
fn below_driver(spec: Value) -> Value {
    let Value::Object(mut driver) = spec else { return Value::Null };
    let mut fields: Map<_, _> = ["gds", "gdrcopy"].into_iter().filter_map(|name| driver.remove_entry(name)).collect();
    fields.insert("driver".to_owned(), driver.into());
    fields.into()
}
