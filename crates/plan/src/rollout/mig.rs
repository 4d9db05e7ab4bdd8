//! GPUs whose MIG layout no longer matches the policy.

use gpu_operator_crd::{policy::Stage, reason::Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{Assessment, mig},
    note::Note,
    rollout::decision::PoolDecision,
    world::PodFacts,
};

/// Restores MIG layouts that were changed manually after the device plugin started: recreates the plugin's pod, on one node
/// at a time and once no pod uses the GPUs.
pub fn restore_layouts(members: &[Assessment<'_>], now: Timestamp, pool: &mut PoolDecision) {
    for Assessment { member, .. } in members {
        let name = &member.node.name;
        let Some(decision) = pool.nodes.get_mut(name).filter(|decision| decision.note.is_none()) else { continue };
        if member.want().is_none_or(|want| want != member.have) {
            continue;
        }
        let Some(differs) = mig::differs(member) else { continue };
        let Some(pod) = mig::settled_pod(member, now) else {
            // No watch reports that enough time has passed.
            pool.ask_again |= member.pod(Stage::DevicePlugin).is_some_and(PodFacts::running);
            continue;
        };
        match member.gpu_pods.map(|pods| &pods.users) {
            None => pool.ask(member),
            Some(pods) if pods.is_empty() => {
                pool.delete_pods.insert(pod.name.clone());
                return;
            }
            Some(pods) => {
                pool.ask_again = true;
                let message = format!(
                    "{differs}; the layout is restored once no pod uses a GPU of this node; pods that use one: {}",
                    pods.len()
                );
                let waits_on = pods.iter().take(10).map(|pod| pod.name.clone()).collect();
                decision.note = Some(Note { reason: Reason::MigLayoutDiffers, message, waits_on });
            }
        }
    }
}
