//! What an update changes on a node, and thus what it waits for; whether the probe has to release the driver.

use gpu_operator_common::version::is_release_of;
use gpu_operator_crd::{
    gpunode::{DisruptionScope, RolloutStep, StageRevisions},
    policy::Stage,
    report::DriverFacts,
};
use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::allocation;
use crate::{
    assess::{member::Member, mig},
    clock::Clock,
    container_names::{DIVIDER, GUARD, INSTALLER},
    desired::driver::DriverChoice,
    note::Note,
    revision,
    world::{DaemonSets, PodFacts},
};

#[derive(Clone, Debug)]
pub struct Change {
    pub to: StageRevisions,
    pub reloads_driver: bool,
    /// The driver is reloaded, the GPUs are divided or allocated in another way, or MPS's daemon, with which programs on the GPUs end, comes, goes or is
    /// replaced.
    pub needs_idle_gpus: bool,
    /// What remains of the other way to allocate the GPUs.
    pub waits: Option<Note>,
}

impl Change {
    pub fn of(member: &Member<'_>, to: StageRevisions, sets: &DaemonSets) -> Self {
        let from = has_or_had(member);
        let reloads_driver = from.driver != to.driver && !keeps_driver_loaded(member, from, &to, sets);
        let layout = layout(&to, sets);
        let divides = layout.is_some() && layout != self::layout(from, sets);
        // A new plugin's pod also restores a layout that was changed manually.
        let restores = from.device_plugin != to.device_plugin && mig::differs(member).is_some();
        // GPUs of running pods must not be offered by the other one.
        let by_claims =
            |revisions: &StageRevisions| Some(revision::is_by_claims(sets, revisions.device_plugin.as_ref()?));
        let reallocates = by_claims(from).zip(by_claims(&to)).is_some_and(|(from, to)| from != to);
        let needs_idle_gpus = reloads_driver || divides || restores || reallocates || from.mps != to.mps;
        let waits = allocation::waits(member, &to, sets);
        Self { to, reloads_driver, needs_idle_gpus, waits }
    }

    pub fn scope(&self) -> DisruptionScope {
        if self.needs_idle_gpus { DisruptionScope::GpuPods } else { DisruptionScope::Nothing }
    }
}

/// In step Release the node lacks its device plugin, which belongs to what it had.
pub fn has_or_had<'m>(member: &'m Member<'_>) -> &'m StageRevisions {
    let releasing = member.rollout().filter(|rollout| rollout.step == RolloutStep::Release);
    releasing.map_or(&member.have, |rollout| &rollout.from)
}

/// Returns the MIG layout that the plugin's pod applies before the plugin starts; `None` if it divides no GPU, or if that is unknown.
fn layout<'w>(revisions: &StageRevisions, sets: &'w DaemonSets) -> Option<&'w str> {
    let spec = revision::pod_spec(sets, Stage::DevicePlugin, revisions.device_plugin.as_ref()?)?;
    argument(init_container(spec, DIVIDER)?, "--layout")
}

fn init_container<'w>(spec: &'w PodSpec, name: &str) -> Option<&'w Container> {
    spec.init_containers.iter().flatten().find(|init| init.name == name)
}

fn argument<'w>(container: &'w Container, name: &str) -> Option<&'w str> {
    container.args.iter().flatten().skip_while(|argument| *argument != name).nth(1).map(String::as_str)
}

fn variable<'w>(container: &'w Container, name: &str) -> Option<&'w str> {
    container.env.iter().flatten().find(|variable| variable.name == name)?.value.as_deref()
}

/// Whether the loaded modules stay when the pod of one driver replaces that of the other, even if the GPUs are in use.
fn keeps_driver_loaded(member: &Member<'_>, from: &StageRevisions, to: &StageRevisions, sets: &DaemonSets) -> bool {
    let pod = |revisions: &StageRevisions| revision::pod_spec(sets, Stage::Driver, revisions.driver.as_ref()?);
    let (Some(old), Some(new)) = (pod(from), pod(to)) else { return false };
    let Some(driver) = member.report.map(|report| &report.driver) else { return false };
    match (init_container(old, INSTALLER), init_container(new, INSTALLER)) {
        (Some(old), Some(installer)) => installer_keeps(driver, old, installer, new),
        // MPS's daemon uses files of the container, and is recreated with it.
        (None, None) if from.mps.is_none() => {
            let (Some(old), Some(new)) = (old.containers.first(), new.containers.first()) else { return false };
            let digest = variable(new, DriverChoice::DIGEST_VARIABLE);
            old.env == new.env && old.args == new.args && digest.is_some() && digest == driver.config_digest.as_deref()
        }
        _ => false,
    }
}

/// An installer keeps the loaded driver if the driver's libraries are in its folder, and it is the wanted one: of the wanted version or, if
/// the installer chooses the version, if the same installer has chosen it. Google's for COS, which the operator starts only while no
/// program uses the driver, may have another image.
fn installer_keeps(driver: &DriverFacts, old: &Container, new: &Container, pod: &PodSpec) -> bool {
    let folder = variable(new, DriverChoice::INSTALL_DIR_VARIABLE);
    let is_same_kind = old.command.is_some() == new.command.is_some()
        && variable(old, DriverChoice::RUN_FILE_URL_VARIABLE).is_some()
            == variable(new, DriverChoice::RUN_FILE_URL_VARIABLE).is_some();
    let Some(loaded) = driver
        .loaded
        .as_deref()
        .filter(|_| is_same_kind && folder == variable(old, DriverChoice::INSTALL_DIR_VARIABLE))
    else {
        return false;
    };
    let version = init_container(pod, GUARD).and_then(|guard| argument(guard, "--version"));
    let is_same = || old.args == new.args && (new.command.is_some() || old.image == new.image && old.env == new.env);
    let is_wanted = version.map_or_else(is_same, |wanted| is_release_of(loaded, wanted));
    is_wanted && driver.installed.iter().any(|found| Some(&*found.root) == folder && found.version == loaded)
}

/// A running revision is not given up for one that the API server rejects.
pub fn daemon_sets_exist(want: &StageRevisions, sets: &DaemonSets) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let name = want.get(stage).map(|revision| revision::daemon_set_name(stage, revision));
        name.is_none_or(|name| sets.contains_key(&name))
    })
}

/// For a driver of this operator, or for a change of the MIG layout.
pub fn must_release(member: &Member<'_>, clock: &Clock) -> bool {
    mig::is_blocked(member) || probe_blocks_driver(member, clock)
}

/// Whether the driver's container may be waiting until no program uses the driver: in its guard, or because it has failed. While no module
/// is loaded, no program can use the driver.
pub fn driver_awaits_users(member: &Member<'_>, clock: &Clock) -> bool {
    if member.report.is_none_or(|report| report.driver.loaded.is_none()) {
        return false;
    }
    let crashed = |pod: &PodFacts| pod.containers.iter().any(|container| container.last_failure.is_some());
    let failed = member.pod(Stage::Driver).is_some_and(|pod| crashed(pod) && !pod.running());
    failed || member.guard_is_waiting() || member.guard_due().is_some_and(|until| clock.reached(until))
}

/// As [`driver_awaits_users`], for programs other than those of GPU pods.
pub fn driver_awaits_programs(member: &Member<'_>, clock: &Clock) -> bool {
    driver_awaits_users(member, clock) && member.gpu_pods.is_some_and(|pods| !pods.use_driver())
}

/// Whether the probe blocks a driver of this operator: a module is loaded, and another version has to replace it, or the driver's container
/// has failed or waits in its guard. A container that is merely not running yet proves nothing: it loads the module before it is reported
/// as running, and the watch of pods may be behind the probe's report. Once requested, the release lasts until the driver is running.
fn probe_blocks_driver(member: &Member<'_>, clock: &Clock) -> bool {
    let Some(loaded) = member.report.and_then(|report| report.driver.loaded.as_deref()) else {
        return false;
    };
    let want = member.want().cloned().unwrap_or_default();
    let leaving =
        |pod: &PodFacts| [&want.driver, &member.have.driver].into_iter().all(|revision| pod.revision != *revision);
    let Some(choice) = member.driver().filter(|choice| choice.is_managed()) else {
        return member.pods_of(Stage::Driver).any(leaving);
    };
    let asked = member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.release_driver);
    // While pods use the GPUs, a release does not help, and the health of the GPUs would not be monitored.
    let wins = member.gpu_pods.map_or(asked, |pods| !pods.use_driver());
    let up = member.pod(Stage::Driver).is_some_and(PodFacts::running) && !member.guard_is_waiting();
    !up && wins && (asked || driver_awaits_users(member, clock))
        || (!choice.fits(loaded) && !member.driver_waits_for_its_turn())
}
