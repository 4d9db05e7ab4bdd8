//! The highest CUDA version that a node's driver serves, so that an image that needs a newer one is seen before its pod
//! fails. The catalogue knows it as soon as a driver is chosen, so that it costs no write of its own.

use gpu_operator_crd::{gpunode::Groups, keys};

use crate::{assess::member::Member, catalogue::Catalogue};

/// The ceilings of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// Of the driver that the policy wants.
    wanted: Option<String>,
    /// Whether that was known before the driver was there.
    foreseen: bool,
    /// Of the driver that is loaded.
    present: Option<String>,
    /// What was told last.
    told: Option<String>,
}

/// The ceilings of a node.
#[must_use]
pub fn ceilings(catalogue: &Catalogue, member: &Member<'_>) -> Ceilings {
    let of_version = |version: &str| catalogue.cuda_of(version).map(str::to_owned);
    let report = member.report();
    let said = || report.and_then(|report| report.driver.cuda_version.clone());
    let loaded = report.and_then(|report| report.driver.loaded.as_deref());
    let present = loaded.and_then(|loaded| of_version(loaded).or_else(said));
    let installed = |root: &str| {
        let under_root = report?.driver.installed.iter().find(|found| found.root == root)?;
        Some(under_root.version.as_str())
    };
    let wanted = member
        .driver()
        .and_then(|choice| choice.version().or_else(|| installed(choice.root())).and_then(of_version).or_else(said));
    let foreseen = member.driver().is_some_and(|choice| choice.version().is_some() || !choice.is_ours());
    Ceilings { wanted, foreseen, present, told: member.status().and_then(|status| status.cuda.clone()) }
}

impl Ceilings {
    /// The ceiling of the driver that a node has once its labels are as they are to be. What cannot be told at the moment
    /// stays as it was.
    #[must_use]
    pub fn of(&self, member: &Member<'_>, to_be: &Groups) -> Option<String> {
        let Self { wanted, present, told, .. } = self;
        let moves = member.want().is_some_and(|want| want.driver == to_be.driver);
        if moves { wanted } else { present }.as_ref().or(told.as_ref()).cloned()
    }

    /// The same for the node's label, which carries only what was known when the driver was chosen: an installer that chooses
    /// the version itself would cost every node a write more.
    #[must_use]
    pub fn label(&self, member: &Member<'_>, to_be: &Groups) -> Option<String> {
        if member.driver().is_some() {
            return self.of(member, to_be).filter(|_| self.foreseen);
        }
        // Nothing is known of the node at the moment, which proves nothing.
        let node = member.node;
        node.labels
            .get(keys::CUDA_VERSION)
            .filter(|_| node.owned_labels.contains(keys::CUDA_VERSION))
            .map(ToString::to_string)
    }
}
