//! Which nodes serve GPUs, as the laws of startup taints see it.

use gpu_operator_crd::NodeName;

use super::Sim;

impl Sim {
    /// Records the boot of a node that serves GPUs.
    pub(super) fn note_service(&mut self, name: &NodeName) {
        if self.serves(name) {
            let node = &self.nodes[name];
            self.served_on.insert((node.uid.clone(), node.boot_id.clone()));
        }
    }

    /// Returns whether a node offers GPUs, and its probe has reported on this boot.
    fn serves(&self, name: &NodeName) -> bool {
        let Some(node) = self.nodes.get(name) else { return false };
        let report = self.gpu_nodes.get(name).and_then(|gpu_node| self.with_report(name, gpu_node).status?.report);
        let has_reported = report.is_some_and(|report| *report.boot_id == *node.boot_id);
        let offers = node.allocatable.names().any(|name| node.allocatable.amount(name) > 0);
        has_reported && (offers || self.served(name) > 0)
    }

    /// Returns whether a node serves GPUs, or has on this boot.
    pub fn has_served(&self, name: &NodeName) -> bool {
        let Some(node) = self.nodes.get(name) else { return false };
        self.serves(name) || self.served_on.contains(&(node.uid.clone(), node.boot_id.clone()))
    }
}
