//! The cluster's programs. They are built from Go modules and kept until their sources change.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    files::{hash_tree, hex, tail},
    paths::Paths,
    process::{output, run_logged},
    progress::{Step, heading},
};

/// Programs that are built from one Go module in `e2e/tools`.
struct Tool {
    name: &'static str,
    module: &'static str,
    flags: &'static [&'static str],
    /// The packages to build; `tool` stands for all tools that the module lists.
    packages: &'static [&'static str],
    /// The folder of the programs.
    folder: fn(&Paths) -> PathBuf,
    programs: &'static [&'static str],
}

/// A release of Kubernetes that the cluster can run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kubernetes {
    /// The release of all tests.
    #[default]
    Newest,
    /// The oldest release that the chart supports, without kubelet: for clusters of simulated nodes.
    Oldest,
}

impl Kubernetes {
    /// Returns the folder of its programs.
    pub fn folder(self, paths: &Paths) -> PathBuf {
        (self.tool().folder)(paths)
    }

    fn tool(self) -> &'static Tool {
        match self {
            Self::Newest => &KUBERNETES,
            Self::Oldest => &KUBERNETES_OLDEST,
        }
    }
}

const STRIP: &[&str] = &["-ldflags", "-s -w"];

/// The module of all programs that share most of their dependencies: in one module these have one version, and are compiled once.
const CLUSTER: &str = "cluster";

const KUBERNETES: Tool = Tool {
    name: "kubernetes",
    module: CLUSTER,
    // Without these flags the server reports version v0.0.0, from which clients draw wrong conclusions.
    flags: &[
        "-ldflags",
        "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/client-go/pkg/version.gitVersion=v1.37.2",
    ],
    packages: &[
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "k8s.io/kubernetes/cmd/kubectl",
        "k8s.io/kubernetes/cmd/kubelet",
    ],
    folder: Paths::bin,
    programs: &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"],
};
const KUBERNETES_OLDEST: Tool = Tool {
    name: "kubernetes-oldest",
    module: "kubernetes-oldest",
    flags: &[
        "-ldflags",
        "-s -w -X k8s.io/component-base/version.gitVersion=v1.32.5 -X k8s.io/client-go/pkg/version.gitVersion=v1.32.5",
    ],
    packages: &["tool"],
    folder: Paths::kubernetes_oldest,
    programs: &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"],
};
const ETCD: Tool = Tool {
    name: "etcd",
    module: CLUSTER,
    flags: STRIP,
    packages: &["go.etcd.io/etcd/server/v3"],
    folder: Paths::bin,
    programs: &["etcd"],
};
const HELM: Tool = Tool {
    name: "helm",
    module: CLUSTER,
    flags: STRIP,
    packages: &["helm.sh/helm/v4/cmd/helm"],
    folder: Paths::bin,
    programs: &["helm"],
};
const CONTAINERD: Tool = Tool {
    name: "containerd",
    // It does not compile with the API of the container runtime that Kubernetes requires.
    module: "containerd",
    flags: STRIP,
    packages: &["tool"],
    folder: Paths::bin,
    programs: &["containerd", "containerd-shim-runc-v2", "ctr"],
};
const KWOK: Tool = Tool {
    name: "kwok",
    module: CLUSTER,
    flags: STRIP,
    packages: &["sigs.k8s.io/kwok/cmd/kwok"],
    folder: Paths::bin,
    programs: &["kwok"],
};
const CONTAINERD_1: Tool = Tool {
    name: "containerd-1",
    module: "containerd-1",
    flags: STRIP,
    packages: &["tool"],
    folder: Paths::containerd_1,
    programs: &["containerd", "containerd-shim-runc-v2"],
};
const RUNC: Tool = Tool {
    name: "runc",
    module: "runc",
    // Without seccomp every unprivileged pod is rejected.
    flags: &["-tags", "seccomp", "-ldflags", "-s -w"],
    packages: &["tool"],
    folder: Paths::bin,
    programs: &["runc"],
};
/// Flags for programs that call functions of NVML, which are resolved at run time only.
const NVML_FLAGS: &[&str] = &[
    "-ldflags",
    "-s -w -extldflags=-Wl,--export-dynamic -extldflags=-Wl,--unresolved-symbols=ignore-in-object-files \
     -extldflags=-Wl,-z,lazy",
];
const NVIDIA: Tool = Tool {
    name: "nvidia-toolkit",
    module: "nvidia-toolkit",
    flags: NVML_FLAGS,
    packages: &["tool"],
    folder: Paths::nvidia,
    programs: &[
        "nvidia-cdi-hook",
        "nvidia-container-runtime",
        "nvidia-container-runtime-hook",
        "nvidia-container-runtime.cdi",
        "nvidia-container-runtime.legacy",
        "nvidia-ctk",
        "nvidia-ctk-installer",
    ],
};
const NVIDIA_PLUGIN: Tool = Tool {
    name: "nvidia-device-plugin",
    module: "nvidia-device-plugin",
    flags: NVML_FLAGS,
    packages: &[
        "github.com/NVIDIA/k8s-device-plugin/cmd/mps-control-daemon",
        "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin",
    ],
    folder: Paths::nvidia_plugin,
    programs: &["mps-control-daemon", "nvidia-device-plugin"],
};
/// The stand-in for NVIDIA's, whose module cannot be had.
const DRA_DRIVER: Tool = Tool {
    name: "gpu-kubelet-plugin",
    module: CLUSTER,
    flags: NVML_FLAGS,
    packages: &["./gpu-kubelet-plugin"],
    folder: Paths::bin,
    programs: &["gpu-kubelet-plugin"],
};
/// Apart from the plugin, because it needs three times as many dependencies, and runs in no cluster.
const FEATURE_DISCOVERY: Tool = Tool {
    name: "gpu-feature-discovery",
    module: "nvidia-device-plugin",
    flags: NVML_FLAGS,
    packages: &["github.com/NVIDIA/k8s-device-plugin/cmd/gpu-feature-discovery"],
    folder: Paths::nvidia_plugin,
    programs: &["gpu-feature-discovery"],
};
const ACTIONLINT: Tool = Tool {
    name: "actionlint",
    module: "actionlint",
    flags: STRIP,
    packages: &["tool"],
    folder: Paths::bin,
    programs: &["actionlint"],
};

/// Builds the programs of NVIDIA's container toolkit, for tests that need no cluster, and returns their folder.
pub fn nvidia_programs() -> Result<PathBuf> {
    let paths = Paths::new();
    build_all(&paths, &[&NVIDIA])?;
    Ok(paths.nvidia())
}

/// Builds NVIDIA's GPU feature discovery, and returns its path.
pub fn feature_discovery() -> Result<PathBuf> {
    let paths = Paths::new();
    build_all(&paths, &[&FEATURE_DISCOVERY])?;
    Ok(paths.nvidia_plugin().join("gpu-feature-discovery"))
}

/// Builds helm if it is missing or outdated.
pub fn build_helm(paths: &Paths) -> Result<()> {
    build_all(paths, &[&HELM])
}

/// Builds actionlint, which checks workflows, and returns its path.
pub fn actionlint() -> Result<PathBuf> {
    let paths = Paths::new();
    build_all(&paths, &[&ACTIONLINT])?;
    Ok(paths.tool("actionlint"))
}

/// A part of a cluster that not every cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    RealNodes,
    /// A real node with an older container runtime.
    OlderRuntime,
    SimulatedNodes,
    /// Tests that run NVIDIA's programs without a cluster.
    Tests,
}

impl Part {
    fn tools(self) -> &'static [&'static Tool] {
        match self {
            Self::RealNodes => &[&CONTAINERD, &RUNC, &NVIDIA, &NVIDIA_PLUGIN, &DRA_DRIVER],
            Self::OlderRuntime => &[&CONTAINERD_1],
            Self::SimulatedNodes => &[&KWOK],
            Self::Tests => &[&FEATURE_DISCOVERY],
        }
    }
}

/// Builds missing and outdated programs for a cluster with these parts.
pub fn build(paths: &Paths, kubernetes: Kubernetes, parts: &[Part]) -> Result<()> {
    let mut tools = vec![kubernetes.tool(), &ETCD, &HELM];
    tools.extend(parts.iter().flat_map(|part| part.tools()));
    build_all(paths, &tools)
}

fn build_all(paths: &Paths, tools: &[&Tool]) -> Result<()> {
    let version = output(Command::new("go").arg("version"))?;
    let mut outdated = Vec::new();
    for tool in tools {
        let stamp = tool.stamp(paths, &version)?;
        if !tool.is_current(paths, &stamp) {
            outdated.push((tool, stamp));
        }
    }
    if outdated.is_empty() {
        return Ok(());
    }
    heading("building the cluster's tools (kept for later runs)");
    for (n, (tool, stamp)) in outdated.iter().enumerate() {
        let step = Step::start(format!("building {} ({} of {})", tool.name, n + 1, outdated.len()));
        tool.build(paths, &step).with_context(|| format!("building {} in e2e/tools/{}", tool.name, tool.module))?;
        fs::create_dir_all(paths.stamps())?;
        fs::write(paths.stamps().join(tool.name), stamp)?;
        step.done();
    }
    Ok(())
}

impl Tool {
    fn stamp(&self, paths: &Paths, version: &str) -> Result<String> {
        let dir = paths.root.join("e2e/tools").join(self.module);
        let mut hash = Sha256::new();
        for package in self.packages.iter().filter_map(|package| package.strip_prefix("./")) {
            hash_tree(&dir, &dir.join(package), &mut hash)?;
        }
        for file in ["go.mod", "go.sum"] {
            let path = dir.join(file);
            hash.update(fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
        }
        hash.update(format!("{:?} {:?} {version}", self.flags, self.packages));
        Ok(hex(&hash.finalize()))
    }

    fn is_current(&self, paths: &Paths, stamp: &str) -> bool {
        let folder = (self.folder)(paths);
        fs::read_to_string(paths.stamps().join(self.name)).is_ok_and(|old| old == stamp)
            && self.programs.iter().all(|program| folder.join(program).is_file())
    }

    fn build(&self, paths: &Paths, step: &Step) -> Result<()> {
        let folder = (self.folder)(paths);
        fs::create_dir_all(&folder)?;
        let target = match self.programs {
            [one] => folder.join(one),
            _ => folder.join(""),
        };
        let log = paths.log(&format!("build-{}", self.name));
        let mut command = Command::new("go");
        command
            .current_dir(paths.root.join("e2e/tools").join(self.module))
            .args(["build", "-v"])
            .args(self.flags)
            .arg("-o")
            .arg(target)
            .args(self.packages);
        run_logged(&mut command, &log, || {
            let text = tail(&log, 400);
            step.tick(text.lines().last().unwrap_or_default());
        })?;
        if let Some(missing) = self.programs.iter().find(|program| !folder.join(program).is_file()) {
            bail!("the build did not produce {missing}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the version of a Go module that a tool's module requires.
    fn version(tool: &Tool, module: &str) -> String {
        let file = Paths::new().root.join("e2e/tools").join(tool.module).join("go.mod");
        let text = fs::read_to_string(file).unwrap();
        let rest = text.lines().find_map(|line| line.trim().strip_prefix(module)?.strip_prefix(" v")).unwrap();
        rest.split(' ').next().unwrap().to_owned()
    }

    /// Returns the major and minor part of a version.
    fn minor(version: &str) -> String {
        version.split('.').take(2).collect::<Vec<_>>().join(".")
    }

    #[test]
    fn kubernetes_reports_the_version_of_its_module() {
        for tool in [&KUBERNETES, &KUBERNETES_OLDEST] {
            let flag = format!("version.gitVersion=v{}", version(tool, "k8s.io/kubernetes"));
            let words: Vec<_> = tool.flags[1].split(' ').filter(|word| word.ends_with(&flag)).collect();
            assert_eq!(words.len(), 2, "{}: {:?} lacks {flag}", tool.module, tool.flags);
        }
    }

    #[test]
    fn the_oldest_kubernetes_is_that_of_the_chart() {
        let chart = fs::read_to_string(Paths::new().root.join("charts/gpu-operator/Chart.yaml")).unwrap();
        let oldest = minor(&version(&KUBERNETES_OLDEST, "k8s.io/kubernetes"));
        assert!(chart.contains(&format!("kubeVersion: \">={oldest}.0-0\"")), "Chart.yaml does not require {oldest}");
    }

    #[test]
    fn the_documentation_names_the_versions_that_the_tests_use() {
        let read = |path: &str| fs::read_to_string(Paths::new().root.join("docs/operate").join(path)).unwrap();
        let (versions, matrix) = (read("versions.md"), read("support-matrix.md"));
        let [kubernetes, oldest] =
            [&KUBERNETES, &KUBERNETES_OLDEST].map(|tool| minor(&version(tool, "k8s.io/kubernetes")));
        let [helm, containerd, older] = [
            minor(&version(&HELM, "helm.sh/helm/v4")),
            minor(&version(&CONTAINERD, "github.com/containerd/containerd/v2")),
            minor(&version(&CONTAINERD_1, "github.com/containerd/containerd")),
        ];
        let docker = minor(crate::debian::docker_version().unwrap());
        for (row, part) in [
            ("| Kubernetes |", format!("Tested with {kubernetes}, and with {oldest} on simulated nodes |")),
            ("| Helm |", format!("tested with {helm};")),
            (
                "| Container runtimes |",
                format!("Tested with containerd {containerd} and {older}, and with Docker {docker} |"),
            ),
        ] {
            let line = versions.lines().find(|line| line.starts_with(row)).unwrap();
            assert!(line.contains(&part), "docs/operate/versions.md: {line} lacks {part}");
        }
        let row = matrix.lines().find(|line| line.starts_with(&format!("| Kubernetes | {kubernetes}; "))).unwrap();
        assert!(row.contains(&format!(" | {oldest} | ")), "docs/operate/support-matrix.md: {row} lacks {oldest}");
    }

    #[test]
    fn nvidias_default_versions_are_those_of_the_tests() {
        let toolkit = version(&NVIDIA, "github.com/NVIDIA/nvidia-container-toolkit");
        let plugin = version(&NVIDIA_PLUGIN, "github.com/NVIDIA/k8s-device-plugin");
        for (page, part) in [
            // This page is generated from the operator's defaults.
            ("reference/images.md", format!("\nnvcr.io/nvidia/k8s/container-toolkit:v{toolkit}\n")),
            ("reference/images.md", format!("\nnvcr.io/nvidia/k8s-device-plugin:v{plugin}\n")),
            ("operate/versions.md", format!("container toolkit v{toolkit} and device plugin v{plugin}")),
            ("operate/support-matrix.md", format!("NVIDIA's installer v{toolkit} with")),
            ("operate/support-matrix.md", format!("| Device plugin | NVIDIA's v{plugin} |")),
            ("start/demo.md", format!("container toolkit (v{toolkit}) and the device plugin (v{plugin})")),
        ] {
            let text = fs::read_to_string(Paths::new().root.join("docs").join(page)).unwrap();
            assert!(text.contains(&part), "docs/{page} lacks {part}");
        }
    }
}
