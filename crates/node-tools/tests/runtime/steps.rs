//! The steps of a toolkit pod, against a process that behaves like a container runtime: it listens on a socket and
//! rereads its file on SIGHUP.

mod docker_flags;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use gpu_host::process::error_chain;
use node_tools::runtime::{
    config_files::config_files,
    daemon::{Daemon, Runtime},
    entries::{NvidiaEntries, RuntimeKind},
    restart::WaitLimits,
    steps::{self, Setup, StepError},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

const SOCKET: &str = "FAKE_RUNTIME_SOCKET";
const CONFIG: &str = "FAKE_RUNTIME_CONFIG";
/// The keys that its flags set.
const FLAGS: &str = "FAKE_RUNTIME_FLAGS";
const VERSION: &str = "FAKE_RUNTIME_VERSION";

/// What the fake runtime has loaded.
struct Loaded {
    runtimes: Value,
    default: Value,
}

impl Loaded {
    /// Loads a file. Like Docker, it keeps what the file does not mention, rejects a key that is a flag, and ends without its default.
    fn load(&mut self, text: &str) {
        let file: Value = serde_json::from_str(text).unwrap_or_default();
        let flags = std::env::var(FLAGS).unwrap_or_default();
        if flags.split(' ').any(|key| !file[key].is_null()) {
            println!("loaded nothing");
            return;
        }
        for (known, key) in [(&mut self.runtimes, "runtimes"), (&mut self.default, "default-runtime")] {
            if !file[key].is_null() {
                *known = file[key].clone();
            }
        }
        self.runtimes["runc"] = json!({"path": "runc"});
        assert!(
            !self.runtimes[self.default.as_str().unwrap()].is_null(),
            "{} is not in {}",
            self.default,
            self.runtimes
        );
        println!("loaded {}", text.contains("nvidia-container-runtime"));
    }

    /// Answers one request for information.
    async fn answer(&self, mut stream: tokio::net::UnixStream) -> std::io::Result<()> {
        let mut request = [0; 1024];
        if stream.read(&mut request).await? > 0 {
            let version = std::env::var(VERSION).unwrap_or_default();
            let info = json!({"DefaultRuntime": self.default, "Runtimes": self.runtimes, "ServerVersion": version});
            let body = info.to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await?;
        }
        Ok(())
    }
}

/// Not a test: the fake runtime, started by the other tests. Like Docker, it answers by accepting connections, and reports its default. It
/// prints whether its file has NVIDIA's runtime whenever it loads it.
#[test]
#[ignore = "the fake runtime that the other tests start"]
fn fake_runtime() {
    let (Ok(socket), Ok(config)) = (std::env::var(SOCKET), std::env::var(CONFIG)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).unwrap();
        let text = || fs::read_to_string(&config).unwrap_or_default();
        fs::remove_file(&socket).ok();
        let listener = UnixListener::bind(&socket).unwrap();
        let mut loaded = Loaded { runtimes: json!({}), default: json!("runc") };
        loaded.load(&text());
        loop {
            tokio::select! {
                _ = hangup.recv() => loaded.load(&text()),
                Ok((stream, _)) = listener.accept() => drop(loaded.answer(stream).await),
            }
        }
    });
}

/// A node with a fake runtime.
struct Node {
    folder: TempDir,
    runtime: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Node {
    fn new(found: Option<&str>) -> Self {
        Self::with_flags(found, "", "20.10.24")
    }

    /// `keys` are those that flags of this release set.
    fn with_flags(found: Option<&str>, keys: &str, version: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if let Some(found) = found {
            fs::write(folder.path().join("daemon.json"), found).unwrap();
        }
        let mut runtime = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "steps::fake_runtime", "--ignored", "--nocapture"])
            .env(SOCKET, folder.path().join("docker.sock"))
            .env(CONFIG, folder.path().join("daemon.json"))
            .envs([(FLAGS, keys), (VERSION, version)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(runtime.stdout.take().unwrap()).lines();
        let mut node = Self { folder, runtime, said };
        assert_eq!(node.says(), "loaded false");
        node
    }

    /// Returns a setup in which the runtime's command line has these flags, unlike that of a test.
    fn setup_with(&self, default: bool, flags: &[&str]) -> Setup {
        let proc = self.folder.path().join("proc");
        let own = proc.join(self.runtime.id().to_string());
        fs::create_dir_all(&own).unwrap();
        for file in ["stat".to_owned(), format!("{}/stat", self.runtime.id())] {
            fs::copy(Path::new("/proc").join(&file), proc.join(&file)).unwrap();
        }
        fs::write(own.join("cmdline"), format!("/usr/bin/dockerd\0{}\0", flags.join("\0"))).unwrap();
        let setup = self.setup(default);
        Setup { daemon: Daemon { proc, ..setup.daemon.clone() }, ..setup }
    }

    /// Returns the runtime's next line about what it loads.
    fn says(&mut self) -> String {
        // The output of the test harness comes first.
        let mut lines = self.said.by_ref().map(|line| line.unwrap());
        let line = lines.find(|line| line.contains("loaded ")).expect("a line of the runtime");
        let at = line.find("loaded ").unwrap();
        line[at..].to_owned()
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("daemon.json")
    }

    fn text(&self) -> Option<String> {
        fs::read_to_string(self.config()).ok()
    }

    fn setup(&self, default: bool) -> Setup {
        let at = |name: &str| self.folder.path().join(name);
        let daemon =
            Daemon { kind: RuntimeKind::Docker, socket: at("docker.sock"), proc: Path::new("/proc").to_owned() };
        Setup {
            files: config_files(RuntimeKind::Docker, Some(&self.config()), None),
            entries: NvidiaEntries { handler: "nvidia".into(), install_dir: "/opt/toolkit".into() },
            daemon,
            default,
            state: at("state"),
            loaded: at("loaded"),
            limits: WaitLimits { deadline: Duration::from_secs(10), interval: Duration::from_millis(5) },
        }
    }

    /// Installs NVIDIA's runtime, and loads it.
    async fn installed(found: Option<&str>, default: bool) -> (Self, Setup) {
        let mut node = Self::new(found);
        let setup = node.setup(default);
        steps::snapshot(&setup).unwrap();
        node.install(default);
        // Which other keys the installer sets is not known.
        node.change(|whole| whole["x"] = true.into());
        steps::apply(&setup).await.unwrap();
        let expected = if default { "nvidia" } else { "runc" };
        assert_eq!((node.says().as_str(), node.default().await.as_str()), ("loaded true", expected));
        (node, setup)
    }

    /// Asks the runtime for its default.
    async fn default(&self) -> String {
        let mut stream = tokio::net::UnixStream::connect(self.folder.path().join("docker.sock")).await.unwrap();
        stream.write_all(b"GET /info HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        body["DefaultRuntime"].as_str().unwrap().to_owned()
    }

    /// Does what NVIDIA's installer does.
    fn install(&self, default: bool) {
        self.change(|whole| {
            whole["runtimes"]["nvidia"]["path"] = "/opt/toolkit/nvidia-container-runtime".into();
            if default {
                whole["default-runtime"] = "nvidia".into();
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut whole: Value = serde_json::from_str(&self.text().unwrap_or("{}".into())).unwrap();
        change(&mut whole);
        fs::write(self.config(), whole.to_string()).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.runtime.kill().ok();
        self.runtime.wait().ok();
    }
}

#[tokio::test]
async fn a_runtime_loads_a_config_once_and_gets_its_previous_one_back() {
    let found = "{ \"registry-mirrors\": [ \"https://m\" ] }\n";
    let (mut node, setup) = Node::installed(Some(found), false).await;
    // A new pod does not change anything and restarts nothing, as the next line of the runtime shows.
    steps::snapshot(&setup).unwrap();
    node.install(false);
    steps::apply(&setup).await.unwrap();
    steps::revert(&setup).await.unwrap();
    assert_eq!(node.text().as_deref(), Some(found));
    let process = setup.daemon.process().await.unwrap();
    setup.daemon.reload(process).await.unwrap();
    assert_eq!(node.says(), "loaded false");
}

#[tokio::test]
async fn a_default_runtime_is_unloaded_when_it_is_removed() {
    for found in [None, Some("{}"), Some("{ \"registry-mirrors\": [ \"https://m\" ], \"runtimes\": {} }\n")] {
        let (mut node, setup) = Node::installed(found, true).await;
        steps::revert(&setup).await.unwrap();
        assert_eq!((node.says().as_str(), node.default().await.as_str()), ("loaded false", "runc"));
        assert_eq!(node.text().as_deref(), found);
    }
}

#[tokio::test]
async fn a_default_of_an_earlier_revision_is_dropped() {
    let (node, _) = Node::installed(Some("{}"), true).await;
    // The node crashes, and comes back with a pod whose runtime is not the default.
    let setup = node.setup(false);
    steps::snapshot(&setup).unwrap();
    node.install(false);
    steps::apply(&setup).await.unwrap();
    assert_eq!(node.default().await, "runc");
    steps::revert(&setup).await.unwrap();
    assert_eq!(node.text().as_deref(), Some("{}"));
}

#[tokio::test]
async fn a_runtime_that_is_down_is_reported_and_its_file_restored() {
    let found = "{\"a\": 1}";
    let mut node = Node::new(Some(found));
    let mut setup = node.setup(false);
    setup.limits.deadline = Duration::from_millis(200);
    steps::snapshot(&setup).unwrap();
    node.install(false);
    node.runtime.kill().unwrap();
    node.runtime.wait().unwrap();
    let error = steps::apply(&setup).await.unwrap_err().to_string();
    assert!(error.starts_with("RuntimeDown: "), "{error}");
    assert_eq!(node.text().as_deref(), Some(found));
    assert_eq!(steps::apply(&setup).await.unwrap_err().to_string(), error, "kubelet retries");
}

#[test]
fn a_file_that_is_not_json_is_left_unchanged() {
    let broken = "{\n    \"runtimes\": {\"nvidia\": {\"path\": \"/usr/bin/nvidia-container-runtime\", \"runtimeArgs\": []}}\n}\n{\n   “dns”: [“192.0.2.53”]\n}\n";
    let node = Node::new(None);
    fs::write(node.config(), broken).unwrap();
    let error = error_chain(&steps::snapshot(&node.setup(true)).unwrap_err());
    assert!(error.contains("daemon.json: is not a JSON object"), "{error}");
    assert_eq!(node.text().as_deref(), Some(broken));
}

#[tokio::test]
async fn an_installer_that_added_nothing_is_reported() {
    let node = Node::new(None);
    let setup = node.setup(false);
    steps::snapshot(&setup).unwrap();
    let error = steps::apply(&setup).await.unwrap_err();
    assert!(matches!(error, StepError::NotAdded { .. }), "{error}");
}

#[tokio::test]
async fn a_removal_by_others_is_reported() {
    let (node, setup) = Node::installed(None, false).await;
    let keeping = steps::keep(&setup, Duration::from_millis(5));
    // Changes to other entries are irrelevant.
    node.change(|whole| whole["y"] = true.into());
    let kept = tokio::time::timeout(Duration::from_millis(50), keeping).await;
    assert!(kept.is_err(), "{kept:?}");
    fs::write(node.config(), "{}").unwrap();
    let error = steps::keep(&setup, Duration::from_millis(5)).await.to_string();
    assert!(error.starts_with("RuntimeConfigDrifted: runtime nvidia is no longer in "), "{error}");
}

#[tokio::test]
async fn entries_of_a_dead_pod_are_removed_before_others_are_added() {
    let found = "{ \"registry-mirrors\": [ \"https://m\" ] }\n";
    for (default, handler, goes) in [(true, "nvidia", false), (false, "nvidia", true), (true, "gpu", true)] {
        let (node, _) = Node::installed(Some(found), true).await;
        let entered = node.text();
        // The node crashes, and comes back with a pod of another revision.
        let mut next = node.setup(default);
        next.entries.handler = handler.into();
        steps::snapshot(&next).unwrap();
        let wanted = if goes { Some(found.to_owned()) } else { entered };
        assert_eq!(node.text(), wanted, "{default} {handler}");
    }
}
