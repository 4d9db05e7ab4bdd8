//! Discovery: which nodes have GPUs, and of which model. What is known stays known until a live report contradicts it: a missing label and
//! a reboot prove nothing.

use std::{borrow::Cow, collections::BTreeSet};

use gpu_operator_crd::{
    GpuNode, keys,
    policy::Pool,
    reason::Reason,
    report::{Gpu, Report},
};

use crate::{
    catalogue::{Accelerator, Catalogue, unknown_model_name},
    inventory::{
        node_labels::{self, Signals},
        records,
    },
    note::Note,
    world::NodeFacts,
};

/// The model of a node with GPUs of several models.
pub const MIXED: &str = "mixed";

/// What is known of a node's GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovery<'c> {
    /// Canonical name, or [`MIXED`]. `None` if labels show NVIDIA GPUs of an unknown model.
    pub model: Option<String>,
    /// Those in the catalogue, each once.
    pub accelerators: Vec<&'c Accelerator>,
    /// By what is known of the node itself; a pool may set another number.
    pub expected: Expected,
    /// On this Node's PCI bus.
    pub seen: Seen<'c>,
    /// The replacement of all GPUs during a reboot, if the status does not record the new ones yet.
    pub replaced: Option<String>,
    /// Problems that do not keep the node from working.
    pub notes: Vec<Note>,
}

/// How many GPUs a node should have, by source; the first known one applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub annotated: Option<u32>,
    /// The number on the bus, else the number in the cloud's label.
    pub known: Option<u32>,
    /// How many of the known GPUs have been passed through to virtual machines. An administrator's annotation does not count them.
    pub passed_through: u32,
}

impl Expected {
    pub fn in_pool(&self, pool: Option<&Pool>) -> Option<u32> {
        let counted = || {
            let Some(promised) = pool.and_then(|pool| pool.gpus_per_node) else {
                return Some(self.known?.saturating_sub(self.passed_through));
            };
            // The GPUs beyond the pool's number are not expected in any case.
            let beyond = self.known.unwrap_or_default().saturating_sub(promised);
            Some(promised.saturating_sub(self.passed_through.saturating_sub(beyond)))
        };
        self.annotated.or_else(counted)
    }
}

/// The GPUs on a Node's PCI bus when it showed the most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen<'r> {
    /// `None` if the bus has never shown any.
    pub most: Option<u32>,
    pub at: Vec<&'r str>,
    /// Each once.
    pub device_ids: Vec<&'r str>,
    /// The last boot on which the bus showed them. Empty if unknown.
    pub boot_id: &'r str,
}

impl Seen<'_> {
    /// Returns the most GPUs that the bus has shown, including those that are passed through to virtual machines now.
    pub fn with_passed_through(&self, report: Option<&Report>) -> u32 {
        let now = report.map_or(0, |report| count(&report.gpus) + report.passed_through);
        self.most.unwrap_or_default().max(now)
    }

    /// Whether these GPUs make the Node another machine: it was rebooted, and no GPU has an earlier model. Without a reboot, a GPU that
    /// fell off the bus and GPUs that a hypervisor attaches look the same.
    fn replace(&self, before: &Self) -> bool {
        let rebooted = ![self.boot_id, before.boot_id].contains(&"") && self.boot_id != before.boot_id;
        let is_other = |id: &&str| !id.is_empty() && !before.device_ids.contains(id);
        rebooted && self.most.is_some() && !before.device_ids.is_empty() && self.device_ids.iter().all(is_other)
    }

    /// For example `8 GPUs (nvidia-h100-80gb)`.
    fn describe(&self, catalogue: &Catalogue) -> String {
        let ids: Vec<_> = self.device_ids.iter().map(|id| parse_id(id)).collect();
        let count = self.most.unwrap_or_default();
        let gpus = if count == 1 { "GPU" } else { "GPUs" };
        format!("{count} {gpus} ({})", model_names(catalogue, &ids).join(", "))
    }
}

/// Returns `None` for a node without GPUs.
pub fn discover<'c>(
    catalogue: &'c Catalogue,
    node: &NodeFacts,
    gpu_node: Option<&'c GpuNode>,
) -> Option<Discovery<'c>> {
    if !node.has_linux_host() {
        return None;
    }
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    let report = records::last_report(gpu_node);
    let on_bus: &[Gpu] = report.map(|report| report.gpus.as_slice()).unwrap_or_default();
    let mut remembered = remembered(node, gpu_node);
    let boot_id =
        records::current_report(node, gpu_node).map(|report| report.boot_id.as_str()).filter(|id| !id.is_empty());
    let now = now_seen(on_bus, boot_id.unwrap_or(remembered.boot_id));
    let replaced = now.replace(&remembered).then(|| {
        let (now, before) = (now.describe(catalogue), remembered.describe(catalogue));
        format!("all GPUs were replaced while the node was rebooted: {before} by {now}; the earlier GPUs are no longer expected")
    });
    if replaced.is_some() {
        remembered = Seen::default();
    }
    let passed_through = passed_through_of(&remembered, report);
    // A node whose bus shows no GPU is still a GPU node, with all of them missing, if this Node (by UID) had GPUs that are not passed
    // through now, or its annotation gives a number.
    let annotated = Annotated::of(node);
    let had = remembered.most.filter(|most| *most > passed_through);
    // Of a node without a GpuNode, the label records what its last report has proven, because third-party labels may name GPUs that are
    // passed through.
    let is_reported = report.is_some() || gpu_node.is_none() && node.is_labelled_absent();
    if is_reported && on_bus.is_empty() && had.or(annotated.count).is_none() {
        return None;
    }
    let signals = node_labels::signals(catalogue, node);
    let known = status.and_then(|status| status.model.clone()).or_else(|| own_label(node));
    // While a GPU is missing, the others do not prove the node's model.
    let all_there = remembered.most.is_none_or(|seen| count(on_bus) + passed_through >= seen);
    let ids = device_ids(on_bus);
    let names = model_names(catalogue, &ids);
    let by_bus = one_or_mixed(&names);
    let by_label = signals.named.as_ref().map(|named| named.model.clone());
    let model = signals
        .overridden
        .clone()
        .or(by_label)
        .or_else(|| by_bus.filter(|_| all_there).map(str::to_owned))
        .or(known)
        .or_else(|| by_bus.map(str::to_owned));
    if model.is_none() && !signals.present {
        return None;
    }
    let seen = if annotated.count.is_some() { now } else { most(now, remembered) };
    Some(Discovery {
        accelerators: accelerators(catalogue, &ids, model.as_deref()),
        expected: Expected { annotated: annotated.count, known: seen.most.or(signals.count), passed_through },
        notes: notes(catalogue, &signals, on_bus, &names, annotated),
        seen,
        replaced,
        model,
    })
}

#[derive(Default)]
struct Annotated {
    count: Option<u32>,
    unreadable: Option<String>,
}

impl Annotated {
    fn of(node: &NodeFacts) -> Self {
        let Some(text) = &node.gpu_count else {
            return Self::default();
        };
        match text.parse().ok().filter(|count| (1..=64).contains(count)) {
            Some(count) => Self { count: Some(count), unreadable: None },
            None => Self { count: None, unreadable: Some(text.clone()) },
        }
    }
}

/// The bus is more reliable than names: a name counts only if the bus shows no known model.
fn accelerators<'c>(catalogue: &'c Catalogue, ids: &[Option<u16>], model: Option<&str>) -> Vec<&'c Accelerator> {
    let mut accelerators: Vec<&Accelerator> = Vec::new();
    for accelerator in ids.iter().filter_map(|id| catalogue.model_of_pci((*id)?, None)) {
        if accelerators.iter().all(|known| known.name != accelerator.name) {
            accelerators.push(accelerator);
        }
    }
    if accelerators.is_empty() {
        accelerators.extend(model.and_then(|model| catalogue.model(model)));
    }
    accelerators
}

/// Returns the only one of these models, or [`MIXED`].
fn one_or_mixed<'n>(names: &'n [Cow<'_, str>]) -> Option<&'n str> {
    if names.len() > 1 { Some(MIXED) } else { names.first().map(AsRef::as_ref) }
}

/// Returns the models on the bus, each once. An unknown model is named by its PCI id: NVML reports the product only once a driver works,
/// and a changed name would move the node to another pool.
fn model_names<'c>(catalogue: &'c Catalogue, ids: &[Option<u16>]) -> Vec<Cow<'c, str>> {
    let mut names = Vec::new();
    for id in ids.iter().map(|id| id.unwrap_or_default()) {
        let known = catalogue.model_of_pci(id, None).map(|model| Cow::Borrowed(model.name.as_str()));
        let name = known.unwrap_or_else(|| unknown_model_name(id, None).into());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn notes(
    catalogue: &Catalogue,
    signals: &Signals,
    on_bus: &[Gpu],
    names: &[Cow<'_, str>],
    annotated: Annotated,
) -> Vec<Note> {
    let mut notes = Vec::new();
    if let Some(text) = annotated.unreadable {
        let message =
            format!("annotation {}: {text:?} is not a number of GPUs; write a number from 1 to 64", keys::GPU_COUNT);
        notes.push(Note::new(Reason::InvalidAnnotation, message));
    }
    let by_bus = one_or_mixed(names);
    let contradicted = |named: &&node_labels::Named| {
        // Products that share a PCI id are distinguished by their label.
        let model = catalogue.model(&named.model);
        let is_of = |gpu: &Gpu| model.zip(device_id(gpu)).is_some_and(|(model, id)| model.is_pci(id));
        by_bus.is_some_and(|by_bus| by_bus != named.model) && !on_bus.iter().any(is_of)
    };
    if let Some(named) = signals.named.as_ref().filter(contradicted) {
        let message = format!(
            "label {} names {}, but the PCI bus shows {}; the model is named by the label and the driver is chosen by the bus: correct the label or set {}",
            named.key,
            named.model,
            by_bus.unwrap_or("nothing"),
            keys::MODEL_OVERRIDE,
        );
        notes.push(Note::new(Reason::LabelMismatch, message));
    }
    if names.len() > 1 {
        let message = format!(
            "the node has GPUs of several models ({}), which share one driver; pools match the node by nodeSelector or by models: [{MIXED}], and pods cannot choose between its GPUs",
            names.join(", "),
        );
        notes.push(Note::new(Reason::MixedModels, message));
    }
    notes
}

/// The model in this operator's own label, all that remains of a node whose GpuNode was deleted.
fn own_label(node: &NodeFacts) -> Option<String> {
    node.labels.get(keys::MODEL).filter(|_| node.owned_labels.contains(keys::MODEL)).map(ToString::to_string)
}

/// Returns what was seen on this Node, by UID and not by name.
fn remembered<'r>(node: &NodeFacts, gpu_node: Option<&'r GpuNode>) -> Seen<'r> {
    let gpus = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref()).map(|status| &status.gpus);
    let gpus = gpus.filter(|gpus| gpus.seen_on.as_deref() == Some(node.uid.as_str()));
    gpus.map_or_else(Seen::default, |gpus| Seen {
        most: gpus.most_seen,
        at: gpus.seen_at.iter().map(String::as_str).collect(),
        device_ids: gpus.seen_device_ids.iter().map(String::as_str).collect(),
        boot_id: &gpus.seen_boot_id,
    })
}

fn now_seen<'r>(on_bus: &'r [Gpu], boot_id: &'r str) -> Seen<'r> {
    let count = count(on_bus);
    let device_ids: BTreeSet<_> = on_bus.iter().map(|gpu| gpu.device_id.as_str()).collect();
    Seen {
        most: (count > 0).then_some(count),
        at: on_bus.iter().map(|gpu| gpu.pci_address.as_str()).collect(),
        device_ids: device_ids.into_iter().collect(),
        boot_id,
    }
}

/// Returns the observation with more GPUs, or else the newer one.
fn most<'r>(now: Seen<'r>, before: Seen<'r>) -> Seen<'r> {
    if now.most >= before.most { now } else { before }
}

fn passed_through_of(seen: &Seen<'_>, report: Option<&Report>) -> u32 {
    let is_passed_through =
        |address: &&&str| report.is_some_and(|report| report.passed_through_at.iter().any(|at| at == **address));
    u32::try_from(seen.at.iter().filter(is_passed_through).count()).unwrap_or(u32::MAX)
}

pub fn passed_through(report: Option<&Report>) -> Option<String> {
    let count = report.map(|report| report.passed_through).filter(|count| *count > 0)?;
    let (gpus, verb) = if count == 1 { ("GPU", "is") } else { ("GPUs", "are") };
    Some(format!("{count} {gpus} {verb} passed through to virtual machines and not counted"))
}

pub fn on_bus(report: Option<&Report>) -> u32 {
    report.map_or(0, |report| count(&report.gpus))
}

fn count(gpus: &[Gpu]) -> u32 {
    u32::try_from(gpus.len()).unwrap_or(u32::MAX)
}

/// Adjacent equal ids count once.
fn device_ids(on_bus: &[Gpu]) -> Vec<Option<u16>> {
    let mut ids: Vec<_> = on_bus.iter().map(device_id).collect();
    ids.dedup();
    ids
}

fn device_id(gpu: &Gpu) -> Option<u16> {
    parse_id(&gpu.device_id)
}

fn parse_id(id: &str) -> Option<u16> {
    u16::from_str_radix(id.strip_prefix("0x").unwrap_or(id), 16).ok()
}
