//! The catalogue of accelerators: the model of a PCI device, the drivers and kernel modules that support it, and the recommended
//! driver.
//!
//! Pure data and pure functions. The data is `data/accelerators.yaml` and, for desktop cards, `data/desktop.txt`, reviewed
//! like code; their sources are the PCI ID Project's pci.ids, NVIDIA's documentation and cloud providers' documentation. Facts
//! with a weaker basis carry a `believed` text: [`Accelerator::believed`]. Facts about a driver's images carry their source:
//! [`Release::source`].

mod load;
mod model;
mod modules;
mod release;
mod table;
#[cfg(test)]
mod tests;

pub use gpu_operator_crd::policy::{Architecture, ModuleSupport};
pub use load::CatalogueError;
pub use model::branch_of;
pub use model::{Accelerator, BranchRange, PciDevice, Release, Subsystem};
pub use model::{is_label_value, unknown_model_name};
pub use modules::{Flavour, FlavourUnsupported, common_module_flavour, module_flavour};
pub use release::NoImageForOs;
pub use release::{DriverUnsupported, ModelLimit, NoCommonDriver};
pub use table::Catalogue;
pub use table::Conflict;
