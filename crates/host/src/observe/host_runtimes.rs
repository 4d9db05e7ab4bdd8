//! NVIDIA runtimes that belong to the host: configured in a container runtime by the host's image, with a program
//! installed on the host. A runtime that a container has installed, by this or another operator, does not belong to the
//! host.

use std::path::Path;

use gpu_operator_crd::report::HostRuntime;
use serde_json::Value as Json;
use toml_edit::{Document, Item, Table};

use super::{
    containerd::{self, SOCKETS},
    dockerd::Flags,
    processes,
};
use crate::root::HostRoot;

const DOCKER: &str = "/etc/docker/daemon.json";
/// The main configuration files of containerd as installed by packages, k3s and RKE2. `MicroK8s` configures a runtime
/// of that name whether or not it exists, and k0s manages its main file itself.
const CONTAINERD: [&str; 3] = [
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
];
/// CRI-O's main configuration file, and the drop-in folder that it reads on its own.
const CRIO: (&str, &str) = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d");
pub(super) const CRIO_SOCKET: &str = "/var/run/crio/crio.sock";
/// The prefix of the names of NVIDIA's runtimes.
const PROGRAM: &str = "nvidia-container-runtime";
/// The folder into which containers install the toolkit, at any location.
const OF_A_CONTAINER: &str = "toolkit";
/// The folders that are searched for a program without a path.
const SEARCHED: [&str; 4] = ["/usr/bin", "/usr/local/bin", "/usr/sbin", "/bin"];
const MAX_FILES: usize = 64;
/// The bounds of the API type.
const MAX_RUNTIMES: usize = 8;
const MAX_HANDLER: usize = 63;
const MAX_FILE: usize = 256;

#[derive(Debug, PartialEq, Eq)]
struct ConfiguredRuntime {
    name: String,
    program: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RuntimeConfig {
    runtimes: Vec<ConfiguredRuntime>,
    pub default: Option<String>,
    pub cdi_spec_dirs: Option<Vec<String>>,
}

/// Returns the host's NVIDIA runtimes, each with the main file of the container runtime that configures it. Files that
/// cannot be read are skipped.
pub fn runtimes(host: &HostRoot) -> Vec<HostRuntime> {
    let flags = Flags::of_host(host).unwrap_or_default();
    let file = flags.config_file.as_deref().unwrap_or(DOCKER);
    let docker = [(file, docker(&host.read(file).unwrap_or_default(), &flags))];
    let files = containerd_files(host);
    let containerd = files.iter().map(|file| (file.as_str(), containerd(host, file)));
    let crio = [(CRIO.0, crio(host))];
    let all = docker.into_iter().chain(containerd).chain(crio);
    all.flat_map(|(file, configured)| host_runtimes(host, file, &configured)).take(MAX_RUNTIMES).collect()
}

fn host_runtimes(host: &HostRoot, file: &str, configured: &RuntimeConfig) -> Vec<HostRuntime> {
    let is_on_host =
        |runtime: &&ConfiguredRuntime| runtime.name.len() <= MAX_HANDLER && is_on_host(host, &runtime.program);
    if file.len() > MAX_FILE {
        return Vec::new();
    }
    let runtimes = configured.runtimes.iter().filter(is_on_host).map(|runtime| HostRuntime {
        file: file.to_owned(),
        handler: runtime.name.clone(),
        default: configured.default.as_ref() == Some(&runtime.name),
    });
    runtimes.collect()
}

/// Returns whether a program exists and was installed on the host itself.
fn is_on_host(host: &HostRoot, program: &str) -> bool {
    let path = Path::new(program);
    if path.is_absolute() {
        let of_a_container = path.parent().and_then(Path::file_name).is_some_and(|folder| folder == OF_A_CONTAINER);
        return !of_a_container && host.metadata(path).is_ok();
    }
    SEARCHED.into_iter().any(|folder| host.metadata(Path::new(folder).join(path)).is_ok())
}

fn is_nvidias(program: &str) -> bool {
    Path::new(program).file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PROGRAM))
}

/// Docker runs the runtimes of its file and of its command line. If both name one, it is the file's.
fn docker(text: &str, flags: &Flags) -> RuntimeConfig {
    let whole: Json = serde_json::from_str(text).unwrap_or_default();
    let in_file = whole["runtimes"].as_object();
    let of_file = in_file.into_iter().flatten().filter_map(|(name, runtime)| Some((name, runtime["path"].as_str()?)));
    let is_in_file = |name: &str| in_file.is_some_and(|runtimes| runtimes.contains_key(name));
    let of_flags = flags.runtimes.iter().filter(|(name, _)| !is_in_file(name));
    let runtimes = of_file.chain(of_flags.map(|(name, program)| (name, program.as_str())));
    let nvidias = runtimes.filter(|(_, program)| is_nvidias(program));
    RuntimeConfig {
        runtimes: nvidias
            .map(|(name, program)| ConfiguredRuntime { name: name.clone(), program: program.to_owned() })
            .collect(),
        default: whole["default-runtime"].as_str().map(str::to_owned).or_else(|| flags.default.clone()),
        cdi_spec_dirs: None,
    }
}

/// Returns containerd's main files: for each socket the one with which the daemon was started, and otherwise the usual ones.
fn containerd_files(host: &HostRoot) -> Vec<String> {
    let started = containerd::started(host);
    let files = |socket: &str, usual: &[&str]| match started.iter().find(|started| started.socket == socket) {
        Some(started) => vec![started.config.clone()],
        None => usual.iter().map(|file| (*file).to_owned()).collect(),
    };
    let (of_packages, of_distributions) = CONTAINERD.split_at(1);
    [files(SOCKETS[0], of_packages), files(SOCKETS[1], of_distributions)].concat()
}

fn containerd(host: &HostRoot, file: &str) -> RuntimeConfig {
    let mut configured = RuntimeConfig::default();
    let Ok(text) = host.read(file) else { return configured };
    let mut read = vec![file.to_owned()];
    let mut left = importing(host, file, &configured.read(&text));
    // An imported file may import others.
    while let Some(path) = left.pop().filter(|_| read.len() < MAX_FILES) {
        if !read.contains(&path)
            && let Ok(text) = host.read(&path)
        {
            let imports = configured.read(&text);
            left.extend(importing(host, &path, &imports));
            read.push(path);
        }
    }
    configured
}

/// Returns the files that a file imports, the last one first.
fn importing(host: &HostRoot, file: &str, imports: &[String]) -> Vec<String> {
    let imported = imports.iter().take(MAX_FILES).flat_map(|import| imported(host, file, import));
    let mut files: Vec<String> = imported.take(MAX_FILES).collect();
    files.reverse();
    files
}

/// Returns the files that an import matches: one, or all files of a folder with a given suffix.
fn imported(host: &HostRoot, file: &str, import: &str) -> Vec<String> {
    let folder = Path::new(file).parent().unwrap_or(Path::new("/"));
    let import = folder.join(import).display().to_string();
    match import.rsplit_once("/*") {
        Some((folder, ending)) => {
            let names = host.names(folder).unwrap_or_default().into_iter().filter(|name| name.ends_with(ending));
            names.map(|name| format!("{folder}/{name}")).collect()
        }
        None => vec![import],
    }
}

/// Returns the configuration in CRI-O's files.
pub(super) fn crio(host: &HostRoot) -> RuntimeConfig {
    let runs = host.metadata(CRIO_SOCKET).is_ok();
    let line = runs.then(|| processes::daemons(host, "crio", |_| false).next()).flatten().unwrap_or_default();
    let flags = processes::flags(&line, &["config", "c", "config-dir", "d"]);
    let main = processes::last(&flags, &["config", "c"]).unwrap_or(CRIO.0);
    let folder = processes::last(&flags, &["config-dir", "d"]).unwrap_or(CRIO.1);
    let mut configured = RuntimeConfig::default();
    let dropped_in = host.names(folder).unwrap_or_default().into_iter().map(|name| format!("{folder}/{name}"));
    for path in [main.to_owned()].into_iter().chain(dropped_in) {
        if let Ok(text) = host.read(path) {
            configured.read(&text);
        }
    }
    configured
}

impl RuntimeConfig {
    /// Merges a TOML file, whose values override those of earlier files, and returns the files that it imports.
    fn read(&mut self, text: &str) -> Vec<String> {
        let Ok(document) = Document::parse(text) else { return Vec::new() };
        let root = document.as_table();
        self.take(root);
        let imports = root.get("imports").and_then(Item::as_array);
        imports.into_iter().flatten().filter_map(|import| import.as_str().map(str::to_owned)).collect()
    }

    /// Runtimes and default are in one table in every schema, whatever its name.
    fn take(&mut self, table: &Table) {
        for (key, item) in table {
            match item {
                Item::Value(value) if ["default_runtime_name", "default_runtime"].contains(&key) => {
                    self.default = value.as_str().map(str::to_owned).or(self.default.take());
                }
                Item::Value(value) if key == "cdi_spec_dirs" => {
                    let dirs =
                        value.as_array().map(|dirs| dirs.iter().filter_map(|dir| dir.as_str().map(str::to_owned)));
                    self.cdi_spec_dirs = dirs.map(Iterator::collect).or(self.cdi_spec_dirs.take());
                }
                Item::Table(runtimes) if key == "runtimes" => {
                    for (name, runtime) in runtimes {
                        if let Some(program) = runtime.as_table().and_then(program) {
                            self.runtimes.retain(|known| known.name != name);
                            self.runtimes.push(ConfiguredRuntime { name: name.to_owned(), program });
                        }
                    }
                }
                Item::Table(below) => self.take(below),
                _ => {}
            }
        }
    }
}

/// Returns the NVIDIA program that a runtime's table names, in itself or among its options.
fn program(runtime: &Table) -> Option<String> {
    runtime.iter().find_map(|(_, item)| match item {
        Item::Value(value) => value.as_str().filter(|program| is_nvidias(program)).map(str::to_owned),
        Item::Table(options) => program(options),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What the probe finds on a host with these files and with programs at these paths.
    fn found(files: &[(&str, &str)], programs: &[&str]) -> Vec<(String, String, bool)> {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files.iter().copied().chain(programs.iter().map(|path| (*path, ""))) {
            let path = directory.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let runtimes = runtimes(&HostRoot::new(directory.path()));
        runtimes.into_iter().map(|runtime| (runtime.file, runtime.handler, runtime.default)).collect()
    }

    const OF_PACKAGE: &str = "/usr/bin/nvidia-container-runtime";

    fn one(file: &str, handler: &str, default: bool) -> Vec<(String, String, bool)> {
        vec![(file.to_owned(), handler.to_owned(), default)]
    }

    #[test]
    fn dockers_runtime_is_found_by_path_and_by_name() {
        for (path, default) in [(OF_PACKAGE, true), ("nvidia-container-runtime", false)] {
            let default_runtime = if default { r#""default-runtime": "nvidia","# } else { "" };
            let text = format!(
                r#"{{{default_runtime} "runtimes": {{"nvidia": {{"path": "{path}", "runtimeArgs": []}}, "gvisor": {{"path": "/usr/bin/runsc"}}}}}}"#
            );
            assert_eq!(found(&[(DOCKER, &text)], &[OF_PACKAGE]), one(DOCKER, "nvidia", default));
        }
    }

    #[test]
    fn dockers_runtime_is_found_on_its_command_line() {
        const STATUS: (&str, &str) = ("/proc/7/status", "PPid:\t1\nUid:\t0\t0\t0\t0\n");
        let on = |line: &str, file: &str, text: &str| {
            let line = format!("dockerd\0{}\0", line.replace(' ', "\0"));
            let process = [("/proc/7/comm", "dockerd\n"), STATUS, ("/proc/7/cmdline", line.as_str())];
            let files = [&process[..], &[(file, text), ("/run/docker.sock", "")]].concat();
            found(&files, &[OF_PACKAGE, "/usr/local/nvidia/toolkit/nvidia-container-runtime"])
        };
        let flag = format!("--add-runtime=nvidia={OF_PACKAGE}");
        assert_eq!(on(&flag, DOCKER, "{}"), one(DOCKER, "nvidia", false));
        assert_eq!(on(&format!("{flag} --default-runtime nvidia"), DOCKER, ""), one(DOCKER, "nvidia", true));
        let default = r#"{"default-runtime": "nvidia"}"#;
        assert_eq!(on(&flag, DOCKER, default), one(DOCKER, "nvidia", true));
        let in_file = format!(r#"{{"runtimes": {{"gpu": {{"path": "{OF_PACKAGE}"}}}}}}"#);
        assert_eq!(on("--default-runtime=gpu", DOCKER, &in_file), one(DOCKER, "gpu", true));
        assert_eq!(on("--config-file /srv/d.json", "/srv/d.json", &in_file), one("/srv/d.json", "gpu", false));
        // Another runtime, one of a container, and one that a container's replaces.
        assert!(on("--add-runtime=runsc=/usr/bin/nvidia-container", DOCKER, "{}").is_empty());
        let of_a_container = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
        assert!(on(&format!("--add-runtime nvidia={of_a_container}"), DOCKER, "{}").is_empty());
        let replaced = format!(r#"{{"runtimes": {{"nvidia": {{"path": "{of_a_container}"}}}}}}"#);
        assert!(on(&flag, DOCKER, &replaced).is_empty());
    }

    #[test]
    fn containerds_runtime_is_found_in_every_schema_and_import() {
        let of = |plugin: &str| {
            format!(
                "[plugins.'{plugin}'.containerd]\ndefault_runtime_name = 'nvidia'\n\
                 [plugins.'{plugin}'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n\
                 [plugins.'{plugin}'.containerd.runtimes.nvidia]\nruntime_path = ''\nruntime_type = 'io.containerd.runc.v2'\n\
                 [plugins.'{plugin}'.containerd.runtimes.nvidia.options]\nBinaryName = '{OF_PACKAGE}'\nRoot = ''\n"
            )
        };
        for text in [
            format!("version = 2\n{}", of("io.containerd.grpc.v1.cri")),
            format!("version = 3\n{}", of("io.containerd.cri.v1.runtime")),
            of("cri"),
        ] {
            for main in CONTAINERD {
                assert_eq!(found(&[(main, &text)], &[OF_PACKAGE]), one(main, "nvidia", true), "{text}");
            }
        }
        let dropped_in = ("/etc/containerd/conf.d/nvidia.toml", &*of("io.containerd.cri.v1.runtime"));
        for (main, there) in [
            ("imports = ['/etc/containerd/conf.d/*.toml']\nversion = 3\n", true),
            ("imports = ['conf.d/nvidia.toml']\n", true),
            ("imports = ['/etc/containerd/conf.d/more.toml']\n", true),
            ("imports = ['/etc/containerd/conf.d/*.conf']\n", false),
            ("version = 3\n", false),
        ] {
            let more = ("/etc/containerd/conf.d/more.toml", "imports = ['nvidia.toml', 'more.toml']\n");
            let all = found(&[(CONTAINERD[0], main), more, dropped_in], &[OF_PACKAGE]);
            assert_eq!(all, if there { one(CONTAINERD[0], "nvidia", true) } else { vec![] }, "{main}");
        }
    }

    #[test]
    fn the_file_that_containerd_was_started_with_counts() {
        let text = format!(
            "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\nBinaryName = '{OF_PACKAGE}'\n"
        );
        let on = |line: &str, file: &str| {
            let line = line.replace(' ', "\0");
            let process = [("/proc/7/comm", "containerd"), ("/proc/7/cmdline", line.as_str())];
            let status = [("/proc/7/status", "PPid:\t1\nUid:\t0\t0\t0\t0\n")];
            found(&[&process[..], &status, &[(file, text.as_str())]].concat(), &[OF_PACKAGE])
        };
        let (other, k3s) = ("/etc/cri/containerd.toml", "/data/k3s/agent/etc/containerd/config.toml");
        assert_eq!(on(&format!("containerd --config {other}"), other), one(other, "nvidia", false));
        assert!(on(&format!("containerd --config {other}"), CONTAINERD[0]).is_empty(), "it is not read");
        assert!(on("containerd", other).is_empty());
        assert_eq!(on("containerd", CONTAINERD[0]), one(CONTAINERD[0], "nvidia", false));
        let of_k3s = format!("containerd -c {k3s} -a /run/k3s/containerd/containerd.sock");
        assert_eq!(on(&of_k3s, k3s), one(k3s, "nvidia", false));
        assert_eq!(on(&of_k3s, CONTAINERD[0]), one(CONTAINERD[0], "nvidia", false), "that of another containerd");
        // Talos runs a second one, for itself.
        let of_system =
            "containerd --address /system/run/containerd/containerd.sock --config /etc/containerd/system.toml";
        assert!(on(of_system, "/etc/containerd/system.toml").is_empty());
    }

    #[test]
    fn crios_runtime_is_found_in_drop_ins_and_the_last_default_wins() {
        let runtime = format!("[crio.runtime.runtimes.nvidia]\nruntime_path = '{OF_PACKAGE}'\n");
        let files = [
            ("/etc/crio/crio.conf.d/10-nvidia.conf", format!("[crio.runtime]\ndefault_runtime = 'nvidia'\n{runtime}")),
            ("/etc/crio/crio.conf.d/99-site.conf", "[crio.runtime]\ndefault_runtime = 'crun'\n".to_owned()),
        ];
        let files = files.each_ref().map(|(path, text)| (*path, text.as_str()));
        assert_eq!(found(&files[..1], &[OF_PACKAGE]), one(CRIO.0, "nvidia", true));
        assert_eq!(found(&files, &[OF_PACKAGE]), one(CRIO.0, "nvidia", false));
    }

    #[test]
    fn runtimes_of_a_container_or_without_program_are_not_the_hosts() {
        let docker = |path: &str| format!(r#"{{"runtimes": {{"nvidia": {{"path": "{path}"}}}}}}"#);
        for program in [
            "/usr/local/nvidia/toolkit/nvidia-container-runtime",
            "/home/kubernetes/bin/nvidia/toolkit/nvidia-container-runtime",
        ] {
            assert!(found(&[(DOCKER, &docker(program))], &[program]).is_empty(), "{program}");
        }
        assert!(found(&[(DOCKER, &docker(OF_PACKAGE))], &[]).is_empty());
        assert!(found(&[(DOCKER, &docker("/usr/bin/runsc"))], &["/usr/bin/runsc"]).is_empty());
        assert!(found(&[(DOCKER, "no JSON"), (CONTAINERD[0], "no = TOML = here")], &[OF_PACKAGE]).is_empty());
        assert!(found(&[], &[OF_PACKAGE]).is_empty());
    }
}
