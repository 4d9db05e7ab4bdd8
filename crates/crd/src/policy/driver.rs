//! The driver: its source and its version.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::operand::Operand;
use crate::{
    open::is_default,
    schema::{FileName, HostFolder, ObjectName},
};

/// The installation of the NVIDIA driver on nodes: its source, what all sources have in common, and the settings of each source.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "(!has(self.container) || !has(self.source) || self.source in ['Auto', 'Container']) && (!has(self.cloudInstaller) || has(self.source) && self.source == 'CloudInstaller') && (!has(self.runFile) || has(self.source) && self.source == 'RunFile') && (!has(self.preinstalled) || has(self.source) && self.source == 'Preinstalled')",
        "container, cloudInstaller, runFile and preinstalled are the settings of the source of that name: add that source, or remove them. container is valid without source, too"
    ),
    validation = (
        "!has(self.source) || self.source != 'Preinstalled' || (!has(self.version) && !has(self.image))",
        "source Preinstalled uses the driver on the host: remove version and image, or write source: Container"
    ),
    validation = (
        "!has(self.source) || self.source != 'RunFile' || (has(self.runFile) && (has(self.version) || has(self.runFile.url)) && has(self.image) && has(self.image.repository))",
        "source RunFile installs one file, with an installer built for the nodes' operating system, such as this project's images/run-file: set runFile.sha256, as sha256sum prints it, version or runFile.url, and image.repository and image.tag"
    ),
    validation = (
        "!has(self.cloudInstaller) || !has(self.cloudInstaller.channel) || !has(self.version)",
        "channel chooses the version: remove channel or version"
    ),
    validation = (
        "!has(self.container) || !has(self.container.precompiled) || !self.container.precompiled || !has(self.image) || !(has(self.image.digest) || has(self.image.tag))",
        "precompiled needs a different image for each kernel, which a tag or digest prevents: write only image.repository, or remove precompiled"
    ),
    validation = (
        "!has(self.image) || !(has(self.image.digest) || has(self.image.tag)) || has(self.version) || has(self.source) && self.source in ['CloudInstaller', 'RunFile']",
        "the driver version cannot be derived from an image tag or digest: add version, such as version: \"580.173.02\", or source if the image is an installer"
    ),
    validation = (
        "!has(self.source) || !(self.source in ['CloudInstaller', 'RunFile']) || !has(self.image) || !has(self.image.repository) || has(self.image.tag) || has(self.image.digest)",
        "the tag of an installer's image cannot be derived from the driver version: add image.tag or image.digest to image.repository"
    )
)]
pub struct Driver {
    /// The source of the driver. Defaults to `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DriverSource>,
    /// The full version of the driver, such as `580.173.02`. Defaults to the newest recommended version that supports the
    /// node's models and has an image for its operating system. With `CloudInstaller` it defaults to the installer's choice,
    /// and with `RunFile` to the version in `runFile.url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self.matches('^[0-9]{3}[.][0-9]{1,3}([.][0-9]{1,3})?$')",
        "write the full driver version, such as \"580.173.02\""
    ))]
    pub version: Option<String>,
    /// Settings of source `Container`, and of `Auto` on nodes where it chooses that source.
    #[serde(default, skip_serializing_if = "is_default")]
    pub container: DriverContainer,
    /// Settings of source `CloudInstaller`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cloud_installer: CloudInstaller,
    /// Settings of source `RunFile`, which requires them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_file: Option<RunFile>,
    /// Settings of source `Preinstalled`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub preinstalled: Preinstalled,
    /// Image, environment, arguments and resources of the driver's container.
    #[serde(flatten)]
    pub operand: Operand,
}

/// Settings of NVIDIA's driver container, or of a compatible image.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DriverContainer {
    /// The type of kernel modules. Defaults to `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_module: Option<KernelModule>,
    /// Whether to use an image with kernel modules that are precompiled for the node's kernel. If there is no such
    /// image, the modules are compiled on the node. Only the branch of `version` is used for precompiled images.
    /// Defaults to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precompiled: Option<bool>,
    /// Additional files for the container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub config_maps: DriverConfigMaps,
}

/// Settings of the cloud's installer.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CloudInstaller {
    /// The version that is installed on Container-Optimized OS if `version` is not set. Defaults to `Default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<DriverChannel>,
}

/// The `.run` file that is installed.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunFile {
    /// The URL (HTTP or HTTPS) from which the file is downloaded: NVIDIA's driver, or a CUDA bundle if the installer's image
    /// supports it. Defaults to the file of `version` on NVIDIA's public download site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = (
        "self.matches('^https?://[^/ ]+/[^ ]+$')",
        "write the full URL of the file, such as https://mirror.example.com/NVIDIA-Linux-x86_64-580.173.02.run"
    ))]
    #[x_kube(validation = (
        "!self.matches('^https?://[^/?#]*@')",
        "remove user and password: everyone who may read policies or pods could read them. Write the URL of a mirror that needs none; sha256 ensures that it serves the right file"
    ))]
    pub url: Option<String>,
    /// The SHA-256 checksum of the file, as `sha256sum` prints it. The installer checks it before each execution of the file and
    /// executes no other file.
    #[schemars(length(max = 64))]
    #[x_kube(validation = (
        "self.matches('^[0-9a-f]{64}$')",
        "write the 64 hexadecimal digits, in lower case, that sha256sum prints for the .run file"
    ))]
    pub sha256: String,
    /// The directory on the host in which the driver is installed. Defaults to `/opt/nvidia`, and on GKE to
    /// `/home/kubernetes/bin/nvidia`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostFolder>")]
    pub install_dir: Option<String>,
}

/// Settings for the host's own driver.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Preinstalled {
    /// The directory of the driver's libraries, if they are not found otherwise: the libraries are in this directory or in
    /// its `lib`, `lib64`, `usr/lib64` and similar subdirectories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HostFolder>")]
    pub install_dir: Option<String>,
}

/// ConfigMaps in the operator's namespace with additional files for NVIDIA's driver container.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DriverConfigMaps {
    /// Parameters of the kernel modules, one per line, under the keys `nvidia.conf`, `nvidia-uvm.conf`,
    /// `nvidia-modeset.conf` and `nvidia-peermem.conf`. A change of the name or the keys starts a rollout; a change of the
    /// ConfigMap's content takes effect at the next start of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (
        "self.keys.all(key, key in ['nvidia.conf', 'nvidia-uvm.conf', 'nvidia-modeset.conf', 'nvidia-peermem.conf'])",
        "the driver's container reads only nvidia.conf, nvidia-uvm.conf, nvidia-modeset.conf and nvidia-peermem.conf: write these names as keys"
    ))]
    pub kernel_modules: Option<ConfigMapFiles>,
    /// Package repositories for kernel headers. The files are added to the container's directory of repositories:
    /// `/etc/apt/sources.list.d`, `/etc/yum.repos.d` or `/etc/zypp/repos.d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repositories: Option<ConfigMapFiles>,
    /// Certificate authorities that are trusted for package repositories. The files are added to the container's
    /// directory of certificates: `/usr/local/share/ca-certificates`, `/etc/pki/ca-trust/extracted/pem` or
    /// `/etc/pki/trust/anchors`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<ConfigMapFiles>,
}

/// Files from a ConfigMap in the operator's namespace. The keys must be listed because each is mounted individually and
/// the operator has no permission to read ConfigMaps.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapFiles {
    /// Name of the ConfigMap.
    #[schemars(with = "ObjectName")]
    pub name: String,
    /// The keys to mount, each as a file of that name. A file of the same name in the directory is replaced; all others
    /// remain. If the ConfigMap lacks a key, the pod does not start and an Event names the key.
    #[schemars(with = "Vec<FileName>", length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub keys: Vec<String>,
}

/// The source of a driver.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverSource {
    /// `Preinstalled` on nodes with a driver on the host, loaded or not, and on GKE nodes whose driver is installed by
    /// GKE; `CloudInstaller` on other GKE nodes; `Container` on all others.
    #[default]
    Auto,
    /// NVIDIA's driver container, or a compatible image.
    Container,
    /// The installer of the node's cloud: Google's for Container-Optimized OS and for Ubuntu on GKE.
    CloudInstaller,
    /// NVIDIA's `.run` file, downloaded and run by an installer with the same environment variables as Google's
    /// installer for Ubuntu, and `NVIDIA_DRIVER_SHA256`. There is no default image.
    RunFile,
    /// The host's own driver, which is never changed.
    Preinstalled,
}

/// Which driver Google's installer for Container-Optimized OS chooses for the node's release of that system.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChannel {
    /// The default driver of the release.
    #[default]
    Default,
    /// The latest driver of the release.
    Latest,
}

impl DriverChannel {
    /// Returns the channel's name in the arguments of Google's installer.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Latest => "latest",
        }
    }
}

/// The type of NVIDIA's kernel modules.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelModule {
    /// The type that the model and the driver version require.
    #[default]
    Auto,
    /// The open modules. They support Turing and later, and are the only type for Blackwell.
    Open,
    /// The proprietary modules. They are the only type for Volta and earlier.
    Proprietary,
}
