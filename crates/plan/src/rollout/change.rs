//! What an update changes on a node, and thus what it has to wait for.

use gpu_operator_crd::{
    gpunode::{DisruptionScope, StageRevisions},
    policy::Stage,
};
use k8s_openapi::api::core::v1::Container;

use crate::{
    assess::{member::Member, mig},
    desired::driver::choice::DriverChoice,
    revision,
    world::World,
};

/// What an update changes on a node.
#[derive(Clone, Debug)]
pub struct Change {
    /// The groups that the node gets.
    pub to: StageRevisions,
    /// Whether the driver is unloaded.
    pub reloads_driver: bool,
    /// Whether no program may use the GPUs meanwhile: the driver is unloaded, or the GPUs are divided in another way.
    pub needs_idle_gpus: bool,
}

impl Change {
    /// Returns what changes on a node that gets these groups.
    pub fn of(member: &Member<'_>, to: StageRevisions, world: &World) -> Self {
        let reloads_driver = member.have.driver != to.driver && !keeps_driver_loaded(member, &to, world);
        Self { reloads_driver, needs_idle_gpus: reloads_driver || mig::differs(member).is_some(), to }
    }

    /// Returns what it takes from running pods.
    pub fn scope(&self) -> DisruptionScope {
        if self.needs_idle_gpus { DisruptionScope::GpuPods } else { DisruptionScope::Nothing }
    }
}

/// Returns whether NVIDIA's driver container keeps the loaded modules when the next one replaces it, even if the GPUs are in use: both
/// are configured in the same way, and the modules were loaded with that configuration. So only the image differs, or what else
/// does not affect what is loaded.
fn keeps_driver_loaded(member: &Member<'_>, to: &StageRevisions, world: &World) -> bool {
    let Some(loaded_with) = member.report.and_then(|report| report.driver.config_digest.as_deref()) else {
        return false;
    };
    let container = |groups| driver_container(groups, world);
    let Some((old, new)) = container(&member.have).zip(container(to)) else { return false };
    let digest = |container: &Container| {
        let mut variables = container.env.iter().flatten();
        variables
            .find(|variable| variable.name == DriverChoice::DIGEST_VARIABLE)
            .and_then(|variable| variable.value.clone())
    };
    old.env == new.env && old.args == new.args && digest(new).as_deref() == Some(loaded_with)
}

fn driver_container<'w>(groups: &StageRevisions, world: &'w World) -> Option<&'w Container> {
    revision::pod_spec(world, Stage::Driver, groups.driver.as_ref()?)?.containers.first()
}

/// Returns whether the DaemonSets of these groups exist. A running revision is not given up for one that the API server
/// rejects.
pub fn daemon_sets_exist(want: &StageRevisions, world: &World) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let name = want.get(stage).map(|group| revision::daemon_set_name(stage, group));
        name.is_none_or(|name| world.daemon_sets.contains_key(&name))
    })
}
