//! NVIDIA's own installer with existing third-party configurations, without a cluster: install, upgrade, uninstall.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use node_tools::runtime::{
    config_files::{AddedEntries, ConfigFile, Record, Texts, config_files, move_version_1_to_main},
    entries::{NvidiaEntries, RuntimeKind as Kind},
    state,
};
use tempfile::TempDir;

/// A host with a runtime's files, and an installer for it.
struct Host {
    folder: TempDir,
    kind: Kind,
    main: PathBuf,
    /// Whether the distribution manages the main file itself, as in k0s.
    main_is_managed: bool,
    /// The file that is generated from the main file if that is a template, as in `MicroK8s`.
    generated: Option<PathBuf>,
    drop_in: Option<PathBuf>,
}

impl Host {
    fn new(kind: Kind, found: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let (main, drop_in) = match kind {
            Kind::Docker => (at("etc/daemon.json"), None),
            Kind::Containerd => (at("etc/config.toml"), Some(at("etc/conf.d/99-nvidia.toml"))),
            Kind::CriO => (at("etc/crio.conf"), Some(at("etc/crio.conf.d/99-nvidia.toml"))),
        };
        fs::create_dir_all(at("etc")).expect("a folder");
        if let Some(found) = found {
            fs::write(&main, found).expect("written");
        }
        let host = Self { folder, kind, main, main_is_managed: false, generated: None, drop_in };
        host.artifacts();
        host
    }

    /// Returns a host whose distribution manages containerd's main file itself and imports drop-in files.
    fn k0s() -> Self {
        Self { main_is_managed: true, ..Self::new(Kind::Containerd, Some(V3)) }
    }

    /// Returns a host whose distribution generates containerd's file from a template with placeholders.
    fn microk8s() -> Self {
        let host = Self::new(Kind::Containerd, Some(TEMPLATE));
        let generated = host.at("etc/generated.toml");
        fs::write(&generated, TEMPLATE.replace("${SNAPSHOTTER}", "overlayfs")).expect("written");
        Self { generated: Some(generated), ..host }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates the content of the installer's image. The libraries are empty, because their content does not matter.
    fn artifacts(&self) {
        let built = harness::tools::nvidia_programs().expect("NVIDIA's programs");
        let (programs, libraries) = (self.at("src/usr/bin"), self.at("src/usr/lib/x86_64-linux-gnu"));
        fs::create_dir_all(&programs).expect("a folder");
        fs::create_dir_all(&libraries).expect("a folder");
        for entry in
            fs::read_dir(built).expect("programs").flatten().filter(|entry| entry.file_name() != "nvidia-ctk-installer")
        {
            fs::copy(entry.path(), programs.join(entry.file_name())).expect("copied");
        }
        fs::copy(programs.join("nvidia-cdi-hook"), programs.join("nvidia-container-cli")).expect("copied");
        for library in ["libnvidia-container.so.1", "libnvidia-container-go.so.1"] {
            fs::write(libraries.join(library), "").expect("written");
        }
    }

    fn files(&self) -> Vec<ConfigFile> {
        config_files(self.kind, (!self.main_is_managed).then_some(&*self.main), self.drop_in.as_deref())
    }

    fn entries(&self) -> NvidiaEntries {
        NvidiaEntries { handler: "nvidia".into(), install_dir: self.at("install/toolkit").display().to_string() }
    }

    fn texts(&self) -> Texts {
        state::read_all(self.files().iter().map(|file| &file.path)).expect("read")
    }

    /// Does what one run of the toolkit's pod does: takes a snapshot, runs the installer, and returns the updated
    /// record.
    fn install(&self, known: Option<&Record>, default: bool) -> Record {
        let added = AddedEntries { entries: self.entries(), default };
        let record = Record::snapshot(&self.files(), &self.texts(), known, added).expect("a snapshot");
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut command =
            Command::new(harness::tools::nvidia_programs().expect("programs").join("nvidia-ctk-installer"));
        command
            .args(["--no-daemon", "--restart-mode=none", "--nvidia-runtime-name=nvidia"])
            .arg(format!("--set-as-default={default}"))
            .arg(option("pid-file", &self.at("run/toolkit.pid")))
            .arg(option("toolkit-install-dir", &self.at("install")))
            .arg(option("toolkit-source-root", &self.at("src")))
            .arg(option("config", &if self.main_is_managed { self.at("run/unread.toml") } else { self.main.clone() }));
        command.arg(match self.kind {
            Kind::Containerd => "--runtime=containerd",
            Kind::Docker => "--runtime=docker",
            Kind::CriO => "--runtime=crio",
        });
        if let Some(drop_in) = &self.drop_in {
            command.arg(option("drop-in-config", drop_in));
            let source = self.generated.as_ref().map_or_else(String::new, |file| format!("={}", file.display()));
            command.arg(format!("--config-source=file{source}"));
        }
        let output = command.output().expect("the installer");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if let Some(moved) = move_version_1_to_main(&self.files(), &self.texts()) {
            state::replace(moved.main, &moved.text, moved.drop_in).expect("written");
        }
        let now = self.texts();
        let entered = |file: &ConfigFile| file.role.contains_entries(&now[&file.path], &self.entries());
        assert!(self.files().iter().any(entered), "{now:?}");
        record.settle(&now)
    }

    fn revert(&self, record: &Record) {
        let writes = record.revert(&self.texts()).expect("reverted");
        state::write_all(&writes).expect("written");
    }

    fn main(&self) -> Option<String> {
        fs::read_to_string(&self.main).ok()
    }
}

const JSON: &str = "{\"registry-mirrors\": [\"https://m\"],\n \"insecure-registries\": [\"r:5000\"], \"exec-opts\": [\"native.cgroupdriver=systemd\"],\n \"log-opts\": {\"max-size\": \"10m\"}, \"runtimes\": {\"kata\": {\"path\": \"/opt/kata\"}}, \"default-runtime\": \"kata\"}\n";
const V1: &str = "# mine\n[plugins.cri]\n  sandbox_image = 'x' # why\n[plugins.cri.registry.mirrors.\"docker.io\"]\n  endpoint = [\"https://m\"]\n";
const V2: &str = "# mine\nversion = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = 'x' # why\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  default_runtime_name = \"crun\"\n";
const V3: &str = "# mine\nversion = 3\nimports = [\"/etc/containerd/x/*.toml\"]\n[plugins.'io.containerd.cri.v1.images']\n  snapshotter = \"native\" # why\n";
const CRIO: &str = "# mine\n[crio.runtime]\n  conmon_cgroup = \"pod\" # why\n[crio.runtime.runtimes.crun]\n  runtime_path = \"/usr/bin/crun\"\n";

const TEMPLATE: &str = "# mine\nversion = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"${SNAPSHOTTER}\" # why\n  no_pivot = false\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n";
/// NVIDIA's runtime configured by hand, under the name that the operator uses.
const JSON_BY_HAND: &str =
    "{\"runtimes\": {\"nvidia\": {\"path\": \"/usr/bin/nvidia-container-runtime\", \"runtimeArgs\": []}}}\n";
const V2_BY_HAND: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n  BinaryName = \"/usr/bin/nvidia-container-runtime\" # by hand\n";

const CASES: [(Kind, Option<&str>); 8] = [
    (Kind::Docker, Some(JSON)),
    (Kind::Docker, None),
    (Kind::Containerd, Some(V1)),
    (Kind::Containerd, Some(V2)),
    (Kind::Containerd, Some(V3)),
    (Kind::Containerd, None),
    (Kind::CriO, Some(CRIO)),
    (Kind::CriO, None),
];

#[test]
fn uninstalling_after_an_upgrade_restores_every_byte() {
    for (kind, found) in CASES {
        for default in [false, true] {
            let host = Host::new(kind, found);
            let first = host.install(None, default);
            let left = host.texts();
            let second = host.install(Some(&first), default);
            assert_eq!(host.texts(), left, "{kind:?}: an upgrade without a change must not change a file");
            host.revert(&second);
            assert_eq!(host.main().as_deref(), found, "{kind:?}, default {default}");
            assert!(host.drop_in.iter().all(|path| !path.exists()), "{kind:?}");
        }
    }
}

#[test]
fn uninstalling_keeps_users_changes_and_removes_the_entries() {
    for (kind, found) in CASES.into_iter().filter(|(_, found)| found.is_some()) {
        for default in [false, true] {
            let host = Host::new(kind, found);
            let first = host.install(None, default);
            let text = host.main().unwrap_or_default();
            let changed = match kind {
                Kind::Docker => text.replacen('{', "{\"debug\": true,", 1),
                Kind::Containerd | Kind::CriO => format!("{text}\n# added by a user\n[debug]\n  level = \"info\"\n"),
            };
            fs::write(&host.main, changed).expect("written");
            let second = host.install(Some(&first), default);
            host.revert(&second);
            let rest = host.main().unwrap_or_default();
            assert!(rest.contains("debug"), "{kind:?}: {rest}");
            assert!(!rest.contains("nvidia") && !rest.contains("conf.d/"), "{kind:?}: {rest}");
            for kept in ["https://m", "kata", "crun", "snapshotter", "conmon_cgroup", "max-size", "sandbox_image"] {
                assert_eq!(
                    rest.contains(kept),
                    found.is_some_and(|found| found.contains(kept)),
                    "{kind:?} {kept}: {rest}"
                );
            }
        }
    }
}

/// Returns every kind of host, including those of special distributions and those with a runtime configured by hand.
fn hosts() -> impl Iterator<Item = (String, Host)> {
    let plain = CASES.into_iter().map(|(kind, found)| (format!("{kind:?} {found:?}"), Host::new(kind, found)));
    let by_hand = [(Kind::Docker, JSON_BY_HAND), (Kind::Containerd, V2_BY_HAND)];
    let by_hand = by_hand.map(|(kind, found)| (format!("{kind:?} by hand"), Host::new(kind, Some(found))));
    plain.chain(by_hand).chain([("k0s".to_owned(), Host::k0s()), ("MicroK8s".to_owned(), Host::microk8s())])
}

#[test]
fn uninstalling_leaves_no_trace_of_changed_entries() {
    for (what, host) in hosts() {
        let found = host.main();
        let mut record = host.install(None, false);
        let plain = host.texts();
        for default in [true, false] {
            // The pod of one revision removes its entries before the pod of the next one adds any.
            host.revert(&record);
            record = host.install(None, default);
            assert_eq!(host.texts() == plain, !default, "{what}: default {default}");
            record = host.install(Some(&record), default);
        }
        if host.main_is_managed {
            assert_eq!(host.main(), found, "{what}: the managed main file was changed");
        }
        host.revert(&record);
        assert_eq!(host.main(), found, "{what}");
        assert!(host.drop_in.iter().all(|path| !path.exists()), "{what}");
    }
}
