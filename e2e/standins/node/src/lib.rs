//! Stand-ins for two of NVIDIA's containers, for machines without a GPU: the driver container, which "loads" a kernel
//! module by writing files, and the device plugin, which speaks to a real kubelet.

pub mod driver;
pub mod plugin;

use std::{env, fs::OpenOptions, io::Write};

/// Says what went wrong where a user looks: in the container's log and, through the file that `TERMINATION_LOG` or
/// else Kubernetes names, in the container's status.
pub fn report(message: &str) {
    eprintln!("{message}");
    let file = env::var_os("TERMINATION_LOG").unwrap_or_else(|| "/dev/termination-log".into());
    // Outside of a pod the folder may be /dev of a machine, where no such file is to be made.
    let opened = OpenOptions::new().write(true).truncate(true).open(file);
    if let Err(error) = opened.and_then(|mut file| file.write_all(message.as_bytes())) {
        eprintln!("no termination message: {error}");
    }
}
