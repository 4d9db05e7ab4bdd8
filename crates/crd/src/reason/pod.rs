//! The findings about pods.

reasons! {
    /// What is wrong with a pod.
    pub enum Mistake;

    LegacyGpuResource: Pod,
        "The pod requests `alpha.kubernetes.io/nvidia-gpu`, the GPU resource of early Kubernetes (removed in 1.10). No node \
         offers it, so the pod stays pending.",
        "Request `limits: {nvidia.com/gpu: 1}`, and remove the volumes of driver libraries that were used with it.";
    HostDriverMounted: Pod,
        "The pod mounts the driver's libraries, binaries or device nodes from its host, such as `/usr/lib64/nvidia`, \
         `/home/kubernetes/bin/nvidia` or `/dev/nvidia0`. It has access to every GPU of the node, including those of other \
         pods, it is not counted by the scheduler, and the next driver update breaks it. Pods of DaemonSets and of the \
         `system-…` priority classes are exempt.",
        "Request `limits: {nvidia.com/gpu: 1}` and remove these volumes, and `privileged` with them: the driver is injected \
         into the container.";
    GpuNotRequested: Pod,
        "A container sets `NVIDIA_VISIBLE_DEVICES`, and no container of the pod requests a GPU. It gets no GPU, or GPUs that \
         other pods use. Privileged pods, pods of DaemonSets and pods with resource claims are exempt.",
        "Request `limits: {nvidia.com/gpu: 1}` and remove the variable.";
    RuntimeClassNotNamed: Pod,
        "The pod runs on a node whose containers get their GPUs through NVIDIA's runtime, which is not the default there \
         (`toolkit.setAsDefault: false`, or k3s and RKE2), but sets no RuntimeClass, so another runtime runs it. It starts \
         and finds no driver: `libcuda.so.1: cannot open shared object file`, `nvidia-smi: not found`, or NVML's `Unknown \
         Error`.",
        "Set `runtimeClassName: nvidia`, or remove `toolkit.setAsDefault: false` from the policy.";
    RuntimeHandlerMissing: Pod,
        "The pod is assigned to a node whose container runtime has no handler configured for its RuntimeClass.",
        "Remove `runtimeClassName` if GPUs are injected by CDI. Otherwise check the progress of the node's toolkit: `kubectl \
         get gpunode NODE -o wide`.";
    CudaTooNew: Pod,
        "The image needs a later CUDA version than the driver of its node supports or, before the pod is scheduled, than any \
         eligible node supports; or `NVIDIA_REQUIRE_CUDA` in the pod's spec requires such a version; or NVIDIA's runtime did \
         not start the container and reported `unsatisfied condition: cuda>=…`.",
        "Use an image for the CUDA version in the message or an earlier one, or update the node's driver.";
    NoNodeFits: Pod,
        "No node can ever run the pod: it requests more GPUs than any node has, a model that no node has, or shares or MIG \
         devices that no node offers.",
        "The message lists what is available.";
    GpuNodesNotReady: Pod,
        "The nodes that could run the pod do not offer their GPUs yet.",
        "The message has the progress of the nearest node; [Phases and reasons](../reference/reasons.md) explains its \
         reason.";
}

impl Mistake {
    /// Returns whether a user has to fix the pod or the fleet. The other findings resolve by themselves.
    pub fn is_warning(self) -> bool {
        self != Self::GpuNodesNotReady
    }
}
