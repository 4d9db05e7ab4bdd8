//! The findings of pod diagnosis.

use super::entry::{Entry, List};

/// The text of `LegacyGpuResource`.
pub const LEGACY_GPU_RESOURCE: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The pod requests `alpha.kubernetes.io/nvidia-gpu`, the GPU resource of early Kubernetes (removed in \
               1.10). No node offers it, so the pod stays pending.",
    action: "Request `limits: {nvidia.com/gpu: 1}`, and remove the volumes of driver libraries that were used with \
              it.",
};

/// The text of `HostDriverMounted`.
pub const HOST_DRIVER_MOUNTED: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The pod mounts the driver's libraries, binaries or device nodes from its host, such as \
               `/usr/lib64/nvidia`, `/home/kubernetes/bin/nvidia` or `/dev/nvidia0`. It has access to every GPU of the \
               node, including those of other pods, it is not counted by the scheduler, and the next driver update \
               breaks it. Pods of DaemonSets and of the `system-…` priority classes are exempt.",
    action: "Request `limits: {nvidia.com/gpu: 1}` and remove these volumes, and `privileged` with them: the driver \
              is injected into the container.",
};

/// The text of `GpuNotRequested`.
pub const GPU_NOT_REQUESTED: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "A container sets `NVIDIA_VISIBLE_DEVICES`, and no container of the pod requests a GPU. It gets no GPU, \
               or GPUs that other pods use. Privileged pods, pods of DaemonSets and pods with resource claims are \
               exempt.",
    action: "Request `limits: {nvidia.com/gpu: 1}` and remove the variable.",
};

/// The text of `GpuRequestWithoutLimit`.
pub const GPU_REQUEST_WITHOUT_LIMIT: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The API server rejects the owner's pods: a container requests a GPU without a limit, or with a \
               different limit. (A Deployment, Job or pod with this mistake is rejected on apply. Here the request or \
               limit was added later.)",
    action: "Set `nvidia.com/gpu` under `limits` only. Check the LimitRanges of the namespace and admission webhooks.",
};

/// The text of `RuntimeClassMissing`.
pub const RUNTIME_CLASS_MISSING: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The API server rejects the owner's pods: their RuntimeClass does not exist.",
    action: "Remove `runtimeClassName` if GPUs are injected by CDI, which needs no RuntimeClass, or create the \
              RuntimeClass.",
};

/// The text of `RuntimeClassNotNamed`.
pub const RUNTIME_CLASS_NOT_NAMED: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The pod runs on a node whose containers get their GPUs through NVIDIA's runtime, which is not the \
               default there (`toolkit.setAsDefault: false`, or k3s and RKE2), but sets no RuntimeClass, so another \
               runtime runs it. It starts and finds no driver: `libcuda.so.1: cannot open shared object file`, \
               `nvidia-smi: not found`, or NVML's `Unknown Error`.",
    action: "Set `runtimeClassName: nvidia`, or remove `toolkit.setAsDefault: false` from the policy.",
};

/// The text of `RuntimeHandlerMissing`.
pub const RUNTIME_HANDLER_MISSING: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The pod is assigned to a node whose container runtime has no handler configured for its RuntimeClass.",
    action: "Remove `runtimeClassName` if GPUs are injected by CDI. Otherwise check the progress of the node's \
              toolkit: `kubectl get gpunode NODE -o wide`.",
};

/// The text of `CudaTooNew`.
pub const CUDA_TOO_NEW: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The image needs a later CUDA version than the driver of its node supports or, before the pod is \
               scheduled, than any eligible node supports; or `NVIDIA_REQUIRE_CUDA` in the pod's spec requires such a \
               version; or NVIDIA's runtime did not start the container and reported `unsatisfied condition: cuda>=…`.",
    action: "Use an image for the CUDA version in the message or an earlier one, or update the node's driver.",
};

/// The text of `NoNodeFits`.
pub const NO_NODE_FITS: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "No node can ever run the pod: it requests more GPUs than any node has, a model that no node has, or \
               shares or MIG devices that no node offers.",
    action: "The message lists what is available.",
};

/// The text of `GpuNodesNotReady`.
pub const GPU_NODES_NOT_READY: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The nodes that could run the pod do not offer their GPUs yet.",
    action: "The message has the progress of the nearest node; [Phases and reasons](../reference/reasons.md) explains \
              its reason.",
};
