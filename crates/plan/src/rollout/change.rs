//! What an update changes on a node, and thus what it waits for; whether the probe has to release the driver.

use gpu_operator_crd::{
    gpunode::{DisruptionScope, StageRevisions},
    policy::Stage,
};
use k8s_openapi::{api::core::v1::Container, jiff::Timestamp};

use crate::{
    assess::{member::Member, mig},
    desired::driver::DriverChoice,
    revision,
    world::{PodFacts, World},
};

#[derive(Clone, Debug)]
pub struct Change {
    pub to: StageRevisions,
    pub reloads_driver: bool,
    /// The driver is unloaded, or the GPUs are divided in another way.
    pub needs_idle_gpus: bool,
}

impl Change {
    pub fn of(member: &Member<'_>, to: StageRevisions, world: &World) -> Self {
        let reloads_driver = member.have.driver != to.driver && !keeps_driver_loaded(member, &to, world);
        Self { reloads_driver, needs_idle_gpus: reloads_driver || mig::differs(member).is_some(), to }
    }

    pub fn scope(&self) -> DisruptionScope {
        if self.needs_idle_gpus { DisruptionScope::GpuPods } else { DisruptionScope::Nothing }
    }
}

/// Whether NVIDIA's driver container keeps the loaded modules when the next one replaces it, even if the GPUs are in use: both have the
/// same digest, and the modules were loaded with it.
fn keeps_driver_loaded(member: &Member<'_>, to: &StageRevisions, world: &World) -> bool {
    let Some(loaded_with) = member.report.and_then(|report| report.driver.config_digest.as_deref()) else {
        return false;
    };
    let container = |revisions| driver_container(revisions, world);
    let Some((old, new)) = container(&member.have).zip(container(to)) else { return false };
    let digest = |container: &Container| {
        let mut variables = container.env.iter().flatten();
        variables
            .find(|variable| variable.name == DriverChoice::DIGEST_VARIABLE)
            .and_then(|variable| variable.value.clone())
    };
    old.env == new.env && old.args == new.args && digest(new).as_deref() == Some(loaded_with)
}

fn driver_container<'w>(revisions: &StageRevisions, world: &'w World) -> Option<&'w Container> {
    revision::pod_spec(world, Stage::Driver, revisions.driver.as_ref()?)?.containers.first()
}

/// A running revision is not given up for one that the API server rejects.
pub fn daemon_sets_exist(want: &StageRevisions, world: &World) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let name = want.get(stage).map(|revision| revision::daemon_set_name(stage, revision));
        name.is_none_or(|name| world.daemon_sets.contains_key(&name))
    })
}

/// For a driver of this operator, or for a change of the MIG layout.
pub fn must_release(member: &Member<'_>, now: Timestamp) -> bool {
    mig::is_blocked(member) || probe_blocks_driver(member, now)
}

/// Whether the driver's container may be waiting until no program uses the driver: in its guard, or because it has failed. While no module
/// is loaded, no program can use the driver.
pub fn driver_awaits_users(member: &Member<'_>, now: Timestamp) -> bool {
    if member.report.is_none_or(|report| report.driver.loaded.is_none()) {
        return false;
    }
    let crashed = |pod: &PodFacts| pod.containers.iter().any(|container| container.last_failure.is_some());
    let failed = member.pod(Stage::Driver).is_some_and(|pod| crashed(pod) && !pod.running());
    failed || member.guard_is_waiting() || member.guard_due().is_some_and(|until| now >= until)
}

/// As [`driver_awaits_users`], for programs other than those of GPU pods.
pub fn driver_awaits_programs(member: &Member<'_>, now: Timestamp) -> bool {
    driver_awaits_users(member, now) && member.gpu_pods.is_some_and(|pods| !pods.use_driver())
}

/// Whether the probe blocks a driver of this operator: a module is loaded, and another version has to replace it, or the driver's container
/// has failed or waits in its guard. A container that is merely not running yet proves nothing: it loads the module before it is reported
/// as running, and the watch of pods may be behind the probe's report. Once requested, the release lasts until the driver is running.
fn probe_blocks_driver(member: &Member<'_>, now: Timestamp) -> bool {
    let Some(loaded) = member.report.and_then(|report| report.driver.loaded.as_deref()) else {
        return false;
    };
    let want = member.want().unwrap_or_default();
    let leaving =
        |pod: &PodFacts| [&want.driver, &member.have.driver].into_iter().all(|revision| pod.revision != *revision);
    let Some(choice) = member.driver().filter(|choice| choice.is_managed()) else {
        return member.pods_of(Stage::Driver).any(leaving);
    };
    let asked = member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.release_driver);
    // While pods use the GPUs, a release does not help, and the health of the GPUs would not be monitored.
    let wins = member.gpu_pods.map_or(asked, |pods| !pods.use_driver());
    let up = member.pod(Stage::Driver).is_some_and(PodFacts::running) && !member.guard_is_waiting();
    !up && wins && (asked || driver_awaits_users(member, now))
        || (!choice.fits(loaded) && !member.driver_waits_for_its_turn())
}
