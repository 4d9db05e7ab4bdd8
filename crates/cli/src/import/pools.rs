//! Pools: one for each combination of an `NVIDIADriver`, a configuration of the plugin and a MIG layout, because a node can have a label
//! for each.

use std::collections::BTreeMap;

use gpu_operator_crd::policy::{
    DevicePlugin, Driver, Injection, Mig, MigStrategy, PluginFlavor, Pool, PoolMatch, RolloutStrategy, Selector,
    Toolkit,
};
use k8s_openapi::api::core::v1::Toleration;

use super::{
    plugin::{Config, Configs, Layout},
    source::Source,
};

/// The number of pools that a policy can have.
pub const MOST: usize = 32;
const LONGEST_NAME: usize = 40;

/// What an `NVIDIADriver` sets for its nodes.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    pub name: String,
    pub selector: Selector,
    pub driver: Option<Driver>,
    pub rollout: Option<RolloutStrategy>,
    pub tolerations: Option<Vec<Toleration>>,
    pub priority_class_name: Option<String>,
    /// Whether NVIDIA's operator is kept for these nodes.
    pub is_kept: bool,
}

/// Returns the plugin with a configuration and a layout, and what of them it cannot have.
pub fn plugin_with(
    plugin: &DevicePlugin,
    config: Option<&Config>,
    layout: Option<&Layout>,
) -> (DevicePlugin, Option<&'static str>) {
    let mut plugin = plugin.clone();
    let mut problem = None;
    let config = config.cloned().unwrap_or_default();
    plugin.sharing = config.sharing;
    plugin.operand.env.retain(|variable| config.env.iter().all(|other| other.name != variable.name));
    plugin.operand.env.extend(config.env);
    let mut mig = plugin.mig.take().unwrap_or_default();
    mig.strategy = config.strategy.or(mig.strategy).filter(|strategy| *strategy != MigStrategy::None);
    if plugin.sharing.mps.is_some() {
        if mig.strategy == Some(MigStrategy::Mixed) {
            problem = Some("MPS does not support mig.strategy Mixed, so the strategy is left out");
            mig.strategy = None;
        }
        if layout.is_some_and(|layout| !layout.entries.is_empty()) {
            problem = Some("MPS and MIG exclude each other, so the layout is left out");
        }
    } else if let Some(layout) = layout {
        let is_simple = matches!(&layout.entries[..], [only] if only.devices.is_empty() && only.profiles.len() == 1);
        match mig.strategy {
            _ if layout.entries.is_empty() => mig.mode = layout.mode,
            None => problem = Some("a layout needs mig.strategy Single or Mixed, so it is left out"),
            Some(MigStrategy::Single) if !is_simple => {
                problem = Some("strategy Single supports only one profile, on all GPUs, so the layout is left out");
            }
            Some(_) => mig.layout.clone_from(&layout.entries),
        }
    }
    plugin.mig = (mig != Mig::default()).then_some(mig);
    (plugin, problem)
}

/// Returns the pools, those with more labels first.
pub fn pools(
    source: &mut Source,
    nodes: Vec<Nodes>,
    plugin: &DevicePlugin,
    configs: &Configs<Config>,
    layouts: &Configs<Layout>,
) -> Vec<Pool> {
    let mut pools: Vec<Pool> = Vec::new();
    let mut problems: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let (kept, others): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|nodes| nodes.is_kept);
    // The one that selects all nodes is the last, and leaves none for further pools.
    let (all, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(|nodes| nodes.selector == Selector::default());
    for nodes in kept {
        keep(&mut pools, nodes);
    }
    let of_labels = all.is_empty().then(Nodes::default);
    for nodes in others.into_iter().chain(of_labels) {
        let of_configs = configs.named.iter().map(Some).chain([None]);
        for (config, layout) in of_configs
            .flat_map(|config| layouts.named.iter().map(Some).chain([None]).map(move |layout| (config, layout)))
        {
            let labels = [
                config.map(|(name, _)| ("nvidia.com/device-plugin.config", name.as_str())),
                layout.map(|(name, _)| ("nvidia.com/mig.config", name.as_str())),
            ];
            let labels: Vec<_> = labels.into_iter().flatten().collect();
            if labels.is_empty() {
                if !nodes.name.is_empty() {
                    add(&mut pools, &[], nodes.clone(), None);
                }
                continue;
            }
            let config = config.map(|(_, config)| config).or(configs.default.as_ref());
            let layout = layout.map(|(_, layout)| layout).or(layouts.default.as_ref());
            let (plugin, problem) = plugin_with(plugin, config, layout);
            add(&mut pools, &labels, nodes.clone(), Some(plugin));
            if let Some((problem, pool)) = problem.zip(pools.last()) {
                problems.entry(problem).or_default().push(pool.name.to_string());
            }
        }
    }
    for nodes in all {
        keep(&mut pools, nodes);
    }
    for (problem, of_pools) in problems {
        source.remark(&[], format!("Pools {}: {problem}.", of_pools.join(", ")));
    }
    pools
}

/// Adds a pool in which nothing is installed.
fn keep(pools: &mut Vec<Pool>, nodes: Nodes) {
    let external = DevicePlugin { flavor: Some(PluginFlavor::External), ..DevicePlugin::default() };
    add(pools, &[], nodes, Some(external));
    if let Some(pool) = pools.last_mut() {
        pool.toolkit = Some(Toolkit { injection: Some(Injection::None), ..Toolkit::default() });
    }
}

fn add(pools: &mut Vec<Pool>, labels: &[(&str, &str)], nodes: Nodes, plugin: Option<DevicePlugin>) {
    let Nodes { name, mut selector, driver, rollout, tolerations, priority_class_name, .. } = nodes;
    let parts: Vec<&str> = Some(name.as_str())
        .filter(|name| !name.is_empty())
        .into_iter()
        .chain(labels.iter().map(|(_, value)| *value))
        .collect();
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    selector.match_labels.extend(labels);
    let matches = PoolMatch { node_selector: Some(selector), ..PoolMatch::default() };
    let name = unused(pools, &parts.join("-")).as_str().into();
    pools.push(Pool {
        name,
        matches,
        driver,
        device_plugin: plugin,
        rollout,
        tolerations,
        priority_class_name,
        ..Pool::default()
    });
}

/// Returns a legal name for a pool that no other has.
fn unused(pools: &[Pool], name: &str) -> String {
    let legal: String = name
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(LONGEST_NAME)
        .collect();
    let legal = legal.trim_matches('-');
    let is_used = |name: &str| pools.iter().any(|pool| pool.name.as_str() == name);
    let mut numbered = (2..).map(|number| {
        let end = format!("-{number}");
        format!("{}{end}", &legal[..legal.len().min(LONGEST_NAME - end.len())])
    });
    let first = Some(legal.to_owned()).filter(|name| !is_used(name));
    first.or_else(|| numbered.find(|name| !is_used(name))).unwrap_or_default()
}
