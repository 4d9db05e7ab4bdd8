//! The highest CUDA version that a node's driver supports, so that images that need a newer one can be detected before their
//! pods fail. The catalogue contains it as soon as a driver is chosen, so publishing it needs no extra write.

use gpu_operator_crd::{gpunode::StageRevisions, keys};

use crate::{assess::member::Member, catalogue::Catalogue};

/// The highest CUDA versions for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// The one of the driver that the policy wants.
    wanted: Option<String>,
    /// Whether `wanted` is known before that driver is installed.
    foreseen: bool,
    /// The one of the loaded driver.
    present: Option<String>,
    /// The one in the GpuNode's status.
    told: Option<String>,
}

/// Returns the highest CUDA versions for a node.
pub fn ceilings(catalogue: &Catalogue, member: &Member<'_>) -> Ceilings {
    let of_version = |version: &str| catalogue.cuda_of(version).map(str::to_owned);
    let report = member.report;
    let reported = || report.and_then(|report| report.driver.cuda_version.clone());
    let loaded = report.and_then(|report| report.driver.loaded.as_deref());
    let present = loaded.and_then(|loaded| of_version(loaded).or_else(reported));
    let installed = |root: &str| {
        let under_root = report?.driver.installed.iter().find(|found| found.root == root)?;
        Some(under_root.version.as_str())
    };
    let wanted = member.driver().and_then(|choice| {
        choice.version().or_else(|| installed(choice.root())).and_then(of_version).or_else(reported)
    });
    let foreseen = member.driver().is_some_and(|choice| choice.version().is_some() || !choice.is_managed());
    Ceilings { wanted, foreseen, present, told: member.status().and_then(|status| status.cuda.clone()) }
}

impl Ceilings {
    /// Returns the version for the driver that a node has once its labels name the groups `to_be`. A version that is unknown
    /// at the moment is left unchanged.
    pub fn of(&self, member: &Member<'_>, to_be: &StageRevisions) -> Option<String> {
        let Self { wanted, present, told, .. } = self;
        let moves = member.want().is_some_and(|want| want.driver == to_be.driver);
        if moves { wanted } else { present }.as_ref().or(told.as_ref()).cloned()
    }

    /// Returns the version for the node's label, which contains only a version that was known when the driver was chosen:
    /// otherwise an installer that chooses the driver version itself would cost one more write per node.
    pub fn label(&self, member: &Member<'_>, to_be: &StageRevisions) -> Option<String> {
        if member.driver().is_some() {
            return self.of(member, to_be).filter(|_| self.foreseen);
        }
        // The node's driver is unknown at the moment, so its label stays.
        let node = member.node;
        node.labels
            .get(keys::CUDA_VERSION)
            .filter(|_| node.owned_labels.contains(keys::CUDA_VERSION))
            .map(ToString::to_string)
    }
}
