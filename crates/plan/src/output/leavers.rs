//! The nodes that no policy governs any more, as the policies that governed them report and await them.

use std::collections::BTreeMap;

use gpu_operator_crd::{GpuNodeStatus, PolicyName, policy_status::Attention};

use crate::inventory::UnmanagedNode;

/// The nodes that no policy governs and that still have something of this operator.
#[derive(Debug, Default)]
pub struct Leavers {
    /// Those whose GpuNodes name the policy that governed them, with the state to report, in the order of their names.
    of_policies: BTreeMap<PolicyName, Vec<Attention>>,
    /// Whether there are others, whose policy is not recorded.
    pub others: bool,
}

impl Leavers {
    /// Returns those that a policy governed.
    pub fn of(&self, policy: &PolicyName) -> &[Attention] {
        self.of_policies.get(policy).map(Vec::as_slice).unwrap_or_default()
    }

    /// Adds a node, whose GpuNode gets this status.
    pub fn add(&mut self, unmanaged: &UnmanagedNode<'_>, status: Option<&GpuNodeStatus>) {
        let spec = unmanaged.gpu_node.map(|gpu_node| &gpu_node.spec);
        let former = spec.and_then(|spec| Some((spec.policy.clone()?, spec.pool.clone()?)));
        let reported = status.and_then(|status| Some((status, status.reason.clone()?)));
        let (Some((policy, pool)), Some((status, reason))) = (former, reported) else {
            self.others = true;
            return;
        };
        let attention = Attention {
            node: unmanaged.node.name.clone(),
            pool,
            reason,
            message: status.message.clone(),
            since: status.since.clone(),
        };
        self.of_policies.entry(policy).or_default().push(attention);
    }
}
