//! The catalogue of accelerators: the model of a PCI device, the drivers and kernel modules that support it, and the recommended
//! driver.
//!
//! Pure data and pure functions. The data is `data/accelerators.yaml` and, for desktop cards, `data/desktop.txt`, reviewed
//! like code; their sources are the PCI ID Project's pci.ids, NVIDIA's documentation and cloud providers' documentation. Facts
//! with a weaker basis carry a `believed` text: [`Accelerator::believed`]. Facts about a driver's images carry their source:
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

/// All known accelerators, and all recommended driver versions.
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
    /// Returns the catalogue that is built into the operator. Parsing takes about a millisecond: do it once and pass it on.
    ///
    /// # Errors
    /// Never, as long as the data files are valid, which the tests ensure.
    pub fn builtin() -> Result<Self, CatalogueError> {
        Self::from_files(BUILTIN, DESKTOP)
    }

    /// Returns the model of an NVIDIA PCI device, by device id (without the vendor's `10de`) and, for products that share
    /// an id, subsystem. Without a subsystem, or with an unknown one, products that share an id are one model with a combined
    /// name, such as `nvidia-a2-a16`.
    #[must_use]
    pub fn model_of_pci(&self, device_id: u16, subsystem: Option<Subsystem>) -> Option<&Accelerator> {
        let exact = subsystem.and_then(|s| self.by_pci.get(&(device_id, Some(s))));
        self.models.get(*exact.or_else(|| self.by_pci.get(&(device_id, None)))?)
    }

    /// Returns the model with a canonical name or an alias.
    #[must_use]
    pub fn model(&self, name_or_alias: &str) -> Option<&Accelerator> {
        self.models.get(*self.by_name.get(name_or_alias)?)
    }

    /// Returns the highest CUDA version that a driver's branch supports, or `None` if the catalogue does not have the branch.
    #[must_use]
    pub fn cuda_of(&self, version: &str) -> Option<&str> {
        self.cuda.get(&branch_of(version)?).map(String::as_str)
    }

    /// Returns all models, in the order of the data files.
    pub fn models(&self) -> impl Iterator<Item = &Accelerator> {
        self.models.iter()
    }

    /// Returns whether an NVIDIA PCI device, by device id, is an `NVSwitch`: on the bus, but not a GPU.
    #[must_use]
    pub fn is_switch(&self, device_id: u16) -> bool {
        self.switches.contains(&device_id)
    }
}
