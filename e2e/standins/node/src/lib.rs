//! The stand-in for NVIDIA's driver container, for machines without a GPU: it "loads" a kernel module by writing files.

pub mod driver;

use std::{env, fs::OpenOptions, io::Write};

/// The folder of the node that controls the stand-ins. NVIDIA's driver container mounts the node's `/var/log`. It also mounts
/// `/run/nvidia`, but what is mounted there can be unmounted with a driver root.
pub const FOLDER: &str = "/var/log/stand-in";

/// The file of a node with Docker that has the path of the program that creates the containers of its pods. The stand-in for cri-dockerd
/// writes it.
pub const RUNTIME_FILE: &str = "/run/containerd/docker-runtime";

/// Reports an error in the container's log and in the container's status, through the file that `TERMINATION_LOG` names; the
/// default is Kubernetes' termination message path.
pub fn report(message: &str) {
    eprintln!("{message}");
    let file = env::var_os("TERMINATION_LOG").unwrap_or_else(|| "/dev/termination-log".into());
    // Outside a pod the folder may be the machine's /dev, where the file must not be created.
    let opened = OpenOptions::new().write(true).truncate(true).open(file);
    if let Err(error) = opened.and_then(|mut file| file.write_all(message.as_bytes())) {
        eprintln!("no termination message: {error}");
    }
}
