//! Names of containers in the operands' pods, by which their states are found in the pods' statuses.

/// The init container that installs the driver.
pub const INSTALLER: &str = "install-driver";

/// The init container that prevents an installer from replacing a driver in use.
pub const GUARD: &str = "guard-driver-in-use";

/// The sidecar that creates device nodes.
pub const DEVICE_NODES: &str = "device-nodes";

/// The init container that unloads nouveau.
pub const UNLOAD_NOUVEAU: &str = "unload-nouveau";

/// The init container that writes the configuration file of a device plugin.
pub const CONFIG_WRITER: &str = "write-config";

/// The init container that applies the MIG layout.
pub const DIVIDER: &str = "divide-gpus";

/// The init container of a toolkit's pod that runs NVIDIA's installer.
pub const INSTALL_TOOLKIT: &str = "install-toolkit";

/// The init container of a toolkit's pod that restarts the container runtime.
pub const RESTART_RUNTIME: &str = "restart-runtime";

/// The argument of the toolkit's containers if NVIDIA's runtime is the default.
pub const RESTART_AT_END: &str = "--default";

/// The container that runs the validation test.
pub const VALIDATION: &str = "test";
/// Pulls the image of NVIDIA's driver container before an update.
pub const PREFLIGHT_DRIVER: &str = "driver-driver";
