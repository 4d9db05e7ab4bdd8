//! Applies the policy's MIG layout to a node's GPUs before the device plugin starts: reads the state, applies the
//! missing steps, and repeats until nothing is left to do.

use gpu_host::{
    nvml::{
        inventory::Inventory,
        mig::GpuClient,
        supervisor::{NvmlStatus, StepError, Supervisor},
        target::Target,
    },
    observe::{
        driver::{self, DriverError},
        pci::{self, PciError},
    },
    root::HostRoot,
};
use gpu_operator_common::mig_layout::MigLayout;

use super::plan::{self, Obstacle};

/// The most rounds: changing the mode, creating the instances, and repeating what NVML may have undone.
const ROUNDS: usize = 6;

/// Why the layout was not applied. The message starts with the reason's name if the API has one.
#[derive(Debug, thiserror::Error)]
pub enum MigError {
    #[error(
        "MigBlocked: GPU {gpu} cannot be repartitioned: {why}; end the processes that use it, after which the layout is applied"
    )]
    Blocked {
        /// The GPU's PCI address.
        gpu: String,
        /// The users.
        why: String,
    },
    #[error(
        "MigResetNeeded: GPU {0} must be reset to enable or disable MIG: reboot the node, or reset the GPU (`nvidia-smi --gpu-reset -i {0}` on the node) while nothing uses it"
    )]
    ResetNeeded(String),
    #[error("MigLayoutRefused: GPU {gpu}: {why}; correct devicePlugin.mig.layout")]
    Refused {
        /// The GPU's PCI address.
        gpu: String,
        /// The cause.
        why: String,
    },
    #[error(
        "MigLayoutRefused: GPU {index} ({gpu}) does not support MIG; remove {index} from the devices of devicePlugin.mig.layout"
    )]
    NotCapable {
        /// Its index in the layout.
        index: u32,
        /// Its PCI address.
        gpu: String,
    },
    #[error("MigLayoutRefused: no GPU of this node supports MIG; remove devicePlugin.mig.layout from its pool")]
    NoMig,
    #[error("GPU {gpu} cannot be repartitioned: {why}")]
    Failed {
        /// The GPU's PCI address.
        gpu: String,
        /// NVML's error.
        why: String,
    },
    #[error("GPU {0} still differs from the MIG layout after all steps succeeded")]
    Unsettled(String),
    #[error("NVML does not answer: {0}")]
    Nvml(String),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Bus(#[from] PciError),
}

/// Applies the layout to every GPU of the node that supports MIG. Does nothing if it is already applied. If a GPU cannot
/// be repartitioned, the others still are; one that is missing from the bus, or that NVML does not open, is skipped.
pub async fn apply_layout(
    host: &HostRoot,
    chroot: bool,
    driver_root: &str,
    layout: &MigLayout,
    supervisor: &mut Supervisor,
) -> Result<(), MigError> {
    let loaded = driver::loaded(host)?;
    let libraries = driver::libraries(host, driver_root)?;
    let target = Target::choose(host, chroot, "", loaded.as_deref(), &libraries);
    let on_bus: Vec<String> = pci::gpus(host)?.into_iter().map(|gpu| gpu.address).collect();
    if let Err(missing) = layout.check(on_bus.len().try_into().unwrap_or(u32::MAX)) {
        tracing::warn!("{missing}");
    }
    let mut outcome = Ok(());
    for _ in 0..ROUNDS {
        let inventory = match supervisor.query_with_mig(target.clone(), &on_bus).await {
            NvmlStatus::Answering(inventory) => inventory,
            NvmlStatus::Failing(why) | NvmlStatus::Absent(Some(why)) => return Err(MigError::Nvml(why)),
            NvmlStatus::Absent(None) | NvmlStatus::Released => {
                return Err(MigError::Nvml("no driver is loaded".to_owned()));
            }
        };
        let (changed, round) = apply_round(host, &on_bus, &inventory, layout, supervisor).await;
        if !changed {
            return round;
        }
        outcome = round;
    }
    outcome.and_then(|()| Err(MigError::Unsettled(on_bus.join(", "))))
}

/// Applies one round of steps, GPU by GPU. Returns whether any was applied, and the first obstacle.
async fn apply_round(
    host: &HostRoot,
    on_bus: &[String],
    inventory: &Inventory,
    layout: &MigLayout,
    supervisor: &mut Supervisor,
) -> (bool, Result<(), MigError>) {
    let (mut changed, mut outcome) = (false, Ok(()));
    if !layout.is_disabled() && inventory.gpus.iter().all(|gpu| gpu.mig.is_none()) {
        return (false, Err(MigError::NoMig));
    }
    for (index, gpu) in (0..).zip(on_bus) {
        let Some(known) = inventory.gpus.iter().find(|known| known.pci_address == *gpu) else { continue };
        let Some(mig) = &known.mig else {
            if layout.devices.contains_key(&index) {
                outcome = outcome.and(Err(MigError::NotCapable { index, gpu: gpu.clone() }));
            }
            continue;
        };
        let steps = match plan::plan(layout.of_gpu(index), &mig.state, &mig.profiles) {
            Ok(steps) => steps,
            Err(obstacle) => {
                outcome = outcome.and(Err(to_error(host, gpu, obstacle)));
                continue;
            }
        };
        for step in steps {
            tracing::info!(gpu, ?step, "applying MIG step");
            if let Err(error) = supervisor.apply_mig_step(gpu, &step).await {
                let gpu = gpu.clone();
                outcome = outcome.and(Err(match error {
                    StepError::InUse(why) => MigError::Blocked { gpu, why },
                    StepError::Failed(why) => MigError::Failed { gpu, why },
                }));
                // Completed steps stay: the next start continues from there.
                return (false, outcome);
            }
            changed = true;
        }
    }
    (changed, outcome)
}

fn to_error(host: &HostRoot, gpu: &str, obstacle: Obstacle) -> MigError {
    let gpu = gpu.to_owned();
    match obstacle {
        Obstacle::Blocked(clients) => {
            let clients = clients.into_iter().map(|client| GpuClient { name: name(host, client.pid), ..client });
            MigError::Blocked { gpu, why: Obstacle::Blocked(clients.collect()).to_string() }
        }
        Obstacle::ResetNeeded => MigError::ResetNeeded(gpu),
        Obstacle::UnknownProfile { .. } | Obstacle::DoesNotFit => MigError::Refused { gpu, why: obstacle.to_string() },
    }
}

/// Returns the host's name of a process.
fn name(host: &HostRoot, pid: u32) -> String {
    host.read_if_present(format!("/proc/{pid}/comm")).ok().flatten().unwrap_or_else(|| "a process".to_owned())
}
