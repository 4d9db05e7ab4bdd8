//! The driver as seen on the host: which module is loaded, whether it is in use, and where user-space libraries are
//! installed.

mod error;
mod kernel_module;
mod ld_cache;
mod libraries;
pub mod library_directories;
#[cfg(test)]
mod test_files;

pub use error::DriverError;
pub use gpu_operator_crd::report::{CONTAINER_ROOT, DRIVER_ROOTS, GKE_ROOT, HOST_ROOT};
pub use kernel_module::{config_digest, container_ran, in_use, is_kept_loaded, load_id, loaded};
pub use libraries::{Library, all_libraries, libraries};
