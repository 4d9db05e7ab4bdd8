//! This operator's probe as the first program of another image's container. An init container cannot do what is
//! necessary at every start of a container, because it runs only once in a pod.

use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};

use crate::{
    manifests::pod::{Mode, empty_dir, mount, own_container},
    settings::Settings,
};

/// The init container that copies the program for the other image's container.
const UNPACK: &str = "unpack-guard";
/// The volume of the program, and its folder in the container. The program includes all libraries, so it works in any
/// image.
const VOLUME: &str = "guard";
const DIRECTORY: &str = "/gpu-operator";
/// Where containers that use the driver themselves see its root.
pub const DRIVER_ROOT: &str = "/driver-root";

pub fn init(settings: &Settings) -> Container {
    own_container(settings, UNPACK, &["unpack", DIRECTORY], vec![mount(VOLUME, DIRECTORY, Mode::Writable)])
}

/// Returns the volume of the program.
pub fn volume() -> Volume {
    empty_dir(VOLUME)
}

/// Returns the mount for the other image's container.
pub fn mounted() -> VolumeMount {
    mount(VOLUME, DIRECTORY, Mode::ReadOnly)
}

/// Returns the command that runs the program with these arguments in the other image's container.
pub fn command(args: &[&str]) -> Vec<String> {
    let (loader, program) = (format!("{DIRECTORY}/ld.so"), format!("{DIRECTORY}/nvml-probe"));
    let words = [loader.as_str(), "--library-path", DIRECTORY, program.as_str()];
    words.into_iter().chain(args.iter().copied()).map(str::to_owned).collect()
}

/// Returns the command that runs a program of the image with the driver where the program looks for it, given options of `inject`.
pub fn injected(options: &[&str], program: &str) -> Vec<String> {
    command(&[&["inject", "--driver-root", DRIVER_ROOT], options, &["--", program]].concat())
}
