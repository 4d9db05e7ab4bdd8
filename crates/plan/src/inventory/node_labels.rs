//! What labels of clouds, NFD and users show of a node's GPUs. Keys and values are those of the clouds' and NFD's documentation.

use std::ops::Bound;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::keys;

use crate::{
    catalogue::Catalogue,
    world::{NodeFacts, NodeLabels},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The user's choice, by the canonical name if the catalogue has one.
    pub overridden: Option<String>,
    /// The label that names a model, and the model.
    pub named: Option<Named>,
    /// Whether a label shows NVIDIA GPUs of any model.
    pub present: bool,
    pub count: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub key: String,
    /// The canonical name, or the label's value if it is not in the catalogue.
    pub model: String,
}

struct Cloud {
    model: &'static str,
    /// Whether every value is a canonical name, in the catalogue or not.
    canonical: bool,
    /// The key of the GPUs' manufacturer.
    maker: Option<&'static str>,
    count: Option<&'static str>,
    /// The key of a GPU's memory in MiB, which distinguishes models with the same short name.
    memory: Option<&'static str>,
}

/// In order of precedence.
const CLOUDS: [Cloud; 5] = [
    Cloud {
        model: "cloud.google.com/gke-accelerator",
        canonical: true,
        maker: None,
        count: Some("cloud.google.com/gke-accelerator-count"),
        memory: None,
    },
    // Karpenter on AWS.
    Cloud {
        model: "karpenter.k8s.aws/instance-gpu-name",
        canonical: false,
        maker: Some("karpenter.k8s.aws/instance-gpu-manufacturer"),
        count: Some("karpenter.k8s.aws/instance-gpu-count"),
        memory: Some("karpenter.k8s.aws/instance-gpu-memory"),
    },
    // EKS Auto Mode. That it has the same four keys as Karpenter is by analogy, unverified.
    Cloud {
        model: "eks.amazonaws.com/instance-gpu-name",
        canonical: false,
        maker: Some("eks.amazonaws.com/instance-gpu-manufacturer"),
        count: Some("eks.amazonaws.com/instance-gpu-count"),
        memory: Some("eks.amazonaws.com/instance-gpu-memory"),
    },
    // EKS managed node groups: written by eksctl or by the user, for the cluster autoscaler.
    Cloud { model: "k8s.amazonaws.com/accelerator", canonical: false, maker: None, count: None, memory: None },
    // AKS node auto-provisioning. General knowledge, unverified.
    Cloud {
        model: "karpenter.azure.com/sku-gpu-name",
        canonical: false,
        maker: Some("karpenter.azure.com/sku-gpu-manufacturer"),
        count: Some("karpenter.azure.com/sku-gpu-count"),
        memory: None,
    },
];

/// Labels that only show the presence of NVIDIA GPUs: the current and the older one of AKS.
const PRESENCE: [(&str, &str); 2] = [("kubernetes.azure.com/accelerator", "nvidia"), ("accelerator", "nvidia")];
const GFD_COUNT: &str = "nvidia.com/gpu.count";
/// NFD's labels of PCI devices: the configured fields of the device, joined by `_`, and `.present`.
const NFD_PCI: &str = "feature.node.kubernetes.io/pci-";
const NFD_PRESENT: &str = ".present";
/// NVIDIA, as a PCI vendor.
const NVIDIA: &str = "10de";

/// Labels that this operator has published are ignored, whatever their key.
pub fn signals(catalogue: &Catalogue, node: &NodeFacts) -> Signals {
    let is_foreign = |key: &str| !node.owned_labels.contains(key);
    let get =
        |key: &str| node.labels.get(key).map(Interned::as_str).filter(|value| !value.is_empty() && is_foreign(key));
    let mut signals = Signals {
        overridden: get(keys::MODEL_OVERRIDE).map(|name| canonical(catalogue, name)),
        present: PRESENCE.iter().any(|(key, value)| get(key) == Some(*value)),
        ..Signals::default()
    };
    for cloud in &CLOUDS {
        let Some(value) = get(cloud.model) else { continue };
        let maker = cloud.maker.and_then(get);
        if maker.is_some_and(|maker| !maker.eq_ignore_ascii_case("nvidia")) {
            continue;
        }
        let memory = cloud.memory.and_then(get).and_then(|memory| memory.parse().ok());
        let model = known(catalogue, value, memory).or_else(|| cloud.canonical.then(|| value.to_owned()));
        signals.present |= model.is_some() || maker.is_some();
        signals.count = signals.count.or_else(|| cloud.count.and_then(get)?.parse().ok());
        let named = model.map(|model| Named { key: cloud.model.to_owned(), model });
        signals.named = signals.named.or(named);
    }
    let (nfd, nfd_present) = nfd(catalogue, &node.labels);
    signals.present |= nfd_present;
    signals.named = signals.named.or(nfd);
    signals.count = signals.count.or_else(|| get(GFD_COUNT)?.parse().ok());
    signals
}

/// Whether a label may decide of which model a node is.
pub fn names_a_model(key: &str) -> bool {
    let is_of = |cloud: &Cloud| key == cloud.model || [cloud.maker, cloud.memory].contains(&Some(key));
    key == keys::MODEL_OVERRIDE || key.starts_with(NFD_PCI) || CLOUDS.iter().any(is_of)
}

/// Returns the canonical name by any cloud's name, or the given name if the catalogue lacks it.
pub fn canonical(catalogue: &Catalogue, name: &str) -> String {
    catalogue.model(name).map_or_else(|| name.to_owned(), |model| model.name.clone())
}

/// The name may be short for several models that differ in memory.
fn known(catalogue: &Catalogue, word: &str, memory_mib: Option<u32>) -> Option<String> {
    let word = word.to_ascii_lowercase();
    let sized = memory_mib.map(|mib| format!("nvidia-{word}-{}gb", mib / 1024));
    let fits = |name: &String| {
        let model = catalogue.model(name)?;
        let same = model.memory_mib.zip(memory_mib).is_none_or(|(nominal, given)| nominal / 1024 == given / 1024);
        same.then(|| model.name.clone())
    };
    if let Some(model) = catalogue.model(&word) {
        return Some(model.name.clone());
    }
    // Without its memory size a short name is ambiguous: `a100` is one of two models.
    sized.and_then(|sized| fits(&sized).or_else(|| fits(&format!("nvidia-tesla-{word}"))))
}

/// Returns the model, if NFD is configured to include device ids, and whether an NVIDIA GPU is present.
fn nfd(catalogue: &Catalogue, labels: &NodeLabels) -> (Option<Named>, bool) {
    let mut present = false;
    for (key, value) in labels.range::<str, _>((Bound::Included(NFD_PCI), Bound::Unbounded)) {
        let Some(rest) = key.strip_prefix(NFD_PCI) else { break };
        let Some(fields) = rest.strip_suffix(NFD_PRESENT).filter(|_| value == "true") else { continue };
        let fields: Vec<&str> = fields.split('_').collect();
        // Class 03 is a display controller; NVIDIA's other devices (audio, USB, switches) have others.
        let display = fields.first().is_none_or(|first| !is_class(first) || first.starts_with("03"));
        if !fields.contains(&NVIDIA) || !display {
            continue;
        }
        present = true;
        let ids = fields.iter().filter(|field| **field != NVIDIA && !is_class(field));
        let model =
            ids.filter_map(|field| u16::from_str_radix(field, 16).ok()).find_map(|id| catalogue.model_of_pci(id, None));
        if let Some(model) = model {
            return (Some(Named { key: key.to_string(), model: model.name.clone() }), true);
        }
    }
    (None, present)
}

/// All relevant PCI classes begin with `0`; NVIDIA's device ids are larger.
fn is_class(field: &str) -> bool {
    field.len() == 4 && field.starts_with('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(labels: &[(&str, &str)]) -> NodeFacts {
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        NodeFacts { labels, ..NodeFacts::default() }
    }

    fn read(labels: &[(&str, &str)]) -> Signals {
        signals(&Catalogue::builtin().unwrap(), &node(labels))
    }

    #[test]
    fn a_label_that_this_operator_published_is_ignored() {
        let mut published = node(&[("cloud.google.com/gke-accelerator", "nvidia-tesla-k80")]);
        published.owned_labels.insert("cloud.google.com/gke-accelerator".into());
        assert_eq!(signals(&Catalogue::builtin().unwrap(), &published), Signals::default());
    }

    #[test]
    fn every_clouds_name_of_a_model_is_known() {
        const KARPENTER: &str = "karpenter.k8s.aws/instance-gpu";
        let karpenter = |name: &str, memory: &str| {
            read(&[
                (&format!("{KARPENTER}-name"), name),
                (&format!("{KARPENTER}-manufacturer"), "nvidia"),
                (&format!("{KARPENTER}-memory"), memory),
                (&format!("{KARPENTER}-count"), "8"),
            ])
        };
        for (signals, model, count) in [
            (read(&[("cloud.google.com/gke-accelerator", "nvidia-tesla-k80")]), Some("nvidia-tesla-k80"), None),
            (read(&[("cloud.google.com/gke-accelerator", "nvidia-of-tomorrow")]), Some("nvidia-of-tomorrow"), None),
            (read(&[("k8s.amazonaws.com/accelerator", "nvidia-tesla-t4")]), Some("nvidia-tesla-t4"), None),
            (read(&[("eks.amazonaws.com/instance-gpu-name", "l40s")]), Some("nvidia-l40s"), None),
            (karpenter("t4", "16384"), Some("nvidia-tesla-t4"), Some(8)),
            (karpenter("a100", "40960"), Some("nvidia-tesla-a100"), Some(8)),
            (karpenter("a100", "81920"), Some("nvidia-a100-80gb"), Some(8)),
            (karpenter("of-tomorrow", "1"), None, Some(8)),
            (read(&[("karpenter.azure.com/sku-gpu-name", "T4")]), Some("nvidia-tesla-t4"), None),
            (
                read(&[("feature.node.kubernetes.io/pci-0302_10de_2330.present", "true")]),
                Some("nvidia-h100-80gb"),
                None,
            ),
            (read(&[("kubernetes.azure.com/accelerator", "nvidia"), ("nvidia.com/gpu.count", "4")]), None, Some(4)),
            (read(&[("feature.node.kubernetes.io/pci-0302_10de.present", "true")]), None, None),
            (read(&[("feature.node.kubernetes.io/pci-10de.present", "true")]), None, None),
        ] {
            let named = signals.named.as_ref().map(|named| named.model.as_str());
            assert_eq!((named, signals.count), (model, count), "{signals:?}");
            assert!(signals.present, "{signals:?}");
        }
    }

    #[test]
    fn labels_of_other_manufacturers_and_devices_are_ignored() {
        for labels in [
            vec![
                ("karpenter.k8s.aws/instance-gpu-name", "v520"),
                ("karpenter.k8s.aws/instance-gpu-manufacturer", "amd"),
            ],
            vec![("feature.node.kubernetes.io/pci-0403_10de.present", "true")],
            vec![("feature.node.kubernetes.io/pci-0302_1002.present", "true")],
            vec![("feature.node.kubernetes.io/pci-10de.present", "false")],
            vec![("accelerator", "nvidia-tesla-t4")],
            vec![("cloud.google.com/gke-accelerator", "")],
        ] {
            assert_eq!(read(&labels), Signals::default(), "{labels:?}");
        }
    }

    #[test]
    fn an_override_may_be_any_clouds_name() {
        assert_eq!(read(&[(keys::MODEL_OVERRIDE, "t4")]).overridden.as_deref(), Some("nvidia-tesla-t4"));
        assert_eq!(read(&[(keys::MODEL_OVERRIDE, "own")]).overridden.as_deref(), Some("own"));
    }
}
