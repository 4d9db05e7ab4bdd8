//! Plans the steps that give a GPU its MIG layout. Pure: the existing instances and their users, and the supported
//! profiles, are arguments.
//!
//! A GPU is a row of memory slices; a profile takes some of them and may start at certain slices, according to NVML's
//! list of possible placements. Existing instances that match the layout stay if the others can be placed beside them.

use std::collections::BTreeSet;

use gpu_host::nvml::mig::{GpuClient, Instance, MigProfile, MigState, MigStep, Placement};
use gpu_operator_common::mig_layout::GpuLayout;

#[cfg(test)]
mod tests;

/// Why no step is possible at present.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    #[error("the GPU has no profile {profile}; it has {}", supported.join(", "))]
    UnknownProfile {
        /// The requested profile.
        profile: String,
        /// The supported profiles.
        supported: Vec<String>,
    },
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

/// Plans the instances once the mode is correct.
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

/// Returns an error if there are users.
fn require_unused<'c>(clients: impl Iterator<Item = &'c GpuClient>) -> Result<(), Obstacle> {
    let clients: BTreeSet<GpuClient> = clients.cloned().collect();
    if clients.is_empty() { Ok(()) } else { Err(Obstacle::Blocked(clients.into_iter().collect())) }
}
