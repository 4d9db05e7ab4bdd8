//! The catalogue of accelerators: which model a PCI device is, which drivers and kernel modules run it, and which
//! driver we recommend.
//!
//! Pure data and pure functions. The data is `data/accelerators.yaml` and, for desktop cards, `data/desktop.txt`, reviewed
//! like code; their sources are the PCI ID Project's pci.ids, NVIDIA's documentation and cloud providers' documentation. What rests on less says so in a
//! `believed` text that stays with it: [`Accelerator::believed`]; what is known of a driver's images has its source beside it:
//! [`Release::source`].

mod added;
mod branch;
mod desktop;
mod load;
mod model;
mod modules;
mod name;
mod release;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::catalogue::load::ArchitectureEntry;

pub use added::Conflict;
pub use branch::{DriverUnsupported, ModelLimit, NoCommonDriver, branch_of};
pub use gpu_operator_crd::policy::{Architecture, ModuleSupport};
pub use load::CatalogueError;
pub use model::{Accelerator, BranchRange, PciDevice, Subsystem};
pub use modules::{Flavour, FlavourUnsupported, common_module_flavour, module_flavour};
pub use name::{is_label_value, unknown_model_name};
pub use release::{NoImageForOs, Release};

/// The data file.
const BUILTIN: &str = include_str!("../data/accelerators.yaml");
/// The table of desktop cards.
const DESKTOP: &str = include_str!("../data/desktop.txt");

/// Every accelerator that is known, and every driver version that is recommended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    models: Vec<Accelerator>,
    architectures: Vec<ArchitectureEntry>,
    /// Highest CUDA version by driver branch.
    cuda: BTreeMap<u16, String>,
    /// In ascending order of the version.
    releases: Vec<Release>,
    switches: Vec<u16>,
    /// Index in `models` by canonical name and by alias.
    by_name: BTreeMap<String, usize>,
    /// Index in `models` by PCI device id, with the subsystem where models share the id.
    by_pci: BTreeMap<(u16, Option<Subsystem>), usize>,
}

impl Catalogue {
    /// The catalogue that is built into the operator. Reading it takes about a millisecond: read it once and pass it on.
    ///
    /// # Errors
    /// Never, as long as the data files are sound, which the tests prove.
    pub fn builtin() -> Result<Self, CatalogueError> {
        Self::from_files(BUILTIN, DESKTOP)
    }

    /// The model of one of NVIDIA's PCI devices, by device id (without the vendor's `10de`) and, for products that share
    /// an id, subsystem. Without a subsystem, or with an unknown one, products that share an id are one model whose name
    /// says so, such as `nvidia-a2-a16`.
    #[must_use]
    pub fn model_of_pci(&self, device_id: u16, subsystem: Option<Subsystem>) -> Option<&Accelerator> {
        let exact = subsystem.and_then(|s| self.by_pci.get(&(device_id, Some(s))));
        self.models.get(*exact.or_else(|| self.by_pci.get(&(device_id, None)))?)
    }

    /// The model of a canonical name, or of another cloud's word for it.
    #[must_use]
    pub fn model(&self, name_or_alias: &str) -> Option<&Accelerator> {
        self.models.get(*self.by_name.get(name_or_alias)?)
    }

    /// The highest CUDA version that a driver's branch serves, as far as the catalogue knows.
    #[must_use]
    pub fn cuda_of(&self, version: &str) -> Option<&str> {
        self.cuda.get(&branch_of(version)?).map(String::as_str)
    }

    /// All models, in the order of the data files.
    pub fn models(&self) -> impl Iterator<Item = &Accelerator> {
        self.models.iter()
    }

    /// Whether one of NVIDIA's PCI devices, by device id, is an `NVSwitch`: on the bus, but no GPU.
    #[must_use]
    pub fn is_switch(&self, device_id: u16) -> bool {
        self.switches.contains(&device_id)
    }
}
