//! Names of containers in the operands' pods: what a pod reports about a container is found again by its name.

/// The init container that installs.
pub const INSTALLER: &str = "install-driver";

/// The init container that lets no installer at a driver in use.
pub const GUARD: &str = "guard-driver-in-use";

/// The sidecar's name.
pub const DEVICE_NODES: &str = "device-nodes";

/// The init container that unloads nouveau.
pub const UNLOAD_NOUVEAU: &str = "unload-nouveau";

/// Its name.
pub const DIVIDER: &str = "divide-gpus";

/// The step of a toolkit's pod in which NVIDIA's installer runs.
pub const INSTALL_TOOLKIT: &str = "install-toolkit";

/// The step of a toolkit's pod that restarts the container runtime.
pub const RESTART_RUNTIME: &str = "restart-runtime";

/// Says to every step that NVIDIA's runtime is the default.
pub const RESTART_AT_END: &str = "--default";

/// The container that tests.
pub const VALIDATION: &str = "test";
