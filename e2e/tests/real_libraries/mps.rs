//! NVIDIA's MPS as in the operator's pod: the probe injects it into a container, and it starts with an environment that
//! contains only MPS' folders, as NVIDIA's `mps-control-daemon` starts it. The driver is Debian's; there is no GPU.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    inject::Installed,
    support::{BRANCHES_WITH_MPS, LIBRARIES, Process, contained, real},
};

const CONTROL: &str = "nvidia-cuda-mps-control";

struct Folders(TempDir);

impl Folders {
    fn new() -> Self {
        // A short path, because the length of socket paths is limited.
        let folders = Self(tempfile::tempdir().expect("a folder"));
        for name in ["pipe", "log"] {
            fs::create_dir(folders.path(name)).expect("a folder");
        }
        folders
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Returns the complete environment of the programs of MPS in the pod.
    fn environment(&self) -> Vec<String> {
        let of = |name, folder| format!("{name}={}", self.path(folder));
        vec![of("CUDA_MPS_PIPE_DIRECTORY", "pipe"), of("CUDA_MPS_LOG_DIRECTORY", "log")]
    }
}

/// A line of the daemon's log: the name of the process, and the message.
type LogLine = (String, String);

/// The control daemon in a container.
struct Daemon {
    process: Process,
    log: Receiver<String>,
    folders: Folders,
    /// The path of the program in the container.
    program: String,
}

impl Daemon {
    /// Starts it in a container into which the probe injects the driver.
    fn injected(driver: &Installed) -> Self {
        let folders = Folders::new();
        let command = driver.injected(&folders.environment(), &[CONTROL, "-f"]);
        Self::start(command, folders, CONTROL.to_owned())
    }

    /// Starts it from a driver's root in a container without the driver, with this additional environment.
    fn bare(root: &Path, environment: &[String]) -> Self {
        let folders = Folders::new();
        let program = root.join("usr/bin").join(CONTROL).display().to_string();
        let mut command = contained(Path::new("env"));
        command.arg("-i").args(folders.environment()).args(environment).args([&program, "-f"]);
        Self::start(command, folders, program)
    }

    /// Starts it in the foreground, so that it writes its own and its servers' log to its standard output.
    fn start(mut command: Command, folders: Folders, program: String) -> Self {
        let mut process = Process(command.stdout(Stdio::piped()).spawn().expect("unshare"));
        let lines = BufReader::new(process.0.stdout.take().expect("its output")).lines();
        let (sender, log) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let daemon = Self { process, log, folders, program };
        let first = daemon.until(|what| what.starts_with("To connect"));
        let expected = [
            format!("Starting control daemon using socket {}", daemon.folders.path("pipe/control")),
            format!(
                "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={}",
                daemon.folders.path("pipe")
            ),
        ];
        assert_eq!(first, expected.map(|what| ("Control".to_owned(), what)));
        // It logs these lines before it listens: on this socket last.
        let socket = daemon.folders.path("pipe/control");
        let listens = || {
            let sockets = fs::read_to_string("/proc/net/unix").expect("the sockets");
            sockets.lines().any(|line| line.ends_with(&socket) && line.contains(" 00010000 "))
        };
        let deadline = Instant::now() + Duration::from_mins(1);
        while !listens() {
            assert!(Instant::now() < deadline, "the daemon does not listen");
            thread::yield_now();
        }
        daemon
    }

    fn is_up(&mut self) -> bool {
        matches!(self.process.0.try_wait(), Ok(None))
    }

    /// Sends a command to the daemon from within its container, and returns the answer.
    fn send(&self, request: &str) -> String {
        let mut control = Command::new("nsenter");
        control.args(["--target", &self.process.0.id().to_string(), "--mount", "env", "-i"]);
        control.args(self.folders.environment()).arg(&self.program);
        let mut control = control.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nsenter");
        let mut input = control.stdin.take().expect("its input");
        input.write_all(format!("{request}\n").as_bytes()).expect("written");
        drop(input);
        let output = control.wait_with_output().expect("its answer");
        assert!(output.status.success(), "{request}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Starts a server, and returns the log lines until it has ended.
    fn start_server(&self) -> Vec<LogLine> {
        assert_eq!(self.send("start_server -uid 0"), "");
        let lines = self.until(|what| what.contains("exited with status"));
        assert!(lines.iter().any(|(_, what)| what.starts_with("Starting new server")), "{lines:?}");
        assert!(lines.last().is_some_and(|(_, what)| what.ends_with("exited with status 1")), "{lines:?}");
        lines
    }

    /// Returns the log lines up to the first one whose message passes a test.
    fn until(&self, last: impl Fn(&str) -> bool) -> Vec<LogLine> {
        let mut lines = Vec::new();
        loop {
            let line = self.log.recv_timeout(Duration::from_mins(1));
            let line = line.unwrap_or_else(|error| panic!("{error}: {lines:?}"));
            let (process, what) = parse(&line).unwrap_or_else(|| panic!("{line}"));
            let found = last(&what);
            lines.push((process, what));
            if found {
                return lines;
            }
        }
    }
}

/// Parses a line of the form `[DATE TIME PROCESS PID] message`.
fn parse(line: &str) -> Option<LogLine> {
    let (head, what) = line.strip_prefix('[')?.split_once("] ")?;
    Some((head.split_whitespace().nth(2)?.to_owned(), what.to_owned()))
}

/// Returns the messages of the servers, without those of the control daemon.
fn of_servers(lines: &[LogLine]) -> Vec<&str> {
    lines.iter().filter(|(process, _)| process != "Control").map(|(_, what)| what.as_str()).collect()
}

/// Asserts that a server failed only for lack of a GPU.
fn assert_only_a_gpu_is_missing(daemon: &Daemon, lines: &[LogLine], case: &str) {
    let expected = [
        "Startup".to_owned(),
        format!("Connecting to control daemon on socket: {}", daemon.folders.path("pipe/control")),
        "Initializing server process".to_owned(),
        "Driver initialization failed with: no CUDA-capable device is detected".to_owned(),
        "Failed to start : no CUDA-capable device is detected".to_owned(),
    ];
    assert_eq!(of_servers(lines), expected, "{case}");
    let fatal = ("Control".to_owned(), "Server encountered a fatal exception. Shutting down".to_owned());
    assert!(lines.contains(&fatal), "{case}: {lines:?}");
}

#[test]
fn with_an_injected_driver_mps_lacks_only_a_gpu() {
    for branch in BRANCHES_WITH_MPS {
        let driver = Installed::of(&real(branch));
        let mut daemon = Daemon::injected(&driver);
        assert_eq!(daemon.send("get_server_list"), "");
        // The settings that NVIDIA's wrapper makes.
        assert_eq!(daemon.send("set_default_active_thread_percentage 25"), "25.0");
        assert_eq!(daemon.send("get_default_active_thread_percentage"), "25.0");
        daemon.send("set_default_device_pinned_mem_limit 0 4G");
        assert_eq!(daemon.send("get_default_device_pinned_mem_limit 0"), "4G");
        assert_only_a_gpu_is_missing(&daemon, &daemon.start_server(), branch);
        assert_eq!(daemon.send("get_server_list"), "");
        assert!(daemon.is_up(), "{branch}");
    }
}

#[test]
fn without_an_injected_driver_a_server_needs_paths() {
    for branch in BRANCHES_WITH_MPS {
        let root = real(branch).root;
        let programs = format!("PATH={0}/usr/bin:{0}/usr/sbin", root.display());
        let libraries = format!("LD_LIBRARY_PATH={}", root.join(LIBRARIES).join("nvidia/current").display());
        for environment in [vec![], vec![programs.clone()], vec![libraries.clone()]] {
            let mut daemon = Daemon::bare(&root, &environment);
            let lines = daemon.start_server();
            assert!(of_servers(&lines).is_empty(), "{branch} {environment:?}: {lines:?}");
            assert!(!lines.iter().any(|(_, what)| what.contains("fatal")), "{branch} {environment:?}: {lines:?}");
            assert!(daemon.is_up(), "{branch} {environment:?}");
        }
        // With both paths the server logs again, so both are necessary.
        let daemon = Daemon::bare(&root, &[programs, libraries]);
        assert_only_a_gpu_is_missing(&daemon, &daemon.start_server(), branch);
    }
}
