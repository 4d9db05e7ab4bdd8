//! Drivers in a plain folder of the host, such as those of Google's installers, whose device nodes are in the host's
//! `/dev`. NVIDIA's runtime looks for them below the folder (nvidia-container-toolkit v1.20.1,
//! `internal/runtime/runtime.go`: the root of the driver is also that of its devices), so containers get their GPUs by
//! CDI specifications instead, which the device plugin writes with both roots.

use gpu_operator_crd::{
    reason::Reason,
    report::{CONTAINER_ROOT, HOST_ROOT},
};

use crate::desired::{
    fault::Fault,
    toolkit::choice::{RuntimeSetup, ToolkitChoice},
};

/// Returns whether a driver's root is a plain folder and not a root file system with its own `/dev`.
fn is_folder(root: &str) -> bool {
    root != CONTAINER_ROOT && root != HOST_ROOT
}

/// Checks that containers get the GPUs of a driver with this root.
pub fn check(choice: &ToolkitChoice, root: &str) -> Result<(), Fault> {
    match choice {
        ToolkitChoice::Runtime(RuntimeSetup { cdi: false, kind, .. }) if is_folder(root) => {
            let message = format!(
                "NVIDIA's runtime, by which {kind} would give containers their GPUs, looks for device nodes in the driver's folder, {root}, which has none; remove toolkit.injection and toolkit.setAsDefault and run the node with containerd 1.7 or later, or CRI-O, or write devicePlugin: {{flavor: Gke}}"
            );
            Err(Fault { reason: Reason::RuntimeUnsupported, message })
        }
        _ => Ok(()),
    }
}
