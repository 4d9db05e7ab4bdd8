//! MIG layouts. Plans the steps that give a GPU the layout of its policy (pure), and applies them before the device plugin
//! starts, until nothing is left to do.
//!
//! A GPU is a row of memory slices; a profile takes some of them and may start at certain slices, according to NVML's list of
//! possible placements. Existing instances that match the layout stay if the others can be placed beside them.

use std::collections::BTreeSet;

use gpu_host::{
    nvml::{
        protocol::{GpuClient, Instance, Inventory, MigProfile, MigState, MigStep, Placement},
        supervisor::{NvmlStatus, StepError, Supervisor},
        trusted::Target,
    },
    observe::{
        driver::{self, DriverError},
        pci::{self, PciError},
    },
    root::HostRoot,
};
use gpu_operator_common::mig_layout::{GpuLayout, MigLayout};

#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    #[error("the GPU has no profile {profile}; it has {}", supported.join(", "))]
    UnknownProfile { profile: String, supported: Vec<String> },
    #[error("the GPU has no room for all of these profiles at once")]
    DoesNotFit,
    #[error("in use by {}", list_clients(.0))]
    Blocked(Vec<GpuClient>),
    #[error("the MIG mode changes at the next reset of the GPU or reboot of the node")]
    ResetNeeded,
}

fn list_clients(clients: &[GpuClient]) -> String {
    clients.iter().map(|client| format!("{} ({})", client.name, client.pid)).collect::<Vec<_>>().join(", ")
}

/// Returns the steps that give the GPU its layout; none if it already has it.
///
/// A change of the mode is planned without any steps after it, because only the next reading shows its result.
pub fn plan(wanted: &GpuLayout, now: &MigState, profiles: &[MigProfile]) -> Result<Vec<MigStep>, Obstacle> {
    let wanted: GpuLayout =
        wanted.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name.clone(), *count)).collect();
    let on = !wanted.is_empty();
    if now.pending != now.enabled && now.pending == on {
        return Err(Obstacle::ResetNeeded);
    }
    if now.enabled != on || now.pending != on {
        require_unused(now.instances.iter().flat_map(|instance| &instance.clients).chain(&now.clients))?;
        let destroyed = now.instances.iter().map(|instance| MigStep::Destroy(instance.id));
        return Ok(destroyed.chain([MigStep::SetMode(on)]).collect());
    }
    plan_instances(&wanted, now, profiles)
}

fn plan_instances(wanted: &GpuLayout, now: &MigState, profiles: &[MigProfile]) -> Result<Vec<MigStep>, Obstacle> {
    let mut missing = wanted.clone();
    let mut fitting = BTreeSet::new();
    // Instances in use come first, because they should preferably stay.
    let mut instances: Vec<&Instance> = now.instances.iter().collect();
    instances.sort_by_key(|instance| (instance.clients.is_empty(), instance.placement));
    for instance in &instances {
        if let Some(left) = missing.get_mut(&instance.profile).filter(|left| **left > 0) {
            *left -= 1;
            fitting.insert(instance.id);
        }
    }
    let in_use = instances.iter().filter(|instance| fitting.contains(&instance.id) && !instance.clients.is_empty());
    let in_use: BTreeSet<u32> = in_use.map(|instance| instance.id).collect();
    // Keep all that match; otherwise those in use; otherwise none, to report the users that block the layout.
    for kept in [&fitting, &in_use, &BTreeSet::new()] {
        let stay: Vec<_> = instances.iter().filter(|instance| kept.contains(&instance.id)).collect();
        let mut missing = wanted.clone();
        for instance in &stay {
            missing.entry(instance.profile.clone()).and_modify(|left| *left = left.saturating_sub(1));
        }
        let taken: Vec<Placement> = stay.iter().map(|instance| instance.placement).collect();
        if let Some(created) = place(&missing, taken, profiles)? {
            let removed: Vec<_> = instances.iter().filter(|instance| !kept.contains(&instance.id)).collect();
            require_unused(removed.iter().flat_map(|instance| &instance.clients))?;
            let destroyed = removed.into_iter().map(|instance| MigStep::Destroy(instance.id));
            let created = created.into_iter().map(|(profile, placement)| MigStep::Create { profile, placement });
            return Ok(destroyed.chain(created).collect());
        }
    }
    Err(Obstacle::DoesNotFit)
}

/// Returns positions for all missing instances beside the taken ones, if possible.
fn place(
    missing: &GpuLayout,
    taken: Vec<Placement>,
    profiles: &[MigProfile],
) -> Result<Option<Vec<(String, Placement)>>, Obstacle> {
    let mut open = Vec::new();
    for (profile, count) in missing.iter().filter(|(_, count)| **count > 0) {
        let Some(supported) = profiles.iter().find(|supported| supported.name == *profile) else {
            let supported = profiles.iter().map(|profile| profile.name.clone()).collect();
            return Err(Obstacle::UnknownProfile { profile: profile.clone(), supported });
        };
        if usize::try_from(*count).map_or(true, |count| count > supported.placements.len()) {
            return Ok(None);
        }
        open.extend((0..*count).map(|_| supported));
    }
    // Profiles with the fewest positions come first, and equal ones next to each other.
    open.sort_by_key(|supported| (supported.placements.len(), &supported.name));
    let (mut taken, mut placed) = (taken, Vec::new());
    let fits = fill(&open, &mut taken, &mut placed);
    Ok(fits.then(|| open.iter().map(|supported| supported.name.clone()).zip(placed).collect()))
}

/// Tries every position for the next instance, and then recursively for the rest.
fn fill(open: &[&MigProfile], taken: &mut Vec<Placement>, placed: &mut Vec<Placement>) -> bool {
    let Some(next) = open.get(placed.len()) else {
        return true;
    };
    // Equal instances are placed in ascending order: other orders would be the same layout.
    let before = open.iter().zip(&*placed).next_back().filter(|(before, _)| before.name == next.name);
    let behind = before.map(|(_, place)| place.start);
    for place in &next.placements {
        if behind.is_some_and(|behind| place.start <= behind) || taken.iter().any(|other| other.overlaps(*place)) {
            continue;
        }
        taken.push(*place);
        placed.push(*place);
        if fill(open, taken, placed) {
            return true;
        }
        taken.pop();
        placed.pop();
    }
    false
}

fn require_unused<'c>(clients: impl Iterator<Item = &'c GpuClient>) -> Result<(), Obstacle> {
    let clients: BTreeSet<GpuClient> = clients.cloned().collect();
    if clients.is_empty() { Ok(()) } else { Err(Obstacle::Blocked(clients.into_iter().collect())) }
}

/// The most rounds: changing the mode, creating the instances, and repeating what NVML may have undone.
const ROUNDS: usize = 6;

/// Why the layout was not applied. The message starts with the reason's name if the API has one.
#[derive(Debug, thiserror::Error)]
pub enum MigError {
    #[error(
        "MigBlocked: GPU {gpu} cannot be repartitioned: {why}; end the processes that use it, after which the layout is applied"
    )]
    Blocked { gpu: String, why: String },
    #[error(
        "MigResetNeeded: GPU {0} must be reset to enable or disable MIG: reboot the node, or reset the GPU (`nvidia-smi --gpu-reset -i {0}` on the node) while nothing uses it"
    )]
    ResetNeeded(String),
    #[error("MigLayoutRefused: GPU {gpu}: {why}; correct devicePlugin.mig.layout")]
    Refused { gpu: String, why: String },
    #[error(
        "MigLayoutRefused: GPU {index} ({gpu}) does not support MIG; remove {index} from the devices of devicePlugin.mig.layout"
    )]
    NotCapable { index: u32, gpu: String },
    #[error("MigLayoutRefused: no GPU of this node supports MIG; remove devicePlugin.mig.layout from its pool")]
    NoMig,
    #[error("GPU {gpu} cannot be repartitioned: {why}")]
    Failed { gpu: String, why: String },
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
        let steps = match plan(layout.of_gpu(index), &mig.state, &mig.profiles) {
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
            let clients =
                clients.into_iter().map(|client| GpuClient { name: process_name(host, client.pid), ..client });
            MigError::Blocked { gpu, why: Obstacle::Blocked(clients.collect()).to_string() }
        }
        Obstacle::ResetNeeded => MigError::ResetNeeded(gpu),
        Obstacle::UnknownProfile { .. } | Obstacle::DoesNotFit => MigError::Refused { gpu, why: obstacle.to_string() },
    }
}

fn process_name(host: &HostRoot, pid: u32) -> String {
    host.read_if_present(format!("/proc/{pid}/comm")).ok().flatten().unwrap_or_else(|| "a process".to_owned())
}

#[cfg(test)]
mod tests;
