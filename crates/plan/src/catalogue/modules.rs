use std::fmt;

use gpu_operator_crd::policy::{KernelModule, ModuleSupport};
use serde::Serialize;
use thiserror::Error;

use super::model::{Accelerator, branch_of};

/// The first branch with open modules (general knowledge, unverified).
const OPEN_SINCE: u16 = 515;
/// The first branch in which NVIDIA's installer prefers the open modules if both are supported (NVIDIA documentation).
const OPEN_PREFERRED_SINCE: u16 = 560;

#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    Open,
    Proprietary,
}

impl Flavour {
    /// Returns the value that NVIDIA's driver container expects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Proprietary => "proprietary",
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A reason why no flavour can be loaded. The message contains what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FlavourUnsupported {
    #[error(
        "{model} runs with the proprietary kernel modules only; write driver.container.kernelModule: Proprietary, or Auto to leave the choice to the operator"
    )]
    ProprietaryOnly { model: String },
    #[error(
        "{model} runs with the open kernel modules only; write driver.container.kernelModule: Open, or Auto to leave the choice to the operator"
    )]
    OpenOnly { model: String },
    #[error(
        "driver {version} has no open kernel modules, which exist from branch 515 on; write a newer driver.version, or driver.container.kernelModule: Proprietary if the model supports it"
    )]
    NotYetOpen { version: String },
    #[error(
        "{proprietary_only} runs with the proprietary kernel modules only and {open_only} with the open ones only; no driver runs both on one node: move one of them to another node"
    )]
    Mixed { proprietary_only: String, open_only: String },
    #[error("{version:?} is not a driver version; write a full version such as 580.173.02")]
    NotAVersion { version: String },
}

/// Returns the flavour of kernel modules for a model with a driver of `version` (`580.173.02`, or a branch such as `580`).
/// `Auto` selects the only flavour that supports the model or, if both do, the one NVIDIA prefers: open from branch 560 on.
pub fn module_flavour(
    accelerator: &Accelerator,
    version: &str,
    requested: KernelModule,
) -> Result<Flavour, FlavourUnsupported> {
    common_module_flavour(&[accelerator], version, requested)
}

/// Like [`module_flavour`], for a node with GPUs of all these models. Without models, either flavour is considered supported.
pub fn common_module_flavour(
    models: &[&Accelerator],
    version: &str,
    requested: KernelModule,
) -> Result<Flavour, FlavourUnsupported> {
    let Some(branch) = branch_of(version) else {
        return Err(FlavourUnsupported::NotAVersion { version: version.to_owned() });
    };
    let (proprietary_only, open_only) = exclusive(models);
    let flavour = match (requested, proprietary_only, open_only) {
        (_, Some(one), Some(other)) => {
            return Err(FlavourUnsupported::Mixed { proprietary_only: one.title(), open_only: other.title() });
        }
        (KernelModule::Open, Some(model), None) => {
            return Err(FlavourUnsupported::ProprietaryOnly { model: model.title() });
        }
        (KernelModule::Proprietary, None, Some(model)) => {
            return Err(FlavourUnsupported::OpenOnly { model: model.title() });
        }
        (KernelModule::Auto, None, None) if branch < OPEN_PREFERRED_SINCE => Flavour::Proprietary,
        (KernelModule::Auto | KernelModule::Proprietary, Some(_), None) | (KernelModule::Proprietary, None, None) => {
            Flavour::Proprietary
        }
        (KernelModule::Auto | KernelModule::Open, None, _) => Flavour::Open,
    };
    if flavour == Flavour::Open && branch < OPEN_SINCE {
        return Err(FlavourUnsupported::NotYetOpen { version: version.to_owned() });
    }
    Ok(flavour)
}

/// Returns the first model that needs the proprietary modules, and the first that needs the open ones.
pub(super) fn exclusive<'a>(models: &[&'a Accelerator]) -> (Option<&'a Accelerator>, Option<&'a Accelerator>) {
    let first = |support| models.iter().copied().find(|m| m.modules == support);
    (first(ModuleSupport::ProprietaryOnly), first(ModuleSupport::OpenOnly))
}
