//! Variants: the desired stages of a kind of node in a pool, and the names of their DaemonSets. Nodes with the same [`VariantKey`] share
//! their DaemonSets: a node that joins or changes does not affect others.

use std::{cell::Cell, collections::BTreeMap, sync::Arc};

use gpu_operator_crd::{Revision, gpunode::StageRevisions, policy::Stage, report::HOST_ROOT};

use crate::{
    desired::{
        container_runtime,
        device_plugin::{self, PluginChoice},
        dra,
        driver::{self, DriverChoice},
        key::{HostTraits, StageSpec, VariantKey},
        mig_layout, stages,
        toolkit::{self, ToolkitChoice},
    },
    inventory::{
        external_stack::ExternalStack,
        membership::{GoverningPool, name_of},
    },
    note::Fault,
    pool_settings::PoolSettings,
    revision,
};

/// The longest part of a pool's name in a revision's name.
const SLUG: usize = 30;

#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    pub key: VariantKey,
    /// The stages that this operator installs, with the revision of each.
    pub stages: Vec<(Revision, StageSpec)>,
    /// The revision of each stage.
    pub revisions: StageRevisions,
}

pub fn choose(
    pool: &GoverningPool<'_>,
    on: &driver::Subject<'_>,
    foreign: &ExternalStack,
    disables_cdi: bool,
) -> Result<VariantKey, Fault> {
    let GoverningPool { name, settings } = pool;
    let driver = match foreign.third_party(Stage::Driver) {
        Some(_) => driver::choose::third_party(on.report),
        None => driver::choose::choose(settings.driver, on)?,
    };
    let is_external = foreign.third_party(Stage::DevicePlugin).is_some();
    let loaded = on.report.driver.loaded.as_deref();
    let plugin = if settings.allocation.is_by_claims() && !is_external {
        dra::choose(&driver, loaded, on.node)?
    } else {
        device_plugin::choose(settings.device_plugin, &driver, loaded, is_external)?
    };
    mig_layout::check(plugin.layout(), on.report, on.discovery.expected.in_pool(settings.pool))?;
    // A third-party plugin on the node already has what it needs.
    let needs_toolkit = plugin.needs_toolkit(&driver) && !is_external && foreign.third_party(Stage::Toolkit).is_none();
    let (toolkit, toolkit_folder) = if needs_toolkit {
        let wanted = settings.toolkit;
        // A runtime that is configured on the host looks for the driver in the host's root.
        let of_host = matches!(&driver, DriverChoice::Preinstalled { root } if root == HOST_ROOT);
        let host_runtimes = if of_host { foreign.runtimes() } else { &[] };
        let config = container_runtime::loaded(on.node, Some(on.report)).and_then(|loaded| loaded.config.as_deref());
        let host = toolkit::OnHost { disables_cdi, config, runtimes: host_runtimes };
        let choice = toolkit::choose(wanted, on.node, host)?;
        toolkit::check_folder_driver(&choice, driver.root())?;
        dra::check_toolkit(&plugin, &choice, on.node)?;
        (choice, toolkit::toolkit_folder(wanted, &driver, on.report))
    } else {
        (ToolkitChoice::None, None)
    };
    device_plugin::check_image(settings.device_plugin, &plugin, &toolkit)?;
    let host = HostTraits::of(on.report, &on.node.runtime, &driver);
    let looks_there = matches!(plugin, PluginChoice::Gke { .. } | PluginChoice::Dra);
    let kubelet_root = toolkit::kubelet_root(settings.toolkit, on.node).filter(|_| looks_there);
    Ok(VariantKey {
        policy: name_of(settings.policy),
        pool: name.clone(),
        named: settings.pool.is_some(),
        driver,
        toolkit,
        toolkit_folder,
        plugin,
        host,
        kubelet_root,
        arch: on.node.arch.to_string(),
    })
}

pub fn resolve(pool: &PoolSettings<'_>, key: VariantKey) -> Variant {
    let specs = [
        stages::driver_stage(pool, &key),
        stages::toolkit_stage(pool, &key),
        stages::mps_stage(pool, &key),
        stages::plugin_stage(pool, &key),
    ];
    let stages: Vec<_> = specs.into_iter().flatten().map(|spec| (revision_name(&key, &spec), spec)).collect();
    let mut revisions = StageRevisions::default();
    for (revision, spec) in &stages {
        *revisions.get_mut(spec.stage) = Some(revision.clone());
    }
    Variant { key, stages, revisions }
}

/// Returns a readable prefix and a hash of the revision, the value of the node's label. A stage's revision covers only the stages before
/// it: a change of the plugin updates only the plugin.
fn revision_name(key: &VariantKey, spec: &StageSpec) -> Revision {
    let VariantKey { policy, pool, named, driver, toolkit, toolkit_folder, plugin, host, kubelet_root, arch } = key;
    let toolkit = (spec.stage >= Stage::Toolkit).then(|| toolkit.revision());
    let plugin = match spec.stage {
        Stage::Driver | Stage::Toolkit => None,
        Stage::Mps | Stage::DevicePlugin => Some(plugin),
    };
    let made_of = (policy, pool, named, driver, toolkit, plugin, arch, spec);
    // Defaults are not part of the hash.
    let toolkit_folder = toolkit_folder.as_ref().filter(|_| spec.stage >= Stage::Toolkit);
    let kubelet_root = kubelet_root.filter(|_| spec.stage == Stage::DevicePlugin);
    let host = host.of_stage(spec.stage);
    let digest = match (toolkit_folder, kubelet_root, host.is_none()) {
        (None, None, true) => revision::short(&made_of, 8),
        (Some(folder), None, true) => revision::short(&(made_of, folder), 8),
        (folder, root, _) => revision::short(&(made_of, folder, root, host), 8),
    };
    let slug: String = pool
        .as_str()
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(SLUG)
        .collect();
    format!("{}-{digest}", slug.trim_matches('-')).into()
}

/// The variants that nodes need.
#[derive(Debug, Default)]
pub struct Variants<'w> {
    needed: BTreeMap<VariantKey, OfPool<'w>>,
    /// Those of an earlier plan with the same ground.
    remembered: KnownVariants,
}

pub type KnownVariants = BTreeMap<VariantKey, KnownVariant>;

#[derive(Clone, Debug)]
pub struct KnownVariant {
    pub variant: Arc<Variant>,
    /// Whether its DaemonSets are known to be as desired.
    pub is_applied: Cell<bool>,
}

#[derive(Debug)]
struct OfPool<'w> {
    pool: &'w PoolSettings<'w>,
    known: KnownVariant,
}

impl<'w> Variants<'w> {
    pub fn remembering(remembered: KnownVariants) -> Self {
        Self { needed: BTreeMap::new(), remembered }
    }

    fn known(&mut self, key: &VariantKey, new: impl FnOnce() -> Arc<Variant>) -> KnownVariant {
        self.remembered.remove(key).unwrap_or_else(|| KnownVariant { variant: new(), is_applied: Cell::new(false) })
    }

    /// Resolves each variant once for all nodes that share it.
    pub fn resolve(&mut self, pool: &'w PoolSettings<'w>, key: VariantKey) -> Arc<Variant> {
        if let Some(of_pool) = self.needed.get(&key) {
            return Arc::clone(&of_pool.known.variant);
        }
        let known = self.known(&key, || Arc::new(resolve(pool, key.clone())));
        let variant = Arc::clone(&known.variant);
        self.needed.insert(key, OfPool { pool, known });
        variant
    }

    /// For a node that has it.
    pub fn need(&mut self, pool: &'w PoolSettings<'w>, variant: &Arc<Variant>) {
        if !self.needed.contains_key(&variant.key) {
            let known = self.known(&variant.key, || Arc::clone(variant));
            self.needed.insert(variant.key.clone(), OfPool { pool, known });
        }
    }

    pub fn all(&self) -> impl Iterator<Item = (&PoolSettings<'w>, &KnownVariant)> {
        self.needed.values().map(|OfPool { pool, known }| (*pool, known))
    }

    /// Returns them for the next plan.
    pub fn to_remember(self) -> KnownVariants {
        self.needed.into_iter().map(|(key, of_pool)| (key, of_pool.known)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{ClusterGpuPolicy, ClusterGpuPolicySpec};

    use super::*;
    use crate::{
        desired::{container_runtime::Kind, key::HostTraits, toolkit::RuntimeSetup},
        manifests::daemon_set::daemon_sets,
        settings::Settings,
    };

    fn key(driver: &DriverChoice, toolkit: &ToolkitChoice, plugin: &PluginChoice, host: HostTraits) -> VariantKey {
        VariantKey {
            policy: "all".into(),
            pool: "a".into(),
            named: false,
            driver: driver.clone(),
            toolkit: toolkit.clone(),
            toolkit_folder: None,
            plugin: plugin.clone(),
            host,
            kubelet_root: None,
            arch: "amd64".into(),
        }
    }

    fn choose_plugin(written: &str, driver: &DriverChoice) -> PluginChoice {
        let written = serde_yaml::from_str(written).unwrap();
        device_plugin::choose(&written, driver, None, false).unwrap()
    }

    /// Returns each stage's revision, and its pod with the revision's name replaced.
    fn stages(settings: &Settings, policy: &ClusterGpuPolicy, key: VariantKey) -> Vec<(Stage, Revision, String)> {
        let pool = PoolSettings::of(policy, None);
        let variant = resolve(&pool, key);
        let sets = daemon_sets(settings, &pool, &variant);
        assert_eq!(sets.len(), variant.stages.len());
        let stages = variant.stages.iter().zip(&sets);
        stages
            .map(|((revision, spec), set)| {
                let pod = serde_json::to_string(&set.spec).unwrap().replace(revision.as_str(), "GROUP");
                (spec.stage, revision.clone(), pod)
            })
            .collect()
    }

    #[test]
    fn hosts_share_a_stage_only_if_its_pods_are_the_same() {
        let settings = Settings {
            namespace: "gpu-operator".into(),
            probe_image: "registry.example.com/nvml-probe:1".into(),
            probe_pull_policy: "IfNotPresent".into(),
            image_pull_secrets: vec![],
            kubelet_root: None,
            evicts_pods: false,
            quiets: false,
        };
        let policy = ClusterGpuPolicy::new("all", ClusterGpuPolicySpec::default());
        let container = |os: &str| DriverChoice::Container {
            version: "580.173.02".into(),
            os: os.into(),
            open: true,
            kernel: None,
            parameters: None,
        };
        let google = DriverChoice::Preinstalled { root: "/home/kubernetes/bin/nvidia".into() };
        let setup = RuntimeSetup {
            kind: Kind::Containerd,
            config: Some("/etc/containerd/config.toml".into()),
            drop_in: None,
            source: None,
            socket: "/run/containerd/containerd.sock".into(),
            handler: "nvidia".into(),
            default: false,
            cdi: false,
        };
        let nri = ToolkitChoice::Nri { socket: "/run/nri/nri.sock".into() };
        let hosts = [(false, false), (false, true), (true, false), (true, true)];
        let mut compared = 0;
        for (driver, toolkit, plugin) in [
            (container("rhel9"), ToolkitChoice::Cdi, "{}"),
            (container("sles15.7"), ToolkitChoice::Runtime(setup), "{sharing: {mps: {replicas: 2}}}"),
            (container("rhel9"), nri, "{mig: {strategy: Mixed}}"),
            (google, ToolkitChoice::None, "{flavor: Google}"),
        ] {
            let plugin = choose_plugin(plugin, &driver);
            let of_host = |(selinux, subscription)| {
                let host = HostTraits { selinux, subscription: subscription && driver.is_managed() };
                stages(&settings, &policy, key(&driver, &toolkit, &plugin, host))
            };
            for (one, other) in hosts.iter().flat_map(|one| hosts.iter().map(move |other| (*one, *other))) {
                for ((stage, revision, pod), (_, other_group, other_pod)) in of_host(one).iter().zip(&of_host(other)) {
                    assert_eq!(
                        revision == other_group,
                        pod == other_pod,
                        "{stage:?} on {one:?} and {other:?}: {driver:?}"
                    );
                    compared += 1;
                }
            }
        }
        assert!(compared >= 16 * 10, "{compared}");
    }

    #[test]
    fn a_subscription_affects_only_the_drivers_group() {
        let policy = ClusterGpuPolicy::new("all", ClusterGpuPolicySpec::default());
        let driver = DriverChoice::Container {
            version: "580.173.02".into(),
            os: "sles15.7".into(),
            open: true,
            kernel: None,
            parameters: None,
        };
        for selinux in [false, true] {
            let revisions = |subscription| {
                let plugin = choose_plugin("{sharing: {mps: {replicas: 2}}}", &driver);
                let host = HostTraits { selinux, subscription };
                resolve(&PoolSettings::of(&policy, None), key(&driver, &ToolkitChoice::Cdi, &plugin, host)).revisions
            };
            let (with, without) = (revisions(true), revisions(false));
            assert_ne!(with.driver, without.driver);
            let rest = |revisions: StageRevisions| StageRevisions { driver: None, ..revisions };
            assert!(without.toolkit.is_some() && without.mps.is_some() && without.device_plugin.is_some());
            assert_eq!(rest(with), rest(without));
        }
    }
}
