//! The pod of the toolkit's stage, one file per way in which containers get the driver.

mod cdi;
mod configured;
pub mod installer;
mod nri;

use k8s_openapi::api::core::v1::{Container, Volume};

use crate::{
    desired::toolkit::{choice::ToolkitChoice, install_dir, parent},
    manifests::{
        pod::{Mode, PodInput, PodParts, host_path, mount, own_container},
        toolkit::{configured::LOADED, installer::PID_DIR},
    },
};

/// Returns the toolkit's pod; `None` if this operator installs no toolkit.
pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    match &input.key.toolkit {
        ToolkitChoice::None | ToolkitChoice::Host(_) => None,
        ToolkitChoice::Cdi => Some(cdi::pod(input)),
        ToolkitChoice::Nri { socket } => Some(nri::pod(input, socket)),
        ToolkitChoice::Runtime(setup) => Some(configured::pod(input, setup)),
    }
}

/// Returns the gate of the stages after the toolkit, and its volumes; `None` if this operator installs no toolkit.
pub fn gate(input: &PodInput<'_>) -> Option<(Container, Vec<Volume>)> {
    let mut args = ["wait", "toolkit", "--host-root=/host"].map(str::to_owned).to_vec();
    args.push(format!("--install-dir={}", install_dir(input.key)));
    let parent = parent(input.key);
    let mut volumes = vec![host_path("toolkit", parent, Some("DirectoryOrCreate"))];
    let mut mounts = vec![mount("toolkit", &format!("/host{parent}"), Mode::ReadOnly)];
    let mut look = |name: &str, path: &str| {
        volumes.push(host_path(name, path, Some("DirectoryOrCreate")));
        mounts.push(mount(name, &format!("/host{path}"), Mode::ReadOnly));
    };
    match &input.key.toolkit {
        ToolkitChoice::None | ToolkitChoice::Host(_) => return None,
        ToolkitChoice::Cdi => {}
        ToolkitChoice::Nri { .. } => {
            look("toolkit-pid", PID_DIR);
            args.push(format!("--pid-file={PID_DIR}/toolkit.pid"));
        }
        ToolkitChoice::Runtime(setup) => {
            for (index, folder) in configured::folders(setup).enumerate() {
                look(&format!("runtime-{index}"), folder);
            }
            look("runtime-loaded", LOADED);
            args.extend(setup.files().map(|file| format!("--runtime-config={file}")));
            args.push(format!("--loaded={LOADED}"));
        }
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Some((own_container(input.settings, "wait-for-toolkit", &args, mounts), volumes))
}
