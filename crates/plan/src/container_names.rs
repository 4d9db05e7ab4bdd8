//! Names of containers in the operands' pods, by which their states are found in the pods' statuses.

pub const INSTALLER: &str = "install-driver";

/// The init container that prevents an installer from replacing a driver in use.
pub const GUARD: &str = "guard-driver-in-use";
pub const DEVICE_NODES: &str = "device-nodes";
pub const UNLOAD_NOUVEAU: &str = "unload-nouveau";
/// By which a DaemonSet of the device plugin's stage is that of the DRA driver.
pub const DRA_DRIVER: &str = "dra-driver";
pub const CONFIG_WRITER: &str = "write-config";

/// The init container that applies the MIG layout.
pub const DIVIDER: &str = "divide-gpus";
pub const INSTALL_TOOLKIT: &str = "install-toolkit";
pub const RESTART_RUNTIME: &str = "restart-runtime";

/// The argument of the toolkit's containers if NVIDIA's runtime is the default.
pub const RESTART_AT_END: &str = "--default";
pub const VALIDATION: &str = "test";
/// Pulls the image of NVIDIA's driver container before an update.
pub const PREFLIGHT_DRIVER: &str = "driver-driver";
