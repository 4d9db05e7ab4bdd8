//! Drivers in a plain folder of the host, such as those of Google's installers, whose device nodes are in the host's
//! `/dev`. NVIDIA's runtime looks for them below the folder (nvidia-container-toolkit v1.20.1,
//! `internal/runtime/runtime.go`: the root of the driver is also that of its devices), so containers get their GPUs by
//! CDI specifications instead, which the device plugin writes with both roots.

use gpu_operator_crd::{
    policy::{Injection, Toolkit},
    reason::Reason,
    report::{CONTAINER_ROOT, HOST_ROOT},
};

use crate::{
    desired::{
        container_runtime::{Kind, Runtime},
        fault::Fault,
        toolkit::choice::{RuntimeSetup, ToolkitChoice},
    },
    world::NodeFacts,
};

/// Returns whether a driver's root is a plain folder and not a root file system with its own `/dev`.
#[must_use]
pub fn is_folder(root: &str) -> bool {
    root != CONTAINER_ROOT && root != HOST_ROOT
}

/// Returns the choice for a driver in a folder: CDI is enabled in containerd 1.7, where it is disabled by default.
///
/// # Errors
/// Returns a [`Fault`] if containers could get GPUs only by NVIDIA's runtime.
pub fn adapt(choice: ToolkitChoice, toolkit: &Toolkit, node: &NodeFacts, root: &str) -> Result<ToolkitChoice, Fault> {
    let setup = match choice {
        ToolkitChoice::Runtime(setup) if is_folder(root) => setup,
        other => return Ok(other),
    };
    let runtime = Runtime::of(&node.runtime);
    let wants_runtime = toolkit.injection == Some(Injection::Runtime) || setup.default;
    if setup.kind == Kind::Containerd && runtime.has_cdi() && !wants_runtime {
        return Ok(ToolkitChoice::Runtime(RuntimeSetup { cdi: true, ..setup }));
    }
    let way_out = if wants_runtime {
        "remove toolkit.injection and toolkit.setAsDefault, or write devicePlugin: {flavor: Gke}"
    } else {
        "write devicePlugin: {flavor: Gke}, or run the node with containerd 1.7 or later, or CRI-O"
    };
    let message = format!(
        "NVIDIA's runtime, by which {runtime} would give containers their GPUs, looks for device nodes in the driver's folder, {root}, which has none; {way_out}"
    );
    Err(Fault { reason: Reason::RuntimeUnsupported, message })
}
