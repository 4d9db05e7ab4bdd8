//! The failures of nodes and of their drivers.

/// Appends the reasons of this file to a table, which continues with `policy_reasons`.
macro_rules! failure_reasons {
    ($($table:tt)*) => { policy_reasons! {
        $($table)*

        ProbeMissing: Failure,
            "No probe pod runs on the node, or it does not report.",
            "Read the message. If there is no pod, make the chart's `probe.affinity`, `probe.nodeSelector` and \
             `probe.tolerations` match the node; if there is one, read its log.";
        GpuNodeUnreadable: Failure,
            "The node's GpuNode cannot be parsed, because another version of the operator or of its CRDs has written it. The \
             node is left unchanged and keeps its slot, if it is being updated; its policy counts it as `nodes.failed` and its \
             GPUs as `gpus.unknown`.",
            "Install the version that wrote it, or delete the GpuNode (`kubectl delete gpunode NODE`): the probe creates it \
             again.";
        DriverInUse: Failure,
            "The loaded driver is in use, so it cannot be replaced by the wanted driver, or an older driver image cannot reload \
             it.",
            "End the programs that use the GPUs on the host (`nvidia-smi`, `fuser -v /dev/nvidia*`), or reboot the node.";
        DriverDown: Failure,
            "A driver is loaded, but its container is not running, so its libraries are missing. Running GPU pods keep their \
             GPUs; the device plugin's pod is recreated and waits, so that no other GPU pod starts on the node.",
            "Check the container in the message (`kubectl describe pod`, `kubectl logs --previous`). Kubelet restarts it; a \
             current image takes the driver over without a reload.";
        DriverRootIncomplete: Failure,
            "The driver's container is running, but the root that it shares with the node lacks the library of the loaded driver \
             or required device nodes, so no GPU pod can start.",
            "Delete the driver's pod in the message: the new pod shares its root again. If device nodes are missing, first read \
             the log of its container `device-nodes`.";
        DriverVersionMismatch: Failure,
            "The loaded kernel module does not have the wanted version.",
            "Read the log of the pod in the message.";
        RebootNeeded: Failure,
            "The driver installed on the host differs from the loaded one: after a package upgrade, or because an installer \
             could not replace a driver that was in use.",
            "Reboot the node.";
        KernelHeadersUnavailable: Failure,
            "The driver is compiled on the node, and the headers of the node's kernel are missing, usually because the \
             repositories lack them.",
            "Set repositories that contain them in `driver.container.configMaps.repositories`, set \
             `driver.container.precompiled: true`, or boot a kernel whose headers are available.";
        SecureBootRejectsModule: Failure,
            "Secure Boot is enabled, and the kernel rejects the driver's modules: modules that are compiled on the node are not \
             signed with a key that the node trusts.",
            "Use precompiled modules that the distribution signs (source `Container` with `driver.container.precompiled: true`), \
             enrol the key that signs the modules (`mokutil --import`, then reboot), or switch Secure Boot off in the node's \
             firmware.";
        DriverImageNotFound: Failure,
            "The driver image does not exist: not for this version, operating system or kernel, or not in the mirror. Other pull \
             failures are `ImagePullFailed`.",
            "The message names the image. Check the version; with a mirror, copy the image; otherwise set your own image in \
             `driver.image`. If a precompiled image is missing, the modules are compiled instead.";
        DownloadFailed: Failure,
            "The installing container cannot download the driver or packages. The message begins with the cause: a name that \
             cannot be resolved, an untrusted certificate, a wrong clock, the proxy, or a server that is unreachable, denies the \
             request or lacks the file.",
            "Follow the message; the container retries by itself.";
        ChecksumMissing: Failure,
            "The policy has source `RunFile` and no `driver.runFile`, which has the checksum of the `.run` file.",
            "Add `driver.runFile.sha256` with the checksum that `sha256sum` prints for the file.";
        ChecksumMismatch: Failure,
            "The `.run` file has another checksum than `driver.runFile.sha256`: it is the file of another version, incomplete, \
             or was changed. It was not executed.",
            "Compare the checksum with the one that the file's publisher states. If it is correct, replace the file on the \
             mirror or set another `url`; otherwise correct `sha256`.";
        DriverNotLoaded: Failure,
            "A driver is installed on the host, but its kernel module is not loaded. It is not overwritten.",
            "Load it (`modprobe nvidia`) or reboot the node; to replace it, uninstall it, or set `source: Container`.";
        DriverNotInstalled: Failure,
            "The host has no driver, and the pool's source is `Preinstalled`, or the GPUs are virtual GPUs of a hypervisor: \
             these need NVIDIA's vGPU guest driver of the hypervisor's branch, which the message names.",
            "Install one on the host, or set `source: Auto` or `Container`; for virtual GPUs, `Container` or `RunFile` with the \
             image or the URL of the guest driver.";
        DriverLibraryNotFound: Failure,
            "An NVIDIA kernel module is loaded that this operator did not install, and no `libnvidia-ml.so` of its version was \
             found. `Auto` never installs a driver over it.",
            "Set the host directory that contains the libraries: `driver: {source: Preinstalled, preinstalled: {installDir: \
             /opt/vendor/lib}}`. To replace that driver, set `source: Container`. [Drivers](../guides/drivers.md) lists the \
             directories that are searched.";
        GpuBoundToOtherDriver: Failure,
            "GPUs of the node are bound to another kernel driver, such as the kernel's own `nouveau` or `NovaCore`, so NVIDIA's \
             driver cannot be loaded for them. The driver's pod unloads these two if nothing uses them, and no others.",
            "The message names the driver. If nothing uses it, unload its module (`modprobe --remove nova_core`); otherwise \
             blacklist the module on the node (`/etc/modprobe.d/nova_core.conf`: `blacklist nova_core`; for nouveau also \
             `options nouveau modeset=0`), rebuild its initramfs (`update-initramfs -u` or `dracut --force`) and reboot it. If \
             nouveau is built into the kernel, add `nouveau.modeset=0` to the kernel command line instead.";
        NvmlFailed: Failure,
            "The driver is loaded, but NVML returns an error, hangs or crashes.",
            "The message contains NVML's error. Search the kernel log for `NVRM` and `Xid` lines.";
        FabricNotReady: Failure,
            "The GPUs have not joined their NVLink fabric for ten minutes, or the machine has an NVSwitch and no process \
             `nv-fabricmanager` runs. CUDA programs fail with error 802 (system not yet initialized).",
            "On a host with its own driver, install the fabric manager of exactly the driver's version and start its service. \
             NVIDIA's driver container starts it itself: see the container's log. If it runs, see its own log.";
        DeviceNodesMissing: Failure,
            "Device nodes that every CUDA program opens, such as `/dev/nvidia-uvm`, do not exist on the host, or did not when \
             the device plugin wrote its CDI specification. `nvidia-smi` works in such a container, CUDA does not.",
            "Run the command in the message on the node, and have every boot run it; or delete the device plugin's pod that the \
             message names.";
        CudaInitFailed: Failure,
            "NVML works, but CUDA's first call fails on the node: the probe has called `cuInit` twice, in a process of its own. \
             Every CUDA program fails with this error.",
            "The message has the error and what it means. The probe calls it again every half minute.";
        NoDriverImageForOS: Failure,
            "No driver image is known to be published for the node's operating system and this driver version.",
            "Set one of the versions in the message, set your own image (`driver.image` with `tag` or `digest`), use source \
             `RunFile`, or install the driver on the host.";
        DriverUnsupported: Failure,
            "The driver's version, or its flavour of kernel modules, does not support the node's model.",
            "Set the branch or flavour in the message, or remove `version` to get a supported one. Nodes with models that no \
             single driver supports need a driver that does.";
        UnknownGpu: Failure,
            "The node's GPU is not in the catalogue, so the operator cannot determine its driver and kernel modules. The node is \
             left unchanged.",
            "Add the PCI id to `spec.models` with the card's architecture, or set the fields in the message: `driver.version` \
             and `driver.container.kernelModule`, or for source `RunFile` `driver.runFile.url` and `driver.runFile.sha256`.";
        ImagePullFailed: Failure,
            "An image cannot be pulled.",
            "The message contains the runtime's error. Check `images.registry` and the tag, and if the registry denies the \
             request, that `images.pullSecrets` names a secret with valid credentials for it.";
        ContainerCrashed: Failure,
            "A container of a stage crashes or cannot be created.",
            "The message contains the exit code and the line of its log that reports the error. Read the full log. If the \
             driver's modules do not compile, set another `driver.version`, set `driver.container.precompiled: true`, or use an \
             image with the kernel's compiler. If the toolkit cannot be installed on a read-only file system, set \
             `toolkit.installDir`.";
        UntoleratedTaint: Failure,
            "The node has a taint that `tolerations`, of its pool or in `defaults`, do not tolerate, so no operand is scheduled \
             onto it.",
            "Add a toleration for the taint in the message, or remove the list: without one every taint is tolerated.";
        RuntimeUnsupported: Failure,
            "The node's container runtime does not support the pool's `toolkit` settings: CDI needs containerd 1.7 (with k3s and \
             RKE2 2.0) or CRI-O, NRI needs containerd 2.1 or CRI-O 1.34, and an explicit `runtime` must be the one that runs. \
             Nothing is installed there.",
            "The message contains the supported settings.";
        CdiDisabled: Failure,
            "The container runtime has loaded `enable_cdi = false`, or `cdi_spec_dirs` without `/var/run/cdi`: kubelet offers \
             the node's GPUs, but no container can have one. The toolkit enables CDI where its update is pending.",
            "The message contains the key. Correct the runtime's configuration and restart it, or wait for the update.";
        RuntimeConfigRejected: Failure,
            "The container runtime did not start with NVIDIA's runtime in its configuration, or did not load it. Its previous \
             configuration was restored, and it runs with that.",
            "The message contains the failed check or command, such as a socket that does not answer, or a flag of `dockerd`. \
             Remove the flag from Docker's unit and restart Docker, or check the runtime's log (`journalctl -u containerd`) and \
             correct the file. Delete the toolkit's pod to retry.";
        RuntimeDown: Failure,
            "The container runtime was restarted and does not start, even with its previous configuration.",
            "Check its log on the node. Running pods are not affected; no pod can start.";
        MigBlocked: Failure,
            "The node's GPUs have to be repartitioned according to `devicePlugin.mig`, and instances that have to be removed are \
             in use. The device plugin waits.",
            "The message names the processes: end them. The change is retried by itself.";
        MigResetNeeded: Failure,
            "MIG was enabled or disabled, and this GPU needs a reset to apply the change.",
            "Reboot the node, or reset the GPU (`nvidia-smi --gpu-reset`) while it is not in use.";
        MigLayoutRefused: Failure,
            "The node's GPUs do not support MIG or the profile in the message, or cannot fit all of `devicePlugin.mig.layout`, \
             or the node lacks a GPU that the layout names in `devices`.",
            "Correct the layout. If a profile is not supported, the message lists the supported profiles.";
        DevicePluginUnsupported: Failure,
            "The device plugin in the policy does not work with the node's driver, or with other settings of the policy. The \
             node is left unchanged.",
            "The message contains the supported settings.";
        DraUnsupported: Failure,
            "The pool has `allocation.mode: DRA`, which does not work on the node: its kubelet is older than 1.34, its driver older \
             than 565, or its container runtime gets GPUs without CDI. The node is left unchanged.",
            "The message contains what the node lacks. Change it, or write `allocation.mode: DevicePlugin` for the pool.";
        PodUnschedulable: Failure,
            "The stage's pod cannot be scheduled onto its node.",
            "The message contains the scheduler's error: usually a taint that `tolerations` lacks, or insufficient CPU or \
             memory.";
        PodsForbidden: Failure,
            "The API server rejects the stage's pods, or has failed to create them for a minute, for example because a webhook \
             does not answer. If the policy has no nodes, the pods are those of the probe.",
            "Label the namespace `pod-security.kubernetes.io/enforce=privileged`. On GKE set the chart's \
             `resourceQuota.enabled=true`. Otherwise the message names the policy that rejects the pods, or the webhook.";
        TooManyGpus: Failure,
            "For more than a minute, more GPUs have been allocatable than the node has, although this operator's device plugin \
             serves it: another plugin registers the same resource, and pods may get a GPU that others use.",
            "Remove one of the plugins: the message lists the DaemonSets with a device plugin on the node. To keep the other \
             one, write `devicePlugin.flavor: External`.";
        GpuMissing: Failure,
            "The PCI bus shows fewer GPUs than expected; the message has the last known PCI addresses of the missing ones.",
            "A GPU may have fallen off the bus: check the kernel log. If it was removed permanently, annotate the node: `kubectl \
             annotate node NODE gpu.nodestack.dev/gpu-count=7`. If all GPUs were replaced by other models while the machine was \
             running, reboot it or annotate the node in the same way: only after a reboot such GPUs count as another machine \
             (`GpusReplaced`). If the pool's `gpusPerNode` is too high, correct it.";
        GpuUnhealthy: Failure,
            "The probe reports that a GPU must not be used, and fewer GPUs are healthy than `health.minHealthyGPUs`. On a node \
             that is Ready nevertheless it is a warning.",
            "The message contains the GPU's PCI address, its most severe cause and the required action; see [GPU \
             health](../operate/health.md).";
        ValidationFailed: Failure,
            "The test in `readiness.validation` failed or could not be run. It is retried after a minute, and then with twice \
             the delay each time, up to an hour; immediately after a reboot, with another revision, or with another \
             `validation.image`.",
            "The message contains the exit code and the end of the test's log. Search the kernel log for `Xid` lines; to use the \
             node without the test, set `mode: Never`.";
        ProgressDeadlineExceeded: Failure,
            "The phase lasted longer than `readiness.progressDeadline`.",
            "The message contains the last state: check that.";
    } };
}
