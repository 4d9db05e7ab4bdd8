//! Whether the probe has to release the driver, and whether the driver's container is waiting for that.

use gpu_operator_crd::policy::Stage;
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{member::Member, mig},
    world::PodFacts,
};

/// Returns whether the probe has to release the driver: for a driver of this operator, or for a change of the MIG layout.
pub fn must_release(member: &Member<'_>, now: Timestamp) -> bool {
    mig::is_blocked(member) || probe_blocks_driver(member, now)
}

/// Returns whether the driver's container may be waiting until no program uses the driver: in its guard, before the first
/// start or a restart, or because it has failed. While no module is loaded, no program can use the driver.
pub fn waits_for_holders(member: &Member<'_>, now: Timestamp) -> bool {
    if member.report.is_none_or(|report| report.driver.loaded.is_none()) {
        return false;
    }
    let crashed = |pod: &PodFacts| pod.containers.iter().any(|container| container.last_failure.is_some());
    let failed = member.pod(Stage::Driver).is_some_and(|pod| crashed(pod) && !pod.running());
    failed || member.driver_waits() || member.driver_waits_until().is_some_and(|until| now >= until)
}

/// Returns whether the driver's container waits for programs other than those of GPU pods.
pub fn waits_for_programs(member: &Member<'_>, now: Timestamp) -> bool {
    waits_for_holders(member, now) && member.gpu_pods.is_some_and(|pods| !pods.is_held())
}

/// Returns whether the probe blocks a driver of this operator: a module is loaded, and either another version has to replace
/// it, or the driver's container has failed or is waiting in its guard for the programs that use the module. A container that
/// is merely not running yet proves nothing: it loads the module before it is reported as running, and the watch of pods may
/// be behind the probe's report. Once requested, the release lasts until the driver is running.
fn probe_blocks_driver(member: &Member<'_>, now: Timestamp) -> bool {
    let Some(loaded) = member.report.and_then(|report| report.driver.loaded.as_deref()) else {
        return false;
    };
    let want = member.want().unwrap_or_default();
    let leaving = |pod: &PodFacts| [&want.driver, &member.have.driver].into_iter().all(|group| pod.group != *group);
    let Some(choice) = member.driver().filter(|choice| choice.is_managed()) else {
        return member.pods_of(Stage::Driver).any(leaving);
    };
    let asked = member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.release_driver);
    // While pods use the GPUs, a release does not help, and the health of the GPUs would not be monitored.
    let wins = member.gpu_pods.map_or(asked, |pods| !pods.is_held());
    let up = member.pod(Stage::Driver).is_some_and(PodFacts::running) && !member.driver_waits();
    !up && wins && (asked || waits_for_holders(member, now))
        || (!choice.fits(loaded) && !member.driver_waits_for_its_turn())
}
