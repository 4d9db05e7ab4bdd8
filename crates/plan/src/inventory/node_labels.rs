//! Signals: what labels of clouds, of NFD and of the user say of a node's GPUs, before any report and beside it.
//!
//! The keys and their values are from the clouds' and NFD's documentation. They are read and never written.

use std::ops::Bound;

use gpu_operator_crd::keys;

use crate::{
    catalogue::Catalogue,
    world::{NodeFacts, NodeLabels, Word},
};

/// What labels say of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// The model that the user says the node counts as, by its canonical name where the catalogue has one.
    pub overridden: Option<String>,
    /// The model that a label names, and which label.
    pub named: Option<Named>,
    /// Whether a label says that there are NVIDIA GPUs, of whatever model.
    pub present: bool,
    /// How many GPUs a label says there are.
    pub count: Option<u32>,
}

/// A label that names a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The label's key.
    pub key: String,
    /// The model's canonical name; the label's own word where the catalogue has none for it.
    pub model: String,
}

/// A cloud's labels.
struct Cloud {
    /// The key that names the model.
    model: &'static str,
    /// Whether every value is a model's canonical name, known to us or not.
    canonical: bool,
    /// The key that says whose GPUs they are.
    maker: Option<&'static str>,
    /// The key that counts them.
    count: Option<&'static str>,
    /// The key that tells the memory of one of them, in MiB: it parts models that share a short name.
    memory: Option<&'static str>,
}

/// In the order in which they are believed.
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

/// Labels that say no more than that there are NVIDIA GPUs: AKS, today's and the older one.
const PRESENCE: [(&str, &str); 2] = [("kubernetes.azure.com/accelerator", "nvidia"), ("accelerator", "nvidia")];
/// GPU feature discovery's count.
const GFD_COUNT: &str = "nvidia.com/gpu.count";
/// NFD's labels of PCI devices: the configured fields of the device, joined by `_`, and `.present`.
const NFD_PCI: &str = "feature.node.kubernetes.io/pci-";
const NFD_PRESENT: &str = ".present";
/// NVIDIA, as a PCI vendor.
const NVIDIA: &str = "10de";

/// What a node's labels say. What we have published ourselves is no witness, whatever its key.
#[must_use]
pub fn signals(catalogue: &Catalogue, node: &NodeFacts) -> Signals {
    let theirs = |key: &str| !node.owned_labels.contains(key);
    let get = |key: &str| node.labels.get(key).map(Word::as_str).filter(|value| !value.is_empty() && theirs(key));
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

/// The canonical name of a model, whichever cloud's word for it is given; the word itself where nobody knows it.
#[must_use]
pub fn canonical(catalogue: &Catalogue, name: &str) -> String {
    catalogue.model(name).map_or_else(|| name.to_owned(), |model| model.name.clone())
}

/// The model that a cloud's word means, which may be short for several that differ in memory.
fn known(catalogue: &Catalogue, word: &str, memory_mib: Option<u32>) -> Option<String> {
    let word = word.to_ascii_lowercase();
    let sized = memory_mib.map(|mib| format!("nvidia-{word}-{}gb", mib / 1024));
    let fits = |name: &String| {
        let model = catalogue.model(name)?;
        let same = model.memory_mib.zip(memory_mib).is_none_or(|(nominal, told)| nominal / 1024 == told / 1024);
        same.then(|| model.name.clone())
    };
    if let Some(model) = catalogue.model(&word) {
        return Some(model.name.clone());
    }
    // Without its memory a short word says nothing: `a100` is one of two.
    sized.and_then(|sized| fits(&sized).or_else(|| fits(&format!("nvidia-tesla-{word}"))))
}

/// What NFD's PCI labels say: the model, where they are configured to hold device ids, and whether NVIDIA is there.
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

/// PCI classes that begin with `0`, as all that matter here do; NVIDIA's device ids are larger.
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
    fn a_label_that_we_published_is_no_witness() {
        let mut published = node(&[("cloud.google.com/gke-accelerator", "nvidia-tesla-k80")]);
        published.owned_labels.insert("cloud.google.com/gke-accelerator".into());
        assert_eq!(signals(&Catalogue::builtin().unwrap(), &published), Signals::default());
    }

    #[test]
    fn every_clouds_word_for_a_model_is_understood() {
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
    fn what_is_not_nvidias_or_no_gpu_says_nothing() {
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
    fn an_override_is_understood_in_every_clouds_words() {
        assert_eq!(read(&[(keys::MODEL_OVERRIDE, "t4")]).overridden.as_deref(), Some("nvidia-tesla-t4"));
        assert_eq!(read(&[(keys::MODEL_OVERRIDE, "ours")]).overridden.as_deref(), Some("ours"));
    }
}
