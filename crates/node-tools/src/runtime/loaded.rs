//! The record of the configuration that a runtime has loaded.

use serde::{Deserialize, Serialize};

use super::daemon::ProcessIdentity;

/// The name of the file with this record, in the folder for state that does not survive a reboot.
pub const FILE_NAME: &str = "loaded.json";

/// The configuration that the runtime is known to have loaded.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct LoadedConfig {
    pub process: ProcessIdentity,
    /// The digest of the files at that time.
    pub digest: String,
}
