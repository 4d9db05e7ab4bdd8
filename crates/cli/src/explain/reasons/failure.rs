//! The failures of nodes and of their drivers.

use super::entry::{Entry, List};

pub const PROBE_MISSING: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "No probe pod runs on the node, or it does not report.",
    action: "Read the message. If there is no pod, make the chart's `probe.affinity`, `probe.nodeSelector` and \
              `probe.tolerations` match the node; if there is one, read its log.",
};

pub const GPU_NODE_UNREADABLE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's GpuNode cannot be parsed, because another version of the operator or of its CRDs has written \
               it. The node is left unchanged and keeps its slot, if it is being updated; its policy counts it as \
               `nodes.failed` and its GPUs as `gpus.unknown`.",
    action: "Install the version that wrote it, or delete the GpuNode (`kubectl delete gpunode NODE`): the probe \
              creates it again.",
};

pub const IMAGE_PULL_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "An image cannot be pulled.",
    action: "The message contains the runtime's error. Check `images.registry` and the tag, and if the registry denies \
              the request, that `images.pullSecrets` names a secret with valid credentials for it.",
};

pub const CONTAINER_CRASHED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "A container of a stage crashes or cannot be created.",
    action: "The message contains the exit code and the line of its log that reports the error. Read the full log. If \
              the driver's modules do not compile, set another `driver.version`, set `driver.container.precompiled: true`, or use an \
              image with the kernel's compiler. If the toolkit cannot be installed on a read-only file system, set \
              `toolkit.installDir`.",
};

pub const UNTOLERATED_TAINT: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node has a taint that `tolerations`, of its pool or in `defaults`, do not tolerate, so no operand \
               is scheduled onto it.",
    action: "Add a toleration for the taint in the message, or remove the list: without one every taint is tolerated.",
};

pub const CDI_DISABLED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The container runtime has loaded `enable_cdi = false`, or `cdi_spec_dirs` without `/var/run/cdi`: kubelet offers \
              the node's GPUs, but no container can have one. The toolkit enables CDI where its update is pending.",
    action: "The message contains the key. Correct the runtime's configuration and restart it, or wait for the update.",
};

pub const RUNTIME_UNSUPPORTED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's container runtime does not support the pool's `toolkit` settings: CDI needs containerd 1.7 \
               (with k3s and RKE2 2.0) or CRI-O, NRI needs containerd 2.1 or CRI-O 1.34, and an explicit `runtime` \
               must be the one that runs. Nothing is installed there.",
    action: "The message contains the supported settings.",
};

pub const RUNTIME_CONFIG_REJECTED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The container runtime did not start with NVIDIA's runtime in its configuration, or did not load \
               it. Its previous configuration was restored, and it runs with that.",
    action: "The message contains the failed check or command, such as a socket that does not answer, or a \
              flag of `dockerd`. Remove the flag from Docker's unit and restart Docker, or check the runtime's \
              log (`journalctl -u containerd`) and correct the file. Delete the toolkit's pod to retry.",
};

pub const RUNTIME_DOWN: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The container runtime was restarted and does not start, even with its previous configuration.",
    action: "Check its log on the node. Running pods are not affected; no pod can start.",
};

pub const MIG_BLOCKED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's GPUs have to be repartitioned according to `devicePlugin.mig`, and instances that have to be \
               removed are in use. The device plugin waits.",
    action: "The message names the processes: end them. The change is retried by itself.",
};

pub const MIG_RESET_NEEDED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "MIG was enabled or disabled, and this GPU needs a reset to apply the change.",
    action: "Reboot the node, or reset the GPU (`nvidia-smi --gpu-reset`) while it is not in use.",
};

pub const MIG_LAYOUT_REFUSED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's GPUs do not support MIG or the profile in the message, or cannot fit all of \
               `devicePlugin.mig.layout`, or the node lacks a GPU that the layout names in `devices`.",
    action: "Correct the layout. If a profile is not supported, the message lists the supported profiles.",
};

pub const DEVICE_PLUGIN_UNSUPPORTED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The device plugin in the policy does not work with the node's driver, or with other settings of the \
               policy. The node is left unchanged.",
    action: "The message contains the supported settings.",
};

pub const POD_UNSCHEDULABLE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The stage's pod cannot be scheduled onto its node.",
    action: "The message contains the scheduler's error: usually a taint that `tolerations` lacks, or insufficient \
              CPU or memory.",
};

pub const PODS_FORBIDDEN: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The API server rejects the stage's pods, or has failed to create them for a minute, for example because a \
               webhook does not answer. If the policy has no nodes, the pods are those of the probe.",
    action: "Label the namespace `pod-security.kubernetes.io/enforce=privileged`. On GKE set the chart's \
              `resourceQuota.enabled=true`. Otherwise the message \
              names the policy that rejects the pods, or the webhook.",
};

pub const TOO_MANY_GPUS: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "For more than a minute, more GPUs have been allocatable than the node has, although this operator's device \
               plugin serves it: another plugin registers the same resource, and pods may get a GPU that others use.",
    action: "Remove one of the plugins: the message lists the DaemonSets with a device plugin on the node. To keep the \
              other one, write `devicePlugin.flavor: External`.",
};

pub const GPU_MISSING: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The PCI bus shows fewer GPUs than expected; the message has the last known PCI addresses of the missing \
               ones.",
    action: "A GPU may have fallen off the bus: check the kernel log. If it was removed permanently, annotate the \
              node: `kubectl annotate node NODE gpu.nodestack.dev/gpu-count=7`. If all GPUs were replaced by other \
              models while the machine was running, reboot it or annotate the node in the same way: only after a \
              reboot such GPUs count as another machine (`GpusReplaced`). If the pool's `gpusPerNode` is too high, \
              correct it.",
};

pub const GPU_UNHEALTHY: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The probe reports that a GPU must not be used, and fewer GPUs are healthy than `health.minHealthyGPUs`. \
               On a node that is Ready nevertheless it is a warning.",
    action: "The message contains the GPU's PCI address, its most severe cause and the required action; see [GPU \
              health](../operate/health.md).",
};

pub const VALIDATION_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The test in `readiness.validation` failed or could not be run. It is retried after a minute, and then \
               with twice the delay each time, up to an hour; immediately after a reboot, with another revision, or \
               with another `validation.image`.",
    action: "The message contains the exit code and the end of the test's log. Search the kernel log for `Xid` lines; \
              to use the node without the test, set `mode: Never`.",
};

pub const PROGRESS_DEADLINE_EXCEEDED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The phase lasted longer than `readiness.progressDeadline`.",
    action: "The message contains the last state: check that.",
};

pub const DRIVER_IN_USE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The loaded driver is in use, so it cannot be replaced by the wanted driver, or an older driver image \
               cannot reload it.",
    action: "End the programs that use the GPUs on the host (`nvidia-smi`, `fuser -v /dev/nvidia*`), or reboot the \
              node.",
};

pub const DRIVER_DOWN: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "A driver is loaded, but its container is not running, so its libraries are missing. Running GPU pods \
               keep their GPUs; the device plugin's pod is recreated and waits, so that no other GPU pod starts on the \
               node.",
    action: "Check the container in the message (`kubectl describe pod`, `kubectl logs --previous`). Kubelet restarts \
              it; a current image takes the driver over without a reload.",
};

pub const DRIVER_ROOT_INCOMPLETE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver's container is running, but the root that it shares with the node lacks the library of the \
               loaded driver or required device nodes, so no GPU pod can start.",
    action: "Delete the driver's pod in the message: the new pod shares its root again. If device nodes are missing, \
              first read the log of its container `device-nodes`.",
};

pub const DRIVER_VERSION_MISMATCH: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The loaded kernel module does not have the wanted version.",
    action: "Read the log of the pod in the message.",
};

pub const REBOOT_NEEDED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver installed on the host differs from the loaded one: after a package upgrade, or because an \
               installer could not replace a driver that was in use.",
    action: "Reboot the node.",
};

pub const DRIVER_NOT_LOADED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "A driver is installed on the host, but its kernel module is not loaded. It is not overwritten.",
    action: "Load it (`modprobe nvidia`) or reboot the node; to replace it, uninstall it, or set `source: Container`.",
};

pub const DRIVER_NOT_INSTALLED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The host has no driver, and the pool's source is `Preinstalled`, or the GPUs are virtual GPUs of a hypervisor: \
               these need NVIDIA's vGPU guest driver of the hypervisor's branch, which the message names.",
    action: "Install one on the host, or set `source: Auto` or `Container`; for virtual GPUs, `Container` or `RunFile` \
              with the image or the URL of the guest driver.",
};

pub const DRIVER_LIBRARY_NOT_FOUND: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "An NVIDIA kernel module is loaded that this operator did not install, and no `libnvidia-ml.so` of its \
               version was found. `Auto` never installs a driver over it.",
    action: "Set the host directory that contains the libraries: `driver: {source: Preinstalled, preinstalled: {installDir: \
              /opt/vendor/lib}}`. To replace that driver, set `source: Container`. [Drivers](../guides/drivers.md) \
              lists the directories that are searched.",
};

pub const GPU_BOUND_TO_OTHER_DRIVER: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "GPUs of the node are bound to another kernel driver, such as the kernel's own `nouveau` or `NovaCore`, so \
               NVIDIA's driver cannot be loaded for them. The driver's pod unloads these two if nothing uses them, and \
               no others.",
    action: "The message names the driver. If nothing uses it, unload its module (`modprobe --remove nova_core`); \
              otherwise blacklist the module on the node (`/etc/modprobe.d/nova_core.conf`: `blacklist nova_core`; for \
              nouveau also `options nouveau modeset=0`), rebuild its initramfs (`update-initramfs -u` or `dracut \
              --force`) and reboot it. If nouveau is built into the kernel, add `nouveau.modeset=0` to the kernel \
              command line instead.",
};

pub const NVML_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver is loaded, but NVML returns an error, hangs or crashes.",
    action: "The message contains NVML's error. Search the kernel log for `NVRM` and `Xid` lines.",
};

pub const FABRIC_NOT_READY: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The GPUs have not joined their NVLink fabric for ten minutes, or the machine has NVSwitches and no process \
              `nv-fabricmanager` runs. CUDA programs fail with error 802 (system not yet initialized).",
    action: "On a host with its own driver, install the fabric manager of exactly the driver's version and start its \
             service. NVIDIA's driver container starts it itself: see the container's log. If it runs, see its own log.",
};

pub const DEVICE_NODES_MISSING: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "Device nodes that every CUDA program opens, such as `/dev/nvidia-uvm`, do not exist on the host, or did \
              not when the device plugin wrote its CDI specification. `nvidia-smi` works in such a container, CUDA \
              does not.",
    action: "Run the command in the message on the node, and have every boot run it; or delete the device plugin's pod \
             that the message names.",
};

pub const CUDA_INIT_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "NVML works, but CUDA's first call fails on the node: the probe has called `cuInit` twice, in a process of its own. \
              Every CUDA program fails with this error.",
    action: "The message has the error and what it means. The probe calls it again every half minute.",
};

pub const NO_DRIVER_IMAGE_FOR_OS: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "No driver image is known to be published for the node's operating system and this driver version.",
    action: "Set one of the versions in the message, set your own image (`driver.image` with `tag` or `digest`), use \
              source `RunFile`, or install the driver on the host.",
};

pub const DRIVER_IMAGE_NOT_FOUND: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver image does not exist: not for this version, operating system or kernel, or not in the \
               mirror. Other pull failures are `ImagePullFailed`.",
    action: "The message names the image. Check the version; with a mirror, copy the image; otherwise set your own \
              image in `driver.image`. If a precompiled image is missing, the modules are compiled instead.",
};

pub const KERNEL_HEADERS_UNAVAILABLE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver is compiled on the node, and the headers of the node's kernel are missing, usually because the \
               repositories lack them.",
    action: "Set repositories that contain them in `driver.container.configMaps.repositories`, set `driver.container.precompiled: true`, or boot \
              a kernel whose headers are available.",
};

pub const SECURE_BOOT_REJECTS_MODULE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "Secure Boot is enabled, and the kernel rejects the driver's modules: modules that are compiled on the \
               node are not signed with a key that the node trusts.",
    action: "Use precompiled modules that the distribution signs (source `Container` with `driver.container.precompiled: true`), enrol \
              the key that signs the modules (`mokutil --import`, then reboot), or switch Secure Boot off in the \
              node's firmware.",
};

pub const DOWNLOAD_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The installing container cannot download the driver or packages. The message begins with the cause: a \
               name that cannot be resolved, an untrusted certificate, a wrong clock, the proxy, or a server that is \
               unreachable, denies the request or lacks the file.",
    action: "Follow the message; the container retries by itself.",
};

pub const CHECKSUM_MISSING: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The policy has source `RunFile` and no `driver.runFile`, which has the checksum of the `.run` file.",
    action: "Add `driver.runFile.sha256` with the checksum that `sha256sum` prints for the file.",
};

pub const CHECKSUM_MISMATCH: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The `.run` file has another checksum than `driver.runFile.sha256`: it is the file of another version, \
               incomplete, or was changed. It was not executed.",
    action: "Compare the checksum with the one that the file's publisher states. If it is correct, replace the file \
              on the mirror or set another `url`; otherwise correct `sha256`.",
};

pub const DRIVER_UNSUPPORTED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver's version, or its flavour of kernel modules, does not support the node's model.",
    action: "Set the branch or flavour in the message, or remove `version` to get a supported one. Nodes with models that no \
              single driver supports need a driver that does.",
};

pub const UNKNOWN_GPU: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's GPU is not in the catalogue, so the operator cannot determine its driver and kernel modules. \
               The node is left unchanged.",
    action: "Add the PCI id to `spec.models` with the card's architecture, or set the fields in the message: \
              `driver.version` and `driver.container.kernelModule`, or for source `RunFile` `driver.runFile.url` and `driver.runFile.sha256`.",
};
