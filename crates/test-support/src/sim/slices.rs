//! The DRA driver of this operator: the slices that it publishes, and kubelet, which deletes those of a driver that is gone.

use gpu_operator_crd::{NodeName, policy::Stage, report::Gpu};
use gpu_operator_plan::world::{GpuSlice, PodFacts, SliceGpu};
use k8s_openapi::{api::core::v1::PodSpec, jiff::SignedDuration};

use super::Sim;

/// How long kubelet waits for a driver that is gone before it deletes its slices.
const WIPE_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// Whether a pod's template is that of the DRA driver.
pub(super) fn is_by_claims(template: &PodSpec) -> bool {
    template.containers.iter().any(|container| container.name == "dra-driver")
}

fn slice_name(node: &NodeName) -> String {
    format!("{node}-gpu.nvidia.com-own")
}

impl Sim {
    /// Returns the number of GPUs that pods can get on a node: from kubelet, or by claims.
    pub fn served(&self, node: &NodeName) -> u32 {
        let slices = self.gpu_slices.values().filter(|slice| slice.node == *node);
        let published = slices.flat_map(|slice| &slice.gpus).filter(|gpu| !gpu.tainted).count();
        let allocatable = self.nodes.get(node).map_or(0, |node| node.allocatable.total());
        allocatable + u32::try_from(published).expect("few GPUs")
    }

    /// Publishes the first GPUs of a node while its DRA driver runs, and deletes its slices once it has been gone for long enough.
    pub(super) fn publish_slices(&mut self, node: &NodeName, seen: u32) {
        let plugin = format!("{}@{node}", Stage::DevicePlugin.as_str());
        let is_driver = self.templates.get(&plugin).is_some_and(is_by_claims);
        let runs = is_driver && self.pods.get(&plugin).is_some_and(PodFacts::running);
        let has_driver = self.machines.get(node).is_some_and(|machine| machine.driver.loaded.is_some());
        if runs && has_driver {
            self.slices_until.remove(node);
            let gpus = self.machines[node].gpus.iter().take(seen as usize);
            let published = |gpu: &Gpu| SliceGpu {
                uuid: gpu.uuid.clone().unwrap_or_else(|| format!("GPU-{}", gpu.pci_address)).into(),
                tainted: false,
            };
            let slice = GpuSlice {
                node: node.clone(),
                pool: node.as_str().into(),
                generation: 1,
                of_slices: 1,
                gpus: gpus.map(published).collect(),
            };
            self.gpu_slices.insert(slice_name(node), slice);
        } else if self.gpu_slices.contains_key(&slice_name(node)) {
            let until = *self.slices_until.entry(node.clone()).or_insert(self.now + WIPE_DELAY);
            if self.now >= until {
                self.wipe_slices(node);
            }
        }
    }

    /// Deletes the slices of a node's drivers, as kubelet does when it starts.
    pub fn wipe_slices(&mut self, node: &NodeName) {
        self.slices_until.remove(node);
        self.gpu_slices.remove(&slice_name(node));
    }
}
