//! The labels that NVIDIA's GPU feature discovery (GFD) would write for a node, derived from the probe's report.
//!
//! The rules are those of GFD v0.19.3, run once with the configuration of the node's device plugin, with three differences:
//!
//! - `nvidia.com/gfd.timestamp` is omitted: it changes with every run and is not a property of the node.
//! - For GPUs of several models GFD describes a random one: of two, in seven of eight runs the one whose first GPU is
//!   later on the bus. Here it always is the model whose first GPU is the last on the bus.
//! - Invalid label keys and values are omitted, as NFD omits them.
//!
//! If GFD would fail, and so keep its earlier labels, no labels are returned.

use std::collections::BTreeSet;

use gpu_operator_crd::{
    keys,
    policy::{Labels, MigStrategy},
    report::{Gpu, MigAttributes, MigDevices, NvmlState, Report},
};

use crate::{catalogue::is_label_value, desired::expected_resources::is_shared, world::ResourceLayout};

/// GPUs that only drive a display, which NVIDIA's programs ignore.
const DISPLAYS: [&str; 2] = ["DGX Display", "NVIDIA DGX Display"];
/// The PCI class of GPUs that can drive a display.
const VGA_CONTROLLER: &str = "030000";
/// The PCI class of GPUs that cannot drive a display.
const CONTROLLER_3D: &str = "030200";

/// Returns `None` while NVML does not report every GPU that it counts, or if a GPU cannot be described.
pub fn labels(report: &Report, layout: &ResourceLayout) -> Option<Labels> {
    let cards = cards(report)?;
    let sharing = Sharing::of(layout);
    let mut set = Set::default();
    set.put("gpu.machine", &sanitised(report.machine.as_deref().unwrap_or("unknown")));
    versions(&mut set, report)?;
    set.put("mig.capable", &cards.iter().any(|card| card.gpu.mig_capable == Some(true)));
    // NVIDIA's programs reject MPS on GPUs in MIG mode.
    let by_mps = sharing.is_on() && layout.mps;
    if by_mps && cards.iter().any(|card| card.mig.is_some()) {
        return None;
    }
    set.put("mps.capable", &by_mps);
    whole_gpus(&mut set, &cards, sharing);
    match layout.mig {
        MigStrategy::None => {}
        MigStrategy::Single => single(&mut set, &cards, sharing)?,
        MigStrategy::Mixed => mixed(&mut set, &cards, sharing)?,
    }
    set.put("gpu.mode", mode(&cards));
    if let Some(clique) = clique(&cards) {
        set.put("gpu.clique", clique);
    }
    virtual_gpus(&mut set, report);
    Some(set.0)
}

#[derive(Default)]
struct Set(Labels);

impl Set {
    fn put(&mut self, name: &str, value: &(impl ToString + ?Sized)) {
        let (key, value) = (format!("{}{name}", keys::RESOURCES), value.to_string());
        self.0.remove(&key);
        if is_label_value(name) && (value.is_empty() || is_label_value(&value)) {
            self.0.insert(key, value);
        }
    }
}

struct Card<'r> {
    gpu: &'r Gpu,
    name: &'r str,
    /// Compute capability, major and minor.
    capability: (u32, u32),
    /// If it is in MIG mode.
    mig: Option<&'r [MigDevices]>,
}

impl<'r> Card<'r> {
    fn of(gpu: &'r Gpu) -> Option<Self> {
        let (major, minor) =
            gpu.compute_capability.as_deref().filter(|_| gpu.mig_capable.is_some())?.split_once('.')?;
        let capability = (major.parse().ok()?, minor.parse().ok()?);
        Some(Self { gpu, name: gpu.product.as_deref()?, capability, mig: gpu.mig_devices.as_deref() })
    }
}

/// Leaves out GPUs that only drive displays; `None` if a GPU cannot be opened or read.
fn cards(report: &Report) -> Option<Vec<Card<'_>>> {
    let reported: Vec<_> = report.gpus.iter().filter_map(Card::of).collect();
    let all = report.nvml.state == NvmlState::Answering && report.nvml.gpus == u32::try_from(reported.len()).ok();
    let cards: Vec<_> = reported.into_iter().filter(|card| !DISPLAYS.contains(&card.name)).collect();
    (all && !cards.is_empty()).then_some(cards)
}

/// By the current and the deprecated names.
fn versions(set: &mut Set, report: &Report) -> Option<()> {
    let driver = report.driver.loaded.as_deref()?;
    let parts: Vec<&str> = driver.split('.').collect();
    let (major, minor, revision) = match parts[..] {
        [major, minor] => (major, minor, ""),
        [major, minor, revision] => (major, minor, revision),
        _ => return None,
    };
    let cuda = report.driver.cuda_version.as_deref()?;
    let (cuda_major, cuda_minor) = cuda.split_once('.')?;
    for (name, value) in [
        ("cuda.driver.major", major),
        ("cuda.driver.minor", minor),
        ("cuda.driver.rev", revision),
        ("cuda.runtime.major", cuda_major),
        ("cuda.runtime.minor", cuda_minor),
        ("cuda.driver-version.major", major),
        ("cuda.driver-version.minor", minor),
        ("cuda.driver-version.revision", revision),
        ("cuda.driver-version.full", driver),
        ("cuda.runtime-version.major", cuda_major),
        ("cuda.runtime-version.minor", cuda_minor),
        ("cuda.runtime-version.full", cuda),
    ] {
        set.put(name, value);
    }
    Some(())
}

#[derive(Clone, Copy)]
struct Sharing {
    replicas: u32,
    renamed: bool,
    strategy: &'static str,
}

impl Sharing {
    /// One pod per GPU.
    const NONE: Self = Self { replicas: 1, renamed: false, strategy: "none" };

    fn of(layout: &ResourceLayout) -> Self {
        let strategy = if layout.mps { "mps" } else { "time-slicing" };
        if layout.replicas > 1 {
            Self { replicas: layout.replicas, renamed: layout.renamed, strategy }
        } else {
            Self::NONE
        }
    }

    fn is_on(self) -> bool {
        self.replicas > 1
    }
}

/// Sets product, count and sharing of a resource. Without `sharing` it is not offered to pods.
fn resource(set: &mut Set, name: &str, count: usize, product: &[&str], sharing: Option<Sharing>) {
    let suffix = sharing.filter(|sharing| sharing.is_on() && !sharing.renamed).map(|_| "SHARED".to_owned());
    let product: Vec<String> = product.iter().map(|word| sanitised(word)).chain(suffix).collect();
    set.put(&format!("{name}.product"), &product.join("-"));
    set.put(&format!("{name}.count"), &count);
    set.put(&format!("{name}.replicas"), &sharing.map_or(0, |sharing| sharing.replicas));
    set.put(&format!("{name}.sharing-strategy"), sharing.map_or("none", |sharing| sharing.strategy));
}

/// Sets the labels of `nvidia.com/gpu`: for GPUs in MIG mode, which are not offered, then for whole GPUs, which replace the former.
fn whole_gpus(set: &mut Set, cards: &[Card<'_>], sharing: Sharing) {
    for (in_mig_mode, sharing) in [(true, None), (false, Some(sharing))] {
        let of_kind = || cards.iter().filter(|card| card.mig.is_some() == in_mig_mode);
        let mut models: Vec<&str> = Vec::new();
        for card in of_kind() {
            if !models.contains(&card.name) {
                models.push(card.name);
            }
        }
        for model in models {
            let count = cards.iter().filter(|card| card.name == model).count();
            if let Some(card) = of_kind().rfind(|card| card.name == model) {
                whole_gpu(set, card, count, sharing);
            }
        }
    }
}

fn whole_gpu(set: &mut Set, card: &Card<'_>, count: usize, sharing: Option<Sharing>) {
    resource(set, "gpu", count, &[card.name], sharing);
    if let Some(mib) = card.gpu.memory_mib.filter(|mib| *mib > 0) {
        set.put("gpu.memory", &mib);
    }
    let (major, minor) = card.capability;
    if major > 0 {
        set.put("gpu.family", family(major, minor));
        set.put("gpu.compute.major", &major);
        set.put("gpu.compute.minor", &minor);
    }
}

/// As GFD names it, by compute capability.
fn family(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, 0..5) => "volta",
        (7, _) => "turing",
        (8, 0..9) => "ampere",
        (8, _) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        _ => "undefined",
    }
}

/// The MIG devices of one profile, on all GPUs.
struct Kind<'r> {
    profile: &'r str,
    /// The name of the first GPU that has one.
    card: &'r str,
    count: usize,
    attributes: Option<MigAttributes>,
}

impl Kind<'_> {
    /// As in resource names, which cannot contain a `+`.
    fn name(&self) -> String {
        self.profile.replace('+', ".")
    }
}

fn kinds<'r>(cards: &[Card<'r>]) -> Vec<Kind<'r>> {
    let mut kinds: Vec<Kind<'r>> = Vec::new();
    let devices = cards.iter().flat_map(|card| card.mig.into_iter().flatten().map(|devices| (card.name, devices)));
    for (card, MigDevices { profile, count, attributes }) in devices.filter(|(_, devices)| devices.count > 0) {
        let count = *count as usize;
        match kinds.iter_mut().find(|kind| kind.profile == profile) {
            Some(kind) => kind.count += count,
            None => kinds.push(Kind { profile, card, count, attributes: *attributes }),
        }
    }
    kinds
}

/// Strategy Single: every MIG device is an `nvidia.com/gpu`, if all have the same profile.
fn single(set: &mut Set, cards: &[Card<'_>], sharing: Sharing) -> Option<()> {
    set.put("mig.strategy", MigStrategy::Single.as_str());
    let Some(first) = cards.iter().find(|card| card.mig.is_some()) else { return Some(()) };
    let kinds = kinds(cards);
    let all_in_mig_mode =
        cards.iter().all(|card| card.mig.is_some_and(|mig| mig.iter().any(|devices| devices.count > 0)));
    if let (true, [kind]) = (all_in_mig_mode, &kinds[..]) {
        return part(set, "gpu", kind, sharing);
    }
    resource(set, "gpu", 0, &[first.name, "MIG", "INVALID"], None);
    set.put("gpu.sharing-strategy", "");
    set.put("gpu.memory", &0);
    Some(())
}

/// Strategy Mixed: every MIG device is a resource of its profile.
fn mixed(set: &mut Set, cards: &[Card<'_>], sharing: Sharing) -> Option<()> {
    set.put("mig.strategy", MigStrategy::Mixed.as_str());
    kinds(cards).iter().try_for_each(|kind| {
        let sharing = if is_shared(kind.profile) { sharing } else { Sharing::NONE };
        part(set, &format!("mig-{}", kind.name()), kind, sharing)
    })
}

/// Returns `None` if NVML does not report the attributes.
fn part(set: &mut Set, name: &str, kind: &Kind<'_>, sharing: Sharing) -> Option<()> {
    let has = kind.attributes?;
    resource(set, name, kind.count, &[kind.card, "MIG", &kind.name()], Some(sharing));
    set.put(&format!("{name}.memory"), &has.memory_mib);
    for (what, count) in [
        ("multiprocessors", has.multiprocessors),
        ("slices.gi", has.gpu_slices),
        ("slices.ci", has.compute_slices),
        ("engines.copy", has.copy_engines),
        ("engines.decoder", has.decoders),
        ("engines.encoder", has.encoders),
        ("engines.jpeg", has.jpeg_engines),
        ("engines.ofa", has.ofa_engines),
    ] {
        set.put(&format!("{name}.{what}"), &count);
    }
    Some(())
}

/// Whether the GPUs can drive displays, if that is the same for all.
fn mode(cards: &[Card<'_>]) -> &'static str {
    let classes: BTreeSet<_> = cards.iter().map(|card| card.gpu.pci_class.as_deref()).collect();
    match classes.into_iter().collect::<Vec<_>>()[..] {
        [Some(VGA_CONTROLLER)] => "graphics",
        [Some(CONTROLLER_3D)] => "compute",
        _ => "unknown",
    }
}

/// Returns the clique of the NVLink fabric, if it is a single one.
fn clique<'r>(cards: &[Card<'r>]) -> Option<&'r str> {
    let cliques: BTreeSet<&str> = cards.iter().filter_map(|card| card.gpu.fabric_clique.as_deref()).collect();
    cliques.first().copied().filter(|_| cliques.len() == 1)
}

fn virtual_gpus(set: &mut Set, report: &Report) {
    let Some(vgpu) = &report.vgpu else { return };
    set.put("vgpu.present", &vgpu.present);
    for (name, word) in
        [("vgpu.host-driver-version", &vgpu.host_driver_version), ("vgpu.host-driver-branch", &vgpu.host_driver_branch)]
    {
        if let Some(word) = word {
            set.put(name, word);
        }
    }
}

/// Letters, digits, `-`, `_` and `.`, with a `-` in place of blanks.
fn sanitised(name: &str) -> String {
    let kept = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    let name: String = name.chars().filter(kept).collect();
    name.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}
