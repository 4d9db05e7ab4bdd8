//! Clocks of nodes that differ from the operator's.

use std::sync::Arc;

use crate::{driver_down::edit_pod, messages};
use gpu_operator_plan::world::{ContainerState, ObservedTime, World};
use k8s_openapi::jiff::SignedDuration;

/// Moves all times that kubelets reported, but not when they were observed.
fn skew(world: &mut World, by: SignedDuration) {
    let skew = |time: &mut ObservedTime| {
        let local = time.local();
        *time = (time.reported() + by).into();
        time.observe(local, Some(&[]));
    };
    let names: Vec<_> = world.pods.values().map(|pod| pod.name.clone()).collect();
    for name in names {
        edit_pod(world, &name, |pod| {
            pod.end.iter_mut().filter_map(|end| end.at.as_mut()).for_each(skew);
            for container in pod.init.iter_mut().chain(&mut pod.containers) {
                if let ContainerState::Running(Some(since)) = &mut container.state {
                    skew(since);
                }
            }
        });
    }
}

/// Removes when GPUs recovered, which the probe reports by the clock of its node.
fn forget_recoveries(world: &mut World) {
    for gpu_node in world.gpu_nodes.values_mut().map(Arc::make_mut) {
        let report = gpu_node.status.as_mut().and_then(|status| status.report.as_mut());
        report.into_iter().flat_map(|report| &mut report.gpus).for_each(|gpu| gpu.health.since = None);
    }
}

#[test]
fn no_plan_depends_on_the_clock_of_a_kubelet() {
    for (reason, mut sim) in messages::simulations() {
        for _ in 0..8 {
            let mut world = sim.world();
            forget_recoveries(&mut world);
            let plan = sim.plan_for(world.clone());
            for minutes in [-10, 10] {
                let mut world = world.clone();
                skew(&mut world, SignedDuration::from_mins(minutes));
                assert!(sim.plan_for(world) == plan, "{reason}: another plan with a clock that is {minutes} min ahead");
            }
            sim.run(3);
            sim.sleep(4);
        }
    }
}
