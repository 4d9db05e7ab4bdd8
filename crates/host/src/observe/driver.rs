//! The driver as seen on the host: which module is loaded, whether it is in use, and where user-space libraries are
//! installed.

mod kernel_module;
mod libraries;
pub mod library_directories;

pub use gpu_operator_crd::report::{CONTAINER_ROOT, DRIVER_ROOTS, GKE_ROOT, HOST_ROOT};
pub use kernel_module::{DriverError, config_digest, container_ran, in_use, is_kept_loaded, load_id, loaded};
pub use libraries::{Library, all_libraries, libraries};

#[cfg(test)]
mod test_files {
    use std::{fs, path::Path};

    /// Writes a file below a root, and the directories above it.
    pub fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}
