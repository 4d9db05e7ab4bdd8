//! The images that a policy's nodes may pull, for users who fill a mirror before there are nodes: the plan's own choices for
//! nodes of each operating system, container runtime and GPU model.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    ClusterGpuPolicy, PoolName, keys,
    policy::{Driver, DriverSource, ValidationMode},
    reason::Reason,
    report::{DriverFacts, HOST_ROOT, InstalledDriver, OsRelease, Report},
    stage::Stage,
};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Container};

use crate::{
    assess::validation,
    catalogue::{Accelerator, Catalogue},
    desired::{
        driver::{
            self, Subject,
            choose::{GKE_DRIVER, GKE_NODE_POOL},
        },
        images as references,
        key::VariantKey,
        variant,
    },
    inventory::{
        external_stack::ExternalStack,
        gpus::{Discovery, Expected, Seen},
        membership::GoverningPool,
    },
    manifests::daemon_set::daemon_sets,
    note::Fault,
    pool_settings::PoolSettings,
    settings::Settings,
    world::NodeFacts,
};

/// One of each kind of container runtime, and of containerd with and without CDI.
const RUNTIMES: [&str; 5] =
    ["containerd://2.1.4", "containerd://1.7.27", "containerd://1.6.36", "docker://27.0.3", "cri-o://1.34.1"];
/// More GPUs than a node has: each index that a MIG layout names exists.
const GPUS: u32 = 64;
/// `ID` of Container-Optimized OS, for which there is no image to pull.
const COS: &str = "cos";
/// The name in place of a kernel's release where none is given: valid in a tag, and unlike any kernel.
pub const ANY_KERNEL: &str = "KERNEL";

/// The nodes that the list is for.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub systems: Vec<OsRelease>,
    /// The names of GPU models, in any cloud's notation. Empty for all models, known and unknown.
    pub models: Vec<String>,
    pub kernels: Vec<String>,
}

impl Fleet {
    /// Returns nodes with any GPU and kernel, and the operating systems for which the catalogue has driver images, and Google's.
    pub fn of(catalogue: &Catalogue) -> Self {
        let tags: BTreeSet<&String> = catalogue.releases().flat_map(|release| &release.os).collect();
        let systems = tags.into_iter().map(String::as_str).chain([COS]).map(system).collect();
        Self { systems, models: Vec::new(), kernels: vec![ANY_KERNEL.to_owned()] }
    }

    /// Whether the catalogue has a driver image for the operating system of this name, or of one that begins with it.
    pub fn serves(&self, catalogue: &Catalogue, name: &str) -> bool {
        let OsRelease { id, version_id } = system(name);
        let is_listed = |known: &OsRelease| {
            let known = format!("{}{}", known.id, known.version_id);
            known.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.systems.iter().any(is_listed) || id == COS || catalogue.default_driver_for(&[], &id, &version_id).is_some()
    }

    /// Replaces the operating systems by those with one of these names, such as `ubuntu22.04` or `rhel9`. A name without a
    /// minor version includes those with one.
    pub fn limit_systems(&mut self, names: &[String]) {
        let is_part = |known: &OsRelease| {
            let known = format!("{}{}", known.id, known.version_id);
            names.iter().any(|name| known.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.')))
        };
        self.systems.retain(is_part);
        self.systems.extend(names.iter().map(|name| system(name)));
    }
}

/// Returns the operating system of a name as in the tags of driver images, such as `ubuntu22.04`.
fn system(name: &str) -> OsRelease {
    let (id, version) = name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len()));
    OsRelease { id: id.to_owned(), version_id: version.to_owned() }
}

/// The setting that fixes the probe's image, of the chart and not of a policy.
pub const PROBE_DIGEST: &str = "image.digests.probe";
/// The field that fixes the image of the test that validates nodes.
const TEST_DIGEST: &str = "readiness.validation.image.digest";

/// The image distinguishes the DRA driver from a device plugin.
pub fn digest_field(stage: Stage, image: &str) -> &'static str {
    match stage {
        Stage::DevicePlugin if image.contains(references::DRA_DRIVER.path) => "allocation.dra.image.digest",
        Stage::Driver => "driver.image.digest",
        Stage::Toolkit => "toolkit.image.digest",
        Stage::Mps | Stage::DevicePlugin => "devicePlugin.image.digest",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageList {
    pub images: BTreeSet<String>,
    /// Those that their registry can replace, because they have a tag and no digest, by the field or setting for the digest.
    pub by_tag: BTreeMap<&'static str, BTreeSet<String>>,
    /// Why no node of a pool with some model gets a driver by this operator.
    pub notes: BTreeSet<String>,
}

impl ImageList {
    fn add(&mut self, image: &str, digest: &'static str) {
        if image.is_empty() {
            return;
        }
        self.images.insert(image.to_owned());
        if !references::is_fixed(image) {
            self.by_tag.entry(digest).or_default().insert(image.to_owned());
        }
    }
}

/// Returns the images that a policy's nodes may pull, without those that a cloud preloads. A pool that names models contributes the images
/// for these models.
pub fn images(settings: &Settings, catalogue: &Catalogue, policy: &ClusterGpuPolicy, fleet: &Fleet) -> ImageList {
    let mut list = ImageList::default();
    // With `pullPolicy: Never` users load the images into the nodes, and need their names as well.
    let mut policy = policy.clone();
    policy.spec.images.pull_policy = None;
    // A third-party driver counts as the host's, whatever the source.
    for (policy, by_third_party) in [(&policy, false), (&with_host_drivers(&policy), true)] {
        for pool in policy.spec.pools.iter().map(Some).chain([None]) {
            let of_pool = PoolSettings::of(policy, pool);
            let search = Search { catalogue, settings: &of_pool, fleet, by_third_party };
            for key in search.keys(&mut list.notes) {
                let variant = variant::resolve(&of_pool, key);
                for set in daemon_sets(settings, &of_pool, &variant) {
                    // All have the label.
                    let Some(stage) = stage(&set) else { continue };
                    for image in pulled(&set) {
                        // Init containers of all stages run it.
                        let is_probe = *image == settings.probe_image;
                        list.add(image, if is_probe { PROBE_DIGEST } else { digest_field(stage, image) });
                    }
                }
            }
            if pool.is_some_and(|pool| pool.matches.models.is_empty() && pool.matches.node_selector.is_none()) {
                break;
            }
        }
    }
    if policy.spec.readiness.validation.mode.unwrap_or_default() != ValidationMode::Never {
        for image in validation::test_images(&policy) {
            list.add(&image, TEST_DIGEST);
        }
    }
    list
}

fn stage(set: &DaemonSet) -> Option<Stage> {
    let label = set.metadata.labels.as_ref()?.get(keys::STAGE)?;
    Stage::ALL.into_iter().find(|stage| stage.as_str() == label)
}

fn with_host_drivers(policy: &ClusterGpuPolicy) -> ClusterGpuPolicy {
    let mut policy = policy.clone();
    let drivers = policy.spec.pools.iter_mut().filter_map(|pool| pool.driver.as_mut());
    for driver in drivers.chain([&mut policy.spec.defaults.driver]) {
        *driver = Driver { source: Some(DriverSource::Preinstalled), ..Driver::default() };
    }
    policy
}

fn pulled(set: &DaemonSet) -> impl Iterator<Item = &String> {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.into_iter().flat_map(|pod| pod.init_containers.iter().flatten().chain(&pod.containers));
    let is_pulled = |container: &&Container| container.image_pull_policy.as_deref() != Some("Never");
    containers.filter(is_pulled).filter_map(|container| container.image.as_ref())
}

/// A node before this operator has installed anything.
struct Host {
    before: Before,
    node: NodeFacts,
    report: Report,
}

/// What a node has before this operator installs anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    HostDriver,
    Gke,
    GkeDriver,
}

impl Before {
    const ALL: [Self; 4] = [Self::Nothing, Self::HostDriver, Self::Gke, Self::GkeDriver];
}

struct Search<'a> {
    catalogue: &'a Catalogue,
    settings: &'a PoolSettings<'a>,
    fleet: &'a Fleet,
    by_third_party: bool,
}

impl<'a> Search<'a> {
    /// Returns the keys of all variants, and adds why there are none with a driver.
    fn keys(&self, notes: &mut BTreeSet<String>) -> BTreeSet<VariantKey> {
        let mut keys = BTreeSet::new();
        for model in self.models() {
            let mut faults = Vec::new();
            let mut installs = false;
            for host in self.hosts() {
                for choice in self.choose(model, &host) {
                    match choice {
                        Ok(key) => {
                            installs |= host.before == Before::Nothing && key.driver.is_managed();
                            keys.insert(key);
                        }
                        Err(fault) if host.before == Before::Nothing => faults.push(fault),
                        Err(_) => {}
                    }
                }
            }
            let is_expected = |fault: &Fault| fault.reason == Reason::DriverNotInstalled;
            if let Some(model) = model
                && !installs
                && !self.by_third_party
                && let Some(fault) = faults.iter().find(|fault| !is_expected(fault))
            {
                let of = self.settings.pool.map_or("nodes of no pool".to_owned(), |pool| format!("pool {}", pool.name));
                notes.insert(format!("{of}, GPUs such as {}: {}", model.name, fault.message));
            }
        }
        keys
    }

    /// Returns one model for each revision that the same drivers support; `None` is a model that the catalogue lacks.
    fn models(&self) -> Vec<Option<&'a Accelerator>> {
        let named = self.settings.pool.map_or(&[][..], |pool| pool.matches.models.as_slice());
        // Other names are those of unknown and of mixed models.
        let any = named.iter().any(|name| self.catalogue.model(name).is_none()) || named.is_empty();
        let mut chosen: Vec<Option<&Accelerator>> = Vec::new();
        for model in self.catalogue.models() {
            let wanted = |names: &[String]| names.iter().any(|name| self.is_named(model, name));
            let in_fleet = self.fleet.models.is_empty() || wanted(&self.fleet.models);
            let same = |other: &Accelerator| other.driver == model.driver && other.modules == model.modules;
            if in_fleet && (any || wanted(named)) && !chosen.iter().flatten().any(|other| same(other)) {
                chosen.push(Some(model));
            }
        }
        chosen.extend((any && self.fleet.models.is_empty()).then_some(None));
        chosen
    }

    /// Returns whether a name is the model's, or that of a product with the same PCI id, which only a label distinguishes.
    fn is_named(&self, model: &Accelerator, name: &str) -> bool {
        let named = self.catalogue.model(name);
        named.is_some_and(|named| {
            named.name == model.name || named.devices.iter().any(|device| model.is_pci(device.device_id))
        })
    }

    fn hosts(&self) -> Vec<Host> {
        let any_kernel = [String::new()];
        let precompiled = self.settings.driver.container.precompiled.unwrap_or_default();
        let kernels = if precompiled { self.fleet.kernels.as_slice() } else { &any_kernel };
        let states: &[Before] = if self.by_third_party { &[Before::HostDriver] } else { &Before::ALL };
        let mut hosts = Vec::new();
        for os in &self.fleet.systems {
            for (before, kernel) in states.iter().flat_map(|before| kernels.iter().map(move |kernel| (*before, kernel)))
            {
                let driver = if before == Before::HostDriver { self.host_driver() } else { DriverFacts::default() };
                let report = Report { os: os.clone(), driver, ..Report::default() };
                let host = |runtime| Host { before, node: node(before, runtime, kernel), report: report.clone() };
                hosts.extend(RUNTIMES.map(host));
            }
        }
        hosts
    }

    fn host_driver(&self) -> DriverFacts {
        let version = self.catalogue.default_driver(&[]).map(|release| release.version.clone()).unwrap_or_default();
        let installed =
            InstalledDriver { root: HOST_ROOT.to_owned(), version: version.clone(), ..InstalledDriver::default() };
        DriverFacts { loaded: Some(version), installed: vec![installed], ..DriverFacts::default() }
    }

    /// Returns the choice for a node; for a precompiled driver, also the choice if its image does not exist.
    fn choose(&self, model: Option<&'a Accelerator>, host: &Host) -> Vec<Result<VariantKey, Fault>> {
        let discovery = Discovery {
            model: model.map(|model| model.name.clone()),
            accelerators: model.into_iter().collect(),
            expected: Expected { annotated: Some(GPUS), known: None, passed_through: 0 },
            seen: Seen::default(),
            replaced: None,
            notes: Vec::new(),
        };
        let name = || discovery.model.as_deref().map_or_else(|| PoolName::from("unknown"), PoolName::from);
        let pool = GoverningPool {
            name: self.settings.pool.map_or_else(name, |pool| pool.name.clone()),
            settings: self.settings,
        };
        let first = Subject {
            catalogue: self.catalogue,
            images: &self.settings.policy.spec.images,
            node: &host.node,
            has_driver: false,
            discovery: &discovery,
            report: &host.report,
            missing_image: None,
        };
        let choose = |on: &Subject<'_>| variant::choose(&pool, on, &ExternalStack::default(), false);
        let chosen = choose(&first);
        let wanted = self.settings.driver;
        let precompiled = chosen.as_ref().ok().and_then(|key| driver::wants_precompiled(wanted, &first, &key.driver));
        let second = precompiled.map(|image| choose(&Subject { missing_image: Some(&image), ..first }));
        [chosen].into_iter().chain(second).collect()
    }
}

fn node(before: Before, runtime: &str, kernel: &str) -> NodeFacts {
    let labels = match before {
        Before::Nothing | Before::HostDriver => &[][..],
        Before::Gke => &[(GKE_NODE_POOL, "gpus")],
        Before::GkeDriver => &[(GKE_NODE_POOL, "gpus"), (GKE_DRIVER, "default")],
    };
    NodeFacts {
        labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        runtime: runtime.into(),
        kernel: kernel.into(),
        arch: "amd64".into(),
        ..NodeFacts::default()
    }
}
