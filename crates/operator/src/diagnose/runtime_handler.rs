//! Runtime handlers that a node's container runtime knows nothing of.

use super::{Look, Mistake, PendingPod, START_GRACE, Voice};

/// Looks at a pod that is bound to a node. Only the kubelet's Event says what the runtime answered.
pub fn look(pod: &PendingPod, voices: Option<&[Voice]>) -> Look {
    let Some(class) = pod.runtime_class.as_deref().filter(|class| class.starts_with("nvidia")) else {
        return Look::Nothing;
    };
    let mut failed = voices.into_iter().flatten().filter(|voice| voice.reason == "FailedCreatePodSandBox");
    let Some(handler) = failed.find_map(|voice| unknown_handler(&voice.message)) else {
        return Look::Ask { grace: START_GRACE };
    };
    let node = pod.node.as_deref().unwrap_or_default();
    Look::Found(
        Mistake::RuntimeHandlerMissing,
        format!(
            "RuntimeClass {class} asks for the handler {handler:?}, which the container runtime of node {node} has not \
             configured; leave runtimeClassName out where GPUs come by CDI, which needs none, or see kubectl get gpunode \
             {node} -o wide for how far its toolkit is"
        ),
    )
}

/// The handler that a container runtime says it has not.
fn unknown_handler(message: &str) -> Option<&str> {
    // containerd
    let containerd = || message.split_once("no runtime for \"")?.1.split_once("\" is configured");
    // CRI-O; general knowledge, unverified.
    let crio = || message.split_once("failed to find runtime handler ")?.1.split_once(' ');
    Some(containerd().or_else(crio)?.0).filter(|handler| handler.starts_with("nvidia"))
}
