//! Pods that run once: tests of a node, and pods that pull images.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::NodeName;
use gpu_operator_plan::world::{ContainerFacts, ContainerState, Exit, Role};

use super::{
    Sim,
    faults::{Faults, Test},
    pod::{end_test, new_pod, run},
};

impl Sim {
    /// Schedules validation tests if a GPU is free, starts them, and ends them one step later.
    pub(super) fn run_tests(&mut self, node: &NodeName, faults: &Faults) {
        let now = self.now;
        let there = &self.nodes[node].allocatable;
        let offers = there.names().any(|name| there.amount(name) > 0) || self.served(node) > 0;
        let free = offers && faults.test != Test::Unschedulable;
        let tests = self.pods.values_mut().filter(|pod| pod.role == Role::Validation && pod.node == *node);
        for pod in tests.filter(|pod| pod.end.is_none()) {
            if pod.containers.is_empty() && !free {
                pod.unschedulable = Some("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.".into());
            } else if pod.containers.is_empty() {
                pod.unschedulable = None;
                pod.containers = new_pod(&pod.name, node, pod.role, now).containers;
                run(pod, now);
            } else if let Test::Fails(words) = &faults.test {
                end_test(pod, Some(Exit { code: 1, message: words.clone() }));
            } else if faults.test != Test::Hangs {
                end_test(pod, None);
            }
        }
    }

    /// Pulls the images of preflight pods. No image contains their command.
    pub(super) fn pull_images(&mut self, node: &NodeName, faults: &Faults) {
        let pods = self.pods.values_mut().filter(|pod| pod.role == Role::Preflight && pod.node == *node);
        for pod in pods.filter(|pod| pod.end.is_none()) {
            let containers = self.templates.get(&pod.name).into_iter().flat_map(|template| &template.containers);
            pod.containers = containers
                .map(|container| {
                    let is_missing = container.image.as_deref().is_some_and(|image| faults.lack(image));
                    let state = if is_missing {
                        faults.lacks_its_image()
                    } else {
                        ContainerState::Ended(Exit { code: 128, message: "StartError".into() })
                    };
                    ContainerFacts { name: Interned::from(&container.name), state, last_failure: None, ready: false }
                })
                .collect();
        }
    }
}
