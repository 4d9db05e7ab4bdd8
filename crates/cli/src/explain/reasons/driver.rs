//! The failures of drivers.

use super::entry::{Entry, List};

/// The text of `DriverInUse`.
pub const DRIVER_IN_USE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The loaded driver is in use, so it cannot be replaced by the wanted driver, or an older driver image \
               cannot reload it.",
    action: "End the programs that use the GPUs on the host (`nvidia-smi`, `fuser -v /dev/nvidia*`), or reboot the \
              node.",
};

/// The text of `DriverDown`.
pub const DRIVER_DOWN: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "A driver is loaded, but its container is not running, so its libraries are missing. Running GPU pods \
               keep their GPUs; the device plugin's pod is recreated and waits, so that no other GPU pod starts on the \
               node.",
    action: "Check the container in the message (`kubectl describe pod`, `kubectl logs --previous`). Kubelet restarts \
              it; a current image takes the driver over without a reload.",
};

/// The text of `DriverRootIncomplete`.
pub const DRIVER_ROOT_INCOMPLETE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver's container is running, but the root that it shares with the node lacks the library of the \
               loaded driver or required device nodes, so no GPU pod can start.",
    action: "Delete the driver's pod in the message: the new pod shares its root again. If device nodes are missing, \
              first read the log of its container `device-nodes`.",
};

/// The text of `DriverVersionMismatch`.
pub const DRIVER_VERSION_MISMATCH: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The loaded kernel module does not have the wanted version.",
    action: "Read the log of the pod in the message.",
};

/// The text of `RebootNeeded`.
pub const REBOOT_NEEDED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver installed on the host differs from the loaded one: after a package upgrade, or because an \
               installer could not replace a driver that was in use.",
    action: "Reboot the node.",
};

/// The text of `DriverNotLoaded`.
pub const DRIVER_NOT_LOADED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "A driver is installed on the host, but its kernel module is not loaded. It is not overwritten.",
    action: "Load it (`modprobe nvidia`) or reboot the node; to replace it, uninstall it, or set `source: Container`.",
};

/// The text of `DriverNotInstalled`.
pub const DRIVER_NOT_INSTALLED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The pool's source is `Preinstalled`, and the host has no driver.",
    action: "Install one on the host, or set `source: Auto` or `Container`.",
};

/// The text of `DriverLibraryNotFound`.
pub const DRIVER_LIBRARY_NOT_FOUND: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "An NVIDIA kernel module is loaded that this operator did not install, and no `libnvidia-ml.so` of its \
               version was found. `Auto` never installs a driver over it.",
    action: "Set the host directory that contains the libraries: `driver: {source: Preinstalled, installDir: \
              /opt/vendor/lib}`. To replace that driver, set `source: Container`. [Drivers](../guides/drivers.md) \
              lists the directories that are searched.",
};

/// The text of `NouveauLoaded`.
pub const NOUVEAU_LOADED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The kernel's own driver for NVIDIA GPUs, nouveau, is bound to GPUs of the node, so NVIDIA's driver \
               cannot use them. The driver's pod unloads a nouveau that is not in use; this one is in use, for example \
               by a console, or could not be unloaded.",
    action: "Blacklist nouveau on the node (`/etc/modprobe.d/nouveau.conf`: `blacklist nouveau`, `options nouveau \
              modeset=0`), rebuild its initramfs (`update-initramfs -u` or `dracut --force`) and reboot it. If nouveau \
              is built into the kernel, add `nouveau.modeset=0` to the kernel command line instead.",
};

/// The text of `NvmlFailed`.
pub const NVML_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver is loaded, but NVML returns an error, hangs or crashes.",
    action: "The message contains NVML's error. Search the kernel log for `NVRM` and `Xid` lines.",
};

/// The text of `NoDriverImageForOS`.
pub const NO_DRIVER_IMAGE_FOR_OS: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "No driver image is known to be published for the node's operating system and this driver version.",
    action: "Set one of the versions in the message, set your own image (`driver.image` with `tag` or `digest`), use \
              source `RunFile`, or install the driver on the host.",
};

/// The text of `DriverImageNotFound`.
pub const DRIVER_IMAGE_NOT_FOUND: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver image does not exist: not for this version, operating system or kernel, or not in the \
               mirror. Other pull failures are `ImagePullFailed`.",
    action: "The message names the image. Check the version; with a mirror, copy the image; otherwise set your own \
              image in `driver.image`. If a precompiled image is missing, the modules are compiled instead.",
};

/// The text of `KernelHeadersUnavailable`.
pub const KERNEL_HEADERS_UNAVAILABLE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver is compiled on the node, and the repositories lack the headers of the node's kernel.",
    action: "Set repositories that contain them in `driver.configMaps.repositories`, set `precompiled: true`, or boot \
              a kernel whose headers are available.",
};

/// The text of `DownloadFailed`.
pub const DOWNLOAD_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The installing container cannot download the driver or packages. The message begins with the cause: a \
               name that cannot be resolved, an untrusted certificate, a wrong clock, the proxy, or a server that is \
               unreachable, denies the request or lacks the file.",
    action: "Follow the message; the container retries by itself.",
};

/// The text of `ChecksumMissing`.
pub const CHECKSUM_MISSING: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The policy has no checksum for the `.run` file of source `RunFile`, or neither `version` nor `url`. A \
               pool that sets one of the three sets all that it needs: it inherits none of them.",
    action: "Add `driver.sha256` with the checksum that `sha256sum` prints for the file.",
};

/// The text of `ChecksumMismatch`.
pub const CHECKSUM_MISMATCH: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The `.run` file has another checksum than `driver.sha256`: it is the file of another version, \
               incomplete, or was changed. It was not executed.",
    action: "Compare the checksum with the one that the file's publisher states. If it is correct, replace the file \
              on the mirror or set another `url`; otherwise correct `sha256`.",
};

/// The text of `DriverUnsupported`.
pub const DRIVER_UNSUPPORTED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The driver version in the policy does not support the node's model. The node is left unchanged.",
    action: "Set the branch in the message, or remove `version` to get a supported one. Nodes with models that no \
              single driver supports need a driver that does.",
};

/// The text of `UnknownGpu`.
pub const UNKNOWN_GPU: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's GPU is not in the catalogue, so the operator cannot determine its driver and kernel modules. \
               The node is left unchanged.",
    action: "Add the PCI id to `spec.models` with the card's architecture, or set the fields in the message: \
              `driver.version` and `driver.kernelModule`, or for source `RunFile` `driver.url` and `driver.sha256`.",
};
