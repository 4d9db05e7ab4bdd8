//! This operator's probe as the first program of another image's container: what has to hold or to be there at every start of
//! a container cannot be left to an init container, which runs once in its pod's life.

use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};

use crate::{
    manifests::pod::{Mode, empty_dir, mount, own_container},
    settings::Settings,
};

/// The init container that puts the program where the other image's container finds it.
const UNPACK: &str = "unpack-guard";
/// The volume for that, and its place in the container: whatever the image has in it, the program brings all of its own.
const VOLUME: &str = "guard";
const DIRECTORY: &str = "/gpu-operator";

/// The init container.
#[must_use]
pub fn init(settings: &Settings) -> Container {
    own_container(settings, UNPACK, &["unpack", DIRECTORY], vec![mount(VOLUME, DIRECTORY, Mode::Writable)])
}

/// Where it puts it.
#[must_use]
pub fn volume() -> Volume {
    empty_dir(VOLUME)
}

/// The mount of the other image's container.
#[must_use]
pub fn mounted() -> VolumeMount {
    mount(VOLUME, DIRECTORY, Mode::ReadOnly)
}

/// The command that runs the program with these arguments in the other image's container.
#[must_use]
pub fn command(args: &[&str]) -> Vec<String> {
    let (loader, program) = (format!("{DIRECTORY}/ld.so"), format!("{DIRECTORY}/nvml-probe"));
    let words = [loader.as_str(), "--library-path", DIRECTORY, program.as_str()];
    words.into_iter().chain(args.iter().copied()).map(str::to_owned).collect()
}
