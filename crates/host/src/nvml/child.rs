//! NVML, queried in a separate process.
//!
//! NVML runs vendor code that hangs with a faulty GPU, crashes, and holds the driver for as long as it is loaded. The
//! probe therefore never loads it: it starts itself again as `nvml-child`, which loads the one library that it is given
//! and answers each line on its standard input with one line of JSON on its standard output.
//!
//! NVML's behaviour on real hardware is taken from its documentation; the tests use a stand-in, and the response of one H200.

mod mig_devices;
mod mig_instances;
mod raw;
mod readings;
mod xids;

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
    os::unix::process::parent_id,
    path::PathBuf,
    thread,
};

use clap::Args;
use gpu_operator_crd::health::CauseKind;
use nix::sys::{prctl, signal::Signal};
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor, error::NvmlError};

use self::xids::XidListener;
use super::{
    protocol::{Inventory, MigStep, NvmlGpu, RefusedGpu, Request, Response},
    trusted::{LibraryRoot, TrustedLibrary},
};
use crate::observe::pci;

const MIB: u64 = 1024 * 1024;

/// NVML's code for an unknown GPU, for which nvml-wrapper has no name.
const GPU_NOT_FOUND: u32 = 28;

/// What the child loads, and from where: its command line, which [`super::supervisor::child_command`] writes.
#[derive(Args, Clone, Debug)]
pub struct ChildOptions {
    /// The process that must be its parent; the child ends when the parent does.
    #[arg(long)]
    pub parent: u32,
    /// Where the host's / is mounted. Below it, every component of the library's path must belong to root, and only root may write to it.
    #[arg(long, default_value = "/")]
    pub host_root: PathBuf,
    /// The root below the host's to change into first: there the library finds its /dev and its other libraries.
    #[arg(long)]
    pub chroot: Option<PathBuf>,
    /// The library's absolute path: inside the root to change into, or below the host's.
    #[arg(long)]
    pub library: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("the parent process is not {0}")]
    Orphaned(u32),
    #[error("cannot tie the process to its parent")]
    Tie(#[source] nix::Error),
    #[error("cannot exchange data with the probe")]
    Pipe(#[from] io::Error),
    #[error("cannot parse a request or encode a response")]
    Json(#[from] serde_json::Error),
}

/// Runs the child: ties it to its parent, enters the root, then answers until its input ends.
pub fn run(options: &ChildOptions) -> Result<(), ChildError> {
    tie_to_parent(options.parent)?;
    // The C library and its companions are the image's own and already loaded (see the build script of `nvml-probe`). They satisfy the
    // library's dependencies, so the root may have another C library or none that fits.
    let root = LibraryRoot::open(&options.host_root, options.chroot.as_deref()).map_err(|error| error.to_string());
    let find = || root.as_ref().map_err(String::clone)?.find(&options.library).map_err(|error| error.to_string());
    answer(find, io::stdin().lock(), io::stdout().lock())
}

/// Ends this process when its parent ends.
pub(crate) fn tie_to_parent(parent: u32) -> Result<(), ChildError> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(ChildError::Tie)?;
    // Checked only after the tie: a parent that died earlier would not be noticed.
    if parent_id() == parent { Ok(()) } else { Err(ChildError::Orphaned(parent)) }
}

fn answer(
    find: impl Fn() -> Result<TrustedLibrary, String>,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<(), ChildError> {
    let mut lines = input.lines();
    let mut next = || lines.next().transpose();
    let mut respond = |answer: &Response| -> Result<(), ChildError> {
        serde_json::to_writer(&mut output, answer)?;
        output.write_all(b"\n")?;
        Ok(output.flush()?)
    };
    while let Some(mut line) = next()? {
        let load = |library: TrustedLibrary| Nvml::builder().lib_path(library.path.as_os_str()).init();
        let nvml = match find().and_then(|library| load(library).map_err(|error| failure(&error))) {
            Ok(nvml) => nvml,
            Err(why) => {
                respond(&Response::Failed(why))?;
                continue;
            }
        };
        // From here on NVML stays initialised: opening a GPU takes seconds if nothing else keeps it initialised.
        return thread::scope(|scope| {
            let mut session =
                Session { nvml: &nvml, listener: XidListener::new(scope, &nvml), examined: BTreeSet::new() };
            loop {
                let request: Request = serde_json::from_str(&line)?;
                let answer = match &request {
                    Request::Gpus(on_bus) => session.read_all(on_bus).map(Response::Inventory),
                    Request::GpusAndMig { with_mig } => session.read_with_mig(with_mig).map(Response::Inventory),
                    Request::ApplyMigStep { pci_address, step } => {
                        session.apply_mig_step(pci_address, step).map(|()| Response::StepDone)
                    }
                };
                respond(&answer.unwrap_or_else(|error| match error {
                    NvmlError::InUse => Response::InUse(failure(&error)),
                    _ => Response::Failed(failure(&error)),
                }))?;
                match next()? {
                    Some(another) => line = another,
                    None => return Ok(()),
                }
            }
        });
    }
    Ok(())
}

struct Session<'scope, 'nvml> {
    nvml: &'nvml Nvml,
    listener: XidListener<'scope, 'nvml>,
    /// GPUs whose infoROM was checked, which reads a flash memory and is done once.
    examined: BTreeSet<String>,
}

impl<'nvml> Session<'_, 'nvml> {
    fn read_all(&mut self, on_bus: &[String]) -> Result<Inventory, NvmlError> {
        let mut inventory = Inventory {
            driver_version: self.nvml.sys_driver_version()?,
            cuda_version: self.nvml.sys_cuda_driver_version().ok().map(cuda_version),
            count: self.nvml.device_count()?,
            ..Inventory::default()
        };
        let mut open = Vec::new();
        // Those that cannot be opened have no address here; they are looked up by address below.
        for device in (0..inventory.count).filter_map(|index| self.nvml.device_by_index(index).ok()) {
            if let Ok(info) = device.pci_info() {
                open.push((pci::normalise(&info.bus_id).unwrap_or(info.bus_id), device));
            }
        }
        for address in on_bus {
            if open.iter().any(|(known, _)| known == address) {
                continue;
            }
            match self.nvml.device_by_pci_bus_id(address.as_str()) {
                Ok(device) => open.push((address.clone(), device)),
                Err(error) => inventory.refused.push(refused(address, &error)),
            }
        }
        self.listener.listen_to(&open);
        for (address, device) in &open {
            // A GPU that is lost while it is read must not hide the others.
            match self.read(address, device) {
                Ok(gpu) => inventory.gpus.push(gpu),
                Err(error) => inventory.refused.push(refused(address, &error)),
            }
        }
        inventory.xids = self.listener.take();
        Ok(inventory)
    }

    fn read(&mut self, address: &str, device: &Device<'nvml>) -> Result<NvmlGpu, NvmlError> {
        let examine = self.examined.insert(address.to_owned());
        Ok(NvmlGpu {
            mig: None,
            readings: readings::read(device, examine)?,
            pci_address: address.to_owned(),
            uuid: device.uuid().ok(),
            name: device.name().ok(),
            memory_mib: raw::memory(device).ok().map(|memory| memory.total / MIB),
            compute_capability: device.cuda_compute_capability().ok().map(|it| format!("{}.{}", it.major, it.minor)),
            mig_capable: mig_devices::is_capable(device),
            fabric_clique: raw::fabric_clique(device),
            minor: device.minor_number().ok(),
            mig_ids: mig_devices::ids(device),
            mig_devices: mig_devices::devices(device),
        })
    }
}

impl Session<'_, '_> {
    fn read_with_mig(&mut self, on_bus: &[String]) -> Result<Inventory, NvmlError> {
        let mut inventory = self.read_all(on_bus)?;
        for gpu in &mut inventory.gpus {
            // A GPU that is lost meanwhile must not hide the others.
            let device = self.nvml.device_by_pci_bus_id(gpu.pci_address.as_str()).ok();
            gpu.mig = device.and_then(|device| mig_instances::read(&device));
        }
        Ok(inventory)
    }

    fn apply_mig_step(&self, address: &str, step: &MigStep) -> Result<(), NvmlError> {
        mig_instances::apply(&self.nvml.device_by_pci_bus_id(address)?, step)
    }
}

/// Returns what an error while opening or reading a GPU means for its health.
fn refused(address: &str, error: &NvmlError) -> RefusedGpu {
    let kind = match error {
        NvmlError::GpuLost => CauseKind::GpuLost,
        NvmlError::ResetRequired => CauseKind::ResetRequired,
        NvmlError::InsufficientPower => CauseKind::InsufficientPower,
        NvmlError::NoPermission => CauseKind::NoPermission,
        NvmlError::CorruptedInfoROM => CauseKind::InforomCorrupt,
        NvmlError::NotFound | NvmlError::UnexpectedVariant(GPU_NOT_FOUND) => CauseKind::NotListed,
        _ => CauseKind::CannotOpen,
    };
    RefusedGpu { pci_address: address.to_owned(), kind, message: failure(error) }
}

fn cuda_version(version: i32) -> String {
    format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
}

fn failure(error: &NvmlError) -> String {
    let hint = match error {
        NvmlError::NoPermission => "; the probe's container must be privileged to open the GPU's device nodes",
        NvmlError::LibRmVersionMismatch => {
            "; the loaded kernel module and the library differ: reload the driver or reboot the node"
        }
        NvmlError::InUse => "; a program has it open",
        NvmlError::GpuLost => "; it fell off the bus: reboot the node, and replace the GPU if it happens again",
        NvmlError::ResetRequired => "; drain the node and reset the GPU",
        NvmlError::InsufficientPower => "; check the GPU's power cables",
        NvmlError::IrqIssue => "; the kernel gives the GPU no interrupts; see the node's kernel log",
        NvmlError::NotFound | NvmlError::UnexpectedVariant(GPU_NOT_FOUND) => {
            "; the GPU is on the PCI bus, but NVML does not list it: see the node's kernel log"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cannot_be_loaded_is_a_response() {
        let mut output = Vec::new();
        let find = || Err("cannot load /no/such/libnvidia-ml.so.1".to_owned());
        answer(find, "[]\n[]\n".as_bytes(), &mut output).unwrap();
        let answers: Vec<Response> = output
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        assert_eq!(answers.len(), 2);
        assert!(matches!(&answers[0], Response::Failed(why) if why.contains("/no/such")), "{answers:?}");
    }

    #[test]
    fn cuda_versions_are_written_as_nvidia_writes_them() {
        assert_eq!(cuda_version(13010), "13.1");
        assert_eq!(cuda_version(11040), "11.4");
        assert_eq!(cuda_version(12000), "12.0");
    }

    #[test]
    fn an_error_includes_how_to_resolve_it() {
        assert!(failure(&NvmlError::GpuLost).contains("reboot"));
        assert!(failure(&NvmlError::NoPermission).contains("privileged"));
    }
}
