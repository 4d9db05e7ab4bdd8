//! What NVML says, asked in a process of its own.
//!
//! NVML runs vendor code that hangs with a sick GPU, crashes, and holds the driver for as long as it is loaded. So
//! the probe never loads it: it starts itself again as `nvml-child`, which loads the one library it is told to and
//! answers each line on its standard input with one line of JSON on its standard output.

use std::{
    io::{self, BufRead, Write},
    os::unix::process::parent_id,
    path::{Path, PathBuf},
};

use gpu_operator_crd::health::CauseKind;
use nix::sys::{prctl, signal::Signal};
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor, error::NvmlError};
use serde::{Deserialize, Serialize};

use crate::{health::readings::Readings, pci};

const MIB: u64 = 1024 * 1024;

/// One look at every GPU that NVML knows.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// The version of the driver that answers.
    pub driver_version: String,
    /// The highest CUDA version it serves, such as `13.1`, where it says so.
    pub cuda_version: Option<String>,
    /// The GPUs that could be opened.
    pub gpus: Vec<NvmlGpu>,
    /// The GPUs of the bus that could not.
    #[serde(default)]
    pub refused: Vec<Refused>,
    /// What could not be asked, one sentence for each.
    pub failures: Vec<String>,
}

/// What NVML says of one GPU. An answer it has none for is absent.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NvmlGpu {
    /// PCI address as sysfs writes it.
    pub pci_address: String,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// NVIDIA's name of the product, such as `NVIDIA H100 80GB HBM3`.
    pub name: Option<String>,
    /// Frame buffer, in MiB. Absent with drivers up to R470, whose library lacks the call.
    pub memory_mib: Option<u64>,
    /// Its state at this moment.
    #[serde(default)]
    pub readings: Readings,
}

/// A GPU of the bus that NVML does not open.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// PCI address as sysfs writes it.
    pub pci_address: String,
    /// What that means for its health.
    pub kind: CauseKind,
    /// What NVML said.
    pub message: String,
}

/// A line of the child.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// NVML answers.
    Inventory(Inventory),
    /// NVML could not be loaded or asked, and why.
    Failed(String),
}

/// What the child is to load, and from where.
#[derive(Clone, Debug)]
pub struct ChildOptions {
    /// The process that must be its parent; with that one gone it ends.
    pub parent: u32,
    /// The root to change into first: there the library finds its /dev and its companions.
    pub chroot: Option<PathBuf>,
    /// The library's absolute path, inside that root.
    pub library: PathBuf,
}

/// The child could not do its work at all.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The probe is gone, or not who is said to be.
    #[error("the parent process is not {0}")]
    Orphaned(u32),
    /// The kernel refused the request to die with the parent.
    #[error("cannot tie the process to its parent")]
    Tie(#[source] nix::Error),
    /// The root cannot be entered; this takes the capability `SYS_CHROOT`.
    #[error("cannot change root into {0}")]
    Chroot(PathBuf, #[source] io::Error),
    /// The pipe to the probe broke.
    #[error("cannot talk to the probe")]
    Pipe(#[from] io::Error),
    /// An answer could not be written as JSON.
    #[error("cannot write the answer")]
    Encode(#[from] serde_json::Error),
}

/// The child's whole life: ties itself to its parent, enters the root, then answers until its input ends.
///
/// # Errors
/// When it cannot begin or the pipe breaks. What NVML fails at is an answer, not an error.
pub fn child(options: &ChildOptions) -> Result<(), ChildError> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(ChildError::Tie)?;
    // Asked only after the tie: a parent that died before it would never be missed.
    if parent_id() != options.parent {
        return Err(ChildError::Orphaned(options.parent));
    }
    if let Some(root) = &options.chroot {
        enter(root).map_err(|source| ChildError::Chroot(root.clone(), source))?;
    }
    answer(&options.library, io::stdin().lock(), io::stdout().lock())
}

/// The C library and its companions are the image's own, loaded before this (see the build script): the library's
/// needs are met by those that are already there, so the root may have another C library or none that fits.
fn enter(root: &Path) -> io::Result<()> {
    std::os::unix::fs::chroot(root)?;
    std::env::set_current_dir("/")
}

/// One line out for each line in. NVML stays initialised between them: opening the GPUs takes seconds each where
/// nothing else keeps them awake.
fn answer(library: &Path, input: impl BufRead, mut output: impl Write) -> Result<(), ChildError> {
    let mut nvml = None;
    for line in input.lines() {
        line?;
        let answer = match look(&mut nvml, library) {
            Ok(inventory) => Answer::Inventory(inventory),
            Err(error) => Answer::Failed(failure(&error)),
        };
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

fn look(nvml: &mut Option<Nvml>, library: &Path) -> Result<Inventory, NvmlError> {
    let nvml = match nvml {
        Some(nvml) => nvml,
        None => nvml.insert(Nvml::builder().lib_path(library.as_os_str()).init()?),
    };
    let mut inventory = Inventory {
        driver_version: nvml.sys_driver_version()?,
        cuda_version: nvml.sys_cuda_driver_version().ok().map(cuda_version),
        ..Inventory::default()
    };
    for index in 0..nvml.device_count()? {
        // A GPU that cannot be opened must not hide the others.
        match nvml.device_by_index(index).and_then(|device| gpu(&device)) {
            Ok(gpu) => inventory.gpus.push(gpu),
            Err(error) => inventory.failures.push(format!("GPU {index} of NVML: {}", failure(&error))),
        }
    }
    Ok(inventory)
}

fn gpu(device: &Device<'_>) -> Result<NvmlGpu, NvmlError> {
    let bus_id = device.pci_info()?.bus_id;
    Ok(NvmlGpu {
        pci_address: pci::normalise(&bus_id).unwrap_or(bus_id),
        uuid: device.uuid().ok(),
        name: device.name().ok(),
        memory_mib: device.memory_info().ok().map(|memory| memory.total / MIB),
        readings: Readings::default(),
    })
}

fn cuda_version(version: i32) -> String {
    format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
}

/// The error in words that lead somewhere.
fn failure(error: &NvmlError) -> String {
    let hint = match error {
        NvmlError::NoPermission => "; the probe's container must be privileged to open the GPU's device nodes",
        NvmlError::LibRmVersionMismatch => {
            "; the loaded kernel module and the library differ: reload the driver or reboot the node"
        }
        NvmlError::GpuLost => "; it fell off the bus: reboot the node, and replace the GPU if it happens again",
        NvmlError::InsufficientPower => "; check the GPU's power cables",
        NvmlError::IrqIssue => "; the kernel gives the GPU no interrupts: see the node's kernel log",
        _ => "",
    };
    format!("{error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cannot_be_loaded_is_an_answer() {
        let mut output = Vec::new();
        answer(Path::new("/no/such/libnvidia-ml.so.1"), "inventory\ninventory\n".as_bytes(), &mut output).unwrap();
        let answers: Vec<Answer> = output
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        assert_eq!(answers.len(), 2);
        assert!(matches!(&answers[0], Answer::Failed(why) if why.contains("/no/such")), "{answers:?}");
    }

    #[test]
    fn cuda_versions_are_written_as_nvidia_writes_them() {
        assert_eq!(cuda_version(13010), "13.1");
        assert_eq!(cuda_version(11040), "11.4");
        assert_eq!(cuda_version(12000), "12.0");
    }

    #[test]
    fn an_error_says_what_to_do() {
        assert!(failure(&NvmlError::GpuLost).contains("reboot"));
        assert!(failure(&NvmlError::NoPermission).contains("privileged"));
    }
}
