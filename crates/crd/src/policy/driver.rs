//! The driver: where it comes from, and which one.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Operand, is_default};
use crate::schema::{FileName, HostFolder, ObjectName};

/// How a driver gets onto a node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.source) || self.source != 'Preinstalled' || (!has(self.version) && !has(self.image) && !has(self.kernelModule))",
        "source Preinstalled takes the driver that is on the host: remove version, image and kernelModule, or write source: Container"
    ),
    validation = (
        "!has(self.version) || !(self.version in ['default', 'latest']) || (has(self.source) && self.source == 'GkeCos')",
        "default and latest are words of Google's installer for COS: write source: GkeCos beside them, or a full version such as \"580.173.02\""
    ),
    validation = (
        "!has(self.url) || (has(self.source) && self.source == 'RunFile')",
        "a url is that of a .run file: write source: RunFile beside it, or remove it"
    ),
    validation = (
        "!has(self.url) || !self.url.startsWith('http://') || (has(self.allowPlainHttp) && self.allowPlainHttp)",
        "plain http lets anybody on the way change the driver: write an https:// url, or allowPlainHttp: true beside it"
    ),
    validation = (
        "!has(self.installDir) || (has(self.source) && self.source in ['GkeCos', 'GkeUbuntu', 'RunFile', 'Preinstalled'])",
        "only a driver on the host has an installDir: write source: GkeCos, GkeUbuntu, RunFile or Preinstalled beside it, or remove it"
    ),
    validation = (
        "!has(self.precompiled) || !self.precompiled || !has(self.source) || self.source in ['Auto', 'Container']",
        "precompiled drivers come as images of NVIDIA's container: write source: Container, or remove precompiled"
    ),
    validation = (
        "!has(self.precompiled) || !self.precompiled || !has(self.image) || !(has(self.image.digest) || has(self.image.tag))",
        "a tag or digest is that of one kernel's image, and precompiled needs one for each: write image.repository alone, or remove precompiled"
    ),
    validation = (
        "!has(self.configMaps) || !has(self.source) || self.source in ['Auto', 'Container']",
        "this source's installer reads no such files: remove configMaps, or write source: Container"
    ),
    validation = (
        "!has(self.kernelModule) || !has(self.source) || !(self.source in ['GkeCos', 'GkeUbuntu', 'RunFile'])",
        "this source's installer chooses the kernel modules itself: remove kernelModule, or write source: Container"
    ),
    validation = (
        "!has(self.image) || !(has(self.image.digest) || has(self.image.tag)) || has(self.version) || has(self.source) && self.source in ['GkeCos', 'GkeUbuntu', 'RunFile']",
        "a tag or digest does not tell which driver the image holds: write its version as well, such as version: \"580.173.02\", or the source where the image is an installer"
    ),
    validation = (
        "!has(self.source) || !(self.source in ['GkeCos', 'GkeUbuntu', 'RunFile']) || !has(self.image) || !has(self.image.repository) || has(self.image.tag) || has(self.image.digest)",
        "an installer's image has no tag that follows from the driver's version: write image.tag or image.digest beside image.repository"
    )
)]
pub struct Driver {
    /// Where it comes from. Absent: `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DriverSource>,
    /// The driver's full version, such as `580.173.02`; with `GkeCos` also `default` or `latest`, by which Google's
    /// installer chooses one. Absent: the newest recommended one that the node's models support and that has an image for
    /// its operating system; with `GkeCos` `default`; with `GkeUbuntu` what Google's installer chooses; with `RunFile` that
    /// of the `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^(default|latest|[0-9]{3}[.][0-9]{1,3}([.][0-9]{1,3})?)$')",
        "write the driver's full version, such as \"580.173.02\""
    ))]
    pub version: Option<String>,
    /// Which kernel module. Absent: `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_module: Option<KernelModule>,
    /// Whether to take an image with kernel modules that are compiled already for the node's kernel; where there is none,
    /// they are compiled on the node. Of the version only the branch counts then. Absent: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precompiled: Option<bool>,
    /// Files for NVIDIA's driver container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub config_maps: DriverConfigMaps,
    /// Where to download the `.run` file of source `RunFile`: NVIDIA's driver, or a CUDA bundle where the installer's
    /// image takes one. Absent: NVIDIA's public download site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = (
        "self.matches('^https?://[^/ ]+/[^ ]+$')",
        "write the file's whole address, such as https://mirror.example.com/NVIDIA-Linux-x86_64-580.173.02.run"
    ))]
    pub url: Option<String>,
    /// Whether `url` may be one of plain http, which nothing protects on its way. Absent: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_plain_http: Option<bool>,
    /// The folder of the host into which the installers of `GkeCos`, `GkeUbuntu` and `RunFile` put the driver. Absent:
    /// `/home/kubernetes/bin/nvidia`. With `Preinstalled`, the folder below which the driver's libraries are, where they are
    /// not found without it: the libraries are in this folder itself or in its `lib`, `lib64`, `usr/lib64` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostFolder>")]
    pub install_dir: Option<String>,
    /// Image, environment, arguments and resources of the installing container.
    #[serde(flatten)]
    pub operand: Operand,
}

/// Files for NVIDIA's driver container, by the names of ConfigMaps in the operator's namespace.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DriverConfigMaps {
    /// Parameters of the kernel modules, a line each, under the keys `nvidia.conf`, `nvidia-uvm.conf`,
    /// `nvidia-modeset.conf` and `nvidia-peermem.conf`. Another name moves nodes; other contents count from the next
    /// start of the container on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ObjectName>")]
    pub kernel_modules: Option<String>,
    /// Package repositories from which kernel headers come: files that are added to the container's folder of
    /// repositories, `/etc/apt/sources.list.d`, `/etc/yum.repos.d` or `/etc/zypp/repos.d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repositories: Option<ConfigMapFiles>,
    /// Certificates by which package repositories are trusted: files that are added to the container's folder,
    /// `/usr/local/share/ca-certificates`, `/etc/pki/ca-trust/extracted/pem` or `/etc/pki/trust/anchors`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<ConfigMapFiles>,
}

/// Files from a ConfigMap in the operator's namespace. The keys are listed here, because each is mounted by itself and the
/// operator has no right to read ConfigMaps.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapFiles {
    /// The ConfigMap's name.
    #[schemars(with = "ObjectName")]
    pub name: String,
    /// The keys to mount, each as a file of that name. A file of the same name in the folder is replaced; all others stay. A
    /// key that the ConfigMap lacks keeps the pod from starting, with an Event that names it.
    #[schemars(with = "Vec<FileName>", length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub keys: Vec<String>,
}

/// Where a driver comes from.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverSource {
    /// `Preinstalled` on nodes with a driver on the host, loaded or not, and on GKE's that have one installed by GKE;
    /// `GkeCos` and `GkeUbuntu` on GKE's other nodes; `Container` on the rest.
    #[default]
    Auto,
    /// NVIDIA's driver container, or an image that behaves like it.
    Container,
    /// Google's installer for Container-Optimized OS.
    GkeCos,
    /// Google's installer for GKE's Ubuntu.
    GkeUbuntu,
    /// NVIDIA's `.run` file, downloaded and run by an installer that takes the environment of Google's for Ubuntu. It has no
    /// default image.
    RunFile,
    /// The host's own driver, which is left as it is.
    Preinstalled,
}

/// Which flavour of NVIDIA's kernel modules.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelModule {
    /// What the model and the driver version call for.
    #[default]
    Auto,
    /// The open modules (Turing and later; the only ones for Blackwell).
    Open,
    /// The proprietary modules (the only ones up to Volta).
    Proprietary,
}
