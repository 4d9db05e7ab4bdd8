//! NVIDIA's MPS as the operator's pod runs it: brought into a container by the probe, and started with an environment that
//! names MPS' folders only, as NVIDIA's `mps-control-daemon` starts it. The driver is Debian's; there is no GPU.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    inject::Installed,
    support::{BRANCHES_WITH_MPS, LIBRARIES, Process, contained, real},
};

const CONTROL: &str = "nvidia-cuda-mps-control";

/// MPS' folders.
struct Folders(TempDir);

impl Folders {
    fn new() -> Self {
        // A short path: those of sockets have a bound.
        let folders = Self(tempfile::tempdir().expect("a folder"));
        for name in ["pipe", "log"] {
            fs::create_dir(folders.path(name)).expect("a folder");
        }
        folders
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// The whole environment that its programs have in the pod.
    fn environment(&self) -> Vec<String> {
        let of = |name, folder| format!("{name}={}", self.path(folder));
        vec![of("CUDA_MPS_PIPE_DIRECTORY", "pipe"), of("CUDA_MPS_LOG_DIRECTORY", "log")]
    }
}

/// A line of its log: who says it, and what.
type Said = (String, String);

/// The control daemon in a container.
struct Daemon {
    process: Process,
    log: Receiver<String>,
    folders: Folders,
    /// The program, as the container has it.
    program: String,
}

impl Daemon {
    /// Starts it in a container that the probe brings the driver into.
    fn injected(driver: &Installed) -> Self {
        let folders = Folders::new();
        let command = driver.injected(&folders.environment(), &[CONTROL, "-f"]);
        Self::start(command, folders, CONTROL.to_owned())
    }

    /// Starts it out of a driver's root in a container that has nothing of the driver, with this environment besides.
    fn bare(root: &Path, environment: &[String]) -> Self {
        let folders = Folders::new();
        let program = root.join("usr/bin").join(CONTROL).display().to_string();
        let mut command = contained(Path::new("env"));
        command.arg("-i").args(folders.environment()).args(environment).args([&program, "-f"]);
        Self::start(command, folders, program)
    }

    /// Starts it in the foreground, where it writes its own and its servers' log to its output.
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
        daemon
    }

    fn is_up(&mut self) -> bool {
        matches!(self.process.0.try_wait(), Ok(None))
    }

    /// What it answers to a command, which is asked in its container.
    fn ask(&self, question: &str) -> String {
        let mut control = Command::new("nsenter");
        control.args(["--target", &self.process.0.id().to_string(), "--mount", "env", "-i"]);
        control.args(self.folders.environment()).arg(&self.program);
        let mut control = control.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nsenter");
        let mut input = control.stdin.take().expect("its input");
        input.write_all(format!("{question}\n").as_bytes()).expect("written");
        drop(input);
        let output = control.wait_with_output().expect("its answer");
        assert!(output.status.success(), "{question}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Has a server start, and returns what is said until it has ended.
    fn start_server(&self) -> Vec<Said> {
        assert_eq!(self.ask("start_server -uid 0"), "");
        let said = self.until(|what| what.contains("exited with status"));
        assert!(said.iter().any(|(_, what)| what.starts_with("Starting new server")), "{said:?}");
        assert!(said.last().is_some_and(|(_, what)| what.ends_with("exited with status 1")), "{said:?}");
        said
    }

    /// What is said up to a line of which this is true.
    fn until(&self, last: impl Fn(&str) -> bool) -> Vec<Said> {
        let mut said = Vec::new();
        loop {
            let line = self.log.recv_timeout(Duration::from_mins(1));
            let line = line.unwrap_or_else(|error| panic!("{error}: {said:?}"));
            let (who, what) = parse(&line).unwrap_or_else(|| panic!("{line}"));
            let found = last(&what);
            said.push((who, what));
            if found {
                return said;
            }
        }
    }
}

/// `[DATE TIME WHO PID] what`.
fn parse(line: &str) -> Option<Said> {
    let (head, what) = line.strip_prefix('[')?.split_once("] ")?;
    Some((head.split_whitespace().nth(2)?.to_owned(), what.to_owned()))
}

/// What those say who are no control daemon.
fn of_servers(said: &[Said]) -> Vec<&str> {
    said.iter().filter(|(who, _)| who != "Control").map(|(_, what)| what.as_str()).collect()
}

/// Asserts that a server has come as far as it can without a GPU.
fn assert_only_a_gpu_is_missing(daemon: &Daemon, said: &[Said], case: &str) {
    let expected = [
        "Startup".to_owned(),
        format!("Connecting to control daemon on socket: {}", daemon.folders.path("pipe/control")),
        "Initializing server process".to_owned(),
        "Driver initialization failed with: no CUDA-capable device is detected".to_owned(),
        "Failed to start : no CUDA-capable device is detected".to_owned(),
    ];
    assert_eq!(of_servers(said), expected, "{case}");
    let fatal = ("Control".to_owned(), "Server encountered a fatal exception. Shutting down".to_owned());
    assert!(said.contains(&fatal), "{case}: {said:?}");
}

#[test]
fn where_the_driver_is_injected_mps_serves_and_its_server_lacks_a_gpu_only() {
    for branch in BRANCHES_WITH_MPS {
        let driver = Installed::of(&real(branch));
        let mut daemon = Daemon::injected(&driver);
        assert_eq!(daemon.ask("get_server_list"), "");
        // What NVIDIA's wrapper around it sets.
        assert_eq!(daemon.ask("set_default_active_thread_percentage 25"), "25.0");
        assert_eq!(daemon.ask("get_default_active_thread_percentage"), "25.0");
        daemon.ask("set_default_device_pinned_mem_limit 0 4G");
        assert_eq!(daemon.ask("get_default_device_pinned_mem_limit 0"), "4G");
        assert_only_a_gpu_is_missing(&daemon, &daemon.start_server(), branch);
        assert_eq!(daemon.ask("get_server_list"), "");
        assert!(daemon.is_up(), "{branch}");
    }
}

#[test]
fn where_it_is_not_a_server_without_paths_of_programs_and_libraries_ends_without_a_word() {
    for branch in BRANCHES_WITH_MPS {
        let root = real(branch).root;
        let programs = format!("PATH={0}/usr/bin:{0}/usr/sbin", root.display());
        let libraries = format!("LD_LIBRARY_PATH={}", root.join(LIBRARIES).join("nvidia/current").display());
        for environment in [vec![], vec![programs.clone()], vec![libraries.clone()]] {
            let mut daemon = Daemon::bare(&root, &environment);
            let said = daemon.start_server();
            assert!(of_servers(&said).is_empty(), "{branch} {environment:?}: {said:?}");
            assert!(!said.iter().any(|(_, what)| what.contains("fatal")), "{branch} {environment:?}: {said:?}");
            assert!(daemon.is_up(), "{branch} {environment:?}");
        }
        // With both of them it speaks: neither is spare.
        let daemon = Daemon::bare(&root, &[programs, libraries]);
        assert_only_a_gpu_is_missing(&daemon, &daemon.start_server(), branch);
    }
}
