//! Divides a node's GPUs by MIG as its policy says, before the device plugin begins: looks, does what is missing, looks
//! again, until there is nothing to do.

pub mod args;

use crate::{
    child::{Look, Supervisor, Target, Undone},
    driver::{self, DriverError},
    host::HostRoot,
    inventory::Inventory,
    mig::{self, GpuClient, Layout, Obstacle},
    pci::{self, PciError},
};

/// How often there is another look before it is given up: a change of the mode, the instances, and what NVML may take back.
const ROUNDS: usize = 6;

/// The GPUs are not divided as they should be. Its words begin with the reason's name where the API has one.
#[derive(Debug, thiserror::Error)]
pub enum DivideError {
    /// Somebody uses what has to go.
    #[error("MigBlocked: GPU {gpu} cannot be divided anew: {why}; end what uses it, and it is tried again")]
    Blocked {
        /// Its PCI address.
        gpu: String,
        /// By whom.
        why: String,
    },
    /// The mode is not changed before a reset.
    #[error(
        "MigResetNeeded: GPU {0}: MIG is turned on or off by its next reset: reboot the node, or reset the GPU (`nvidia-smi --gpu-reset -i {0}` on the node) while nothing uses it"
    )]
    ResetNeeded(String),
    /// The GPU cannot be divided so.
    #[error("MigLayoutRefused: GPU {gpu}: {why}; correct devicePlugin.mig.layout")]
    Refused {
        /// Its PCI address.
        gpu: String,
        /// Why.
        why: String,
    },
    /// The node has no GPU that can be divided.
    #[error("MigLayoutRefused: no GPU of this node has MIG; take devicePlugin.mig.layout out of its pool")]
    NoMig,
    /// NVML refuses a step.
    #[error("GPU {gpu} cannot be divided: {why}")]
    Failed {
        /// Its PCI address.
        gpu: String,
        /// What NVML says.
        why: String,
    },
    /// NVML says that each step is done, and there is always another.
    #[error("GPU {0} is not divided as it should be, though NVML has done every step")]
    Unsettled(String),
    /// NVML does not answer.
    #[error("NVML does not answer: {0}")]
    Nvml(String),
    /// The driver's state cannot be read.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The bus cannot be read.
    #[error(transparent)]
    Bus(#[from] PciError),
}

/// Divides every GPU of the node that has MIG by this layout; an empty one turns MIG off. With everything as it should be
/// nothing is done. A GPU that is in the way of nothing but itself does not keep the others from it.
///
/// # Errors
/// What stands in the way of the first GPU that could not be.
pub async fn divide(
    host: &HostRoot,
    chroot: bool,
    driver_root: &str,
    layout: &Layout,
    supervisor: &mut Supervisor,
) -> Result<(), DivideError> {
    let loaded = driver::loaded(host)?;
    let libraries = driver::libraries(host, driver_root)?;
    let target = Target::choose(host, chroot, "", loaded.as_deref(), &libraries);
    let on_bus: Vec<String> = pci::gpus(host)?.into_iter().map(|gpu| gpu.address).collect();
    let mut outcome = Ok(());
    for _ in 0..ROUNDS {
        let inventory = match supervisor.look_at_divisions(target.clone(), &on_bus).await {
            Look::Answering(inventory) => inventory,
            Look::Failing(why) | Look::Absent(Some(why)) => return Err(DivideError::Nvml(why)),
            Look::Absent(None) | Look::Released => return Err(DivideError::Nvml("no driver is loaded".to_owned())),
        };
        let (changed, round) = round(host, &inventory, layout, supervisor).await;
        if !changed {
            return round;
        }
        outcome = round;
    }
    outcome.and_then(|()| Err(DivideError::Unsettled(on_bus.join(", "))))
}

/// One look's steps, GPU by GPU: whether any was taken, and what stood in the way.
async fn round(
    host: &HostRoot,
    inventory: &Inventory,
    layout: &Layout,
    supervisor: &mut Supervisor,
) -> (bool, Result<(), DivideError>) {
    let (mut changed, mut outcome) = (false, Ok(()));
    let divisible = inventory.gpus.iter().filter_map(|gpu| Some((gpu.pci_address.as_str(), gpu.mig.as_ref()?)));
    if !layout.is_empty() && divisible.clone().next().is_none() {
        return (false, Err(DivideError::NoMig));
    }
    for (gpu, mig) in divisible {
        let steps = match mig::steps(layout, &mig.now, &mig.offers) {
            Ok(steps) => steps,
            Err(obstacle) => {
                outcome = outcome.and(Err(said(host, gpu, obstacle)));
                continue;
            }
        };
        for step in steps {
            tracing::info!(gpu, ?step, "dividing");
            if let Err(undone) = supervisor.divide(gpu, &step).await {
                let gpu = gpu.to_owned();
                outcome = outcome.and(Err(match undone {
                    Undone::InUse(why) => DivideError::Blocked { gpu, why },
                    Undone::Failed(why) => DivideError::Failed { gpu, why },
                }));
                // What was done so far stays: the next start begins with what is there then.
                return (false, outcome);
            }
            changed = true;
        }
    }
    (changed, outcome)
}

fn said(host: &HostRoot, gpu: &str, obstacle: Obstacle) -> DivideError {
    let gpu = gpu.to_owned();
    match obstacle {
        Obstacle::Blocked(clients) => {
            let clients = clients.into_iter().map(|client| GpuClient { name: name(host, client.pid), ..client });
            DivideError::Blocked { gpu, why: Obstacle::Blocked(clients.collect()).to_string() }
        }
        Obstacle::ResetNeeded => DivideError::ResetNeeded(gpu),
        Obstacle::UnknownProfile { .. } | Obstacle::DoesNotFit => {
            DivideError::Refused { gpu, why: obstacle.to_string() }
        }
    }
}

/// What the host calls a process.
fn name(host: &HostRoot, pid: u32) -> String {
    host.read_if_present(format!("/proc/{pid}/comm")).ok().flatten().unwrap_or_else(|| "a process".to_owned())
}
