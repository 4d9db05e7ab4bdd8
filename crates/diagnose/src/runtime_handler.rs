//! Runtime handlers that are not configured in a node's container runtime.

use crate::{
    finding::{Mistake, PodEvent, SANDBOX_FAILED, START_GRACE},
    pending::PendingPod,
    verdict::Verdict,
};

/// Checks a pod that is assigned to a node. Only kubelet's Event contains the container runtime's error.
pub fn check(pod: &PendingPod, pod_events: Option<&[PodEvent]>) -> Verdict {
    let Some(class) = pod.runtime_class.as_deref().filter(|class| class.starts_with("nvidia")) else {
        return Verdict::NoMistake;
    };
    let mut failed = pod_events.into_iter().flatten().filter(|event| event.reason == SANDBOX_FAILED);
    let Some(handler) = failed.find_map(|event| unknown_handler(&event.message)) else {
        return Verdict::ReadEvents { grace: START_GRACE };
    };
    let node = pod.node.as_deref().unwrap_or_default();
    Verdict::Mistake(
        Mistake::RuntimeHandlerMissing,
        format!(
            "RuntimeClass {class} uses the handler {handler:?}, which is not configured in the container runtime of node \
             {node}; remove runtimeClassName if GPUs are injected by CDI, which needs no RuntimeClass; otherwise check the \
             progress of the node's toolkit: kubectl get gpunode {node} -o wide"
        ),
    )
}

/// Returns the handler that a container runtime reports as missing.
fn unknown_handler(message: &str) -> Option<&str> {
    // containerd
    let containerd = || message.split_once("no runtime for \"")?.1.split_once("\" is configured");
    // CRI-O; general knowledge, unverified.
    let crio = || message.split_once("failed to find runtime handler ")?.1.split_once(' ');
    Some(containerd().or_else(crio)?.0).filter(|handler| handler.starts_with("nvidia"))
}
