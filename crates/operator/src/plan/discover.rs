//! Discovery: which nodes have GPUs, and of which model. Evidence-based and sticky: what is known stays known until
//! a live report says otherwise, because a missing signal proves nothing.

use gpu_operator_crd::{GpuNode, keys, report::Report};

use crate::{
    catalogue::{Accelerator, Catalogue, unknown_model_name},
    world::NodeFacts,
};

/// GKE's label with the accelerator's model.
const GKE_ACCELERATOR: &str = "cloud.google.com/gke-accelerator";
/// GKE's label with the number of accelerators.
const GKE_ACCELERATOR_COUNT: &str = "cloud.google.com/gke-accelerator-count";

/// What is known of a node's GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovery<'c> {
    /// Canonical name of the model. Of several, the one that comes first on the bus.
    pub model: String,
    /// The models on the node that the catalogue knows, each once.
    pub accelerators: Vec<&'c Accelerator>,
    /// How many GPUs should be there, by what the node itself and its cloud say; see [`expected`].
    pub expected: Option<u32>,
    /// The most GPUs ever seen on this Node's bus.
    pub most_seen: Option<u32>,
}

/// What is known of a node's GPUs; `None` for a node without.
#[must_use]
pub fn discover<'c>(catalogue: &'c Catalogue, node: &NodeFacts, gpu_node: Option<&GpuNode>) -> Option<Discovery<'c>> {
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    let report = status.and_then(|status| status.report.as_ref());
    if report.is_some_and(|report| report.gpus.is_empty()) && !had_gpus(node, gpu_node) {
        return None;
    }
    let from_cloud = node.labels.get(GKE_ACCELERATOR).filter(|value| !value.is_empty());
    let on_bus: Vec<_> = report.into_iter().flat_map(|report| &report.gpus).collect();
    let named = |name: &str| catalogue.model(name).map_or_else(|| name.to_owned(), |model| model.name.clone());
    let known = status.and_then(|status| status.model.clone()).or_else(|| own_label(node));
    // While a GPU is missing, the others do not say what kind of node this is.
    let all_there =
        remembered(node, gpu_node).is_none_or(|seen| usize::try_from(seen).is_ok_and(|seen| on_bus.len() >= seen));
    let model = match (from_cloud, on_bus.first()) {
        (Some(cloud), _) => named(cloud),
        (None, Some(gpu)) if all_there || known.is_none() => model_name(catalogue, &gpu.device_id),
        (None, _) => known?,
    };
    let mut accelerators: Vec<&Accelerator> = Vec::new();
    // The bus is the better witness; a name alone counts only where the bus says nothing.
    let on_bus = on_bus.iter().filter_map(|gpu| catalogue.model_of_pci(device_id(&gpu.device_id)?, None));
    for accelerator in on_bus {
        if accelerators.iter().all(|known| known.name != accelerator.name) {
            accelerators.push(accelerator);
        }
    }
    if accelerators.is_empty() {
        accelerators.extend(catalogue.model(&model));
    }
    let most_seen = most_seen(node, gpu_node, report);
    let expected = most_seen.or_else(|| node.labels.get(GKE_ACCELERATOR_COUNT)?.parse().ok());
    Some(Discovery { model, accelerators, expected, most_seen })
}

/// The model by our own label, if the label is ours: what is left to know of a node whose GpuNode was deleted.
fn own_label(node: &NodeFacts) -> Option<String> {
    node.labels.get(keys::MODEL).filter(|_| node.owned_labels.contains(keys::MODEL)).cloned()
}

/// A node whose bus shows no GPU now is still a GPU node, with all of them missing, if this very Node had some.
fn had_gpus(node: &NodeFacts, gpu_node: Option<&GpuNode>) -> bool {
    remembered(node, gpu_node).is_some_and(|count| count > 0)
}

fn remembered(node: &NodeFacts, gpu_node: Option<&GpuNode>) -> Option<u32> {
    let gpus = &gpu_node?.status.as_ref()?.gpus;
    gpus.most_seen.filter(|_| gpus.seen_on.as_deref() == Some(node.uid.as_str()))
}

fn most_seen(node: &NodeFacts, gpu_node: Option<&GpuNode>, report: Option<&Report>) -> Option<u32> {
    let now = report.and_then(|report| u32::try_from(report.gpus.len()).ok()).filter(|count| *count > 0);
    now.max(remembered(node, gpu_node))
}

/// The model of a PCI id. One that the catalogue lacks is named by its id and not by its product: NVML tells the
/// product only once a driver works, and a name that changes then would move the node to another pool.
fn model_name(catalogue: &Catalogue, id: &str) -> String {
    let number = device_id(id);
    number
        .and_then(|number| catalogue.model_of_pci(number, None))
        .map_or_else(|| unknown_model_name(number.unwrap_or_default(), None), |model| model.name.clone())
}

fn device_id(text: &str) -> Option<u16> {
    u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}
