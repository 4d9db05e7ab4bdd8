//! NVIDIA's MPS as the operator's pod runs it: by links to a driver of Debian's, without a GPU.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use e2e::debian::Driver;
use tempfile::TempDir;

use crate::support::{BRANCHES_WITH_MPS, Process, built, confined, real};

/// MPS' folders, and the links to a driver.
struct Mps {
    folder: TempDir,
}

/// A line of its log: who says it, and what.
type Said = (String, String);

impl Mps {
    /// Links to what MPS needs of a driver, made by the probe.
    fn of(driver: &Driver) -> Self {
        // A short path: those of sockets have a bound.
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["pipe", "log"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let links = folder.path().join("driver");
        let linked = Command::new(built("nvml-probe")).arg("link").args([&driver.root, &links]).output().expect("run");
        assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn control(&self) -> Command {
        let mut command = confined(Path::new("nvidia-cuda-mps-control"));
        command
            .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.path("driver/bin")))
            .env("LD_LIBRARY_PATH", self.path("driver/lib"))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.path("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.path("log"));
        command
    }

    /// Starts the control daemon in the foreground, where it writes its own and its servers' log to its output.
    fn daemon(&self) -> Daemon {
        let mut process = Process(self.control().arg("-f").stdout(Stdio::piped()).spawn().expect("unshare"));
        let lines = BufReader::new(process.0.stdout.take().expect("its output")).lines();
        let (sender, log) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let daemon = Daemon { process, log };
        let socket = self.path("pipe/control");
        let first = daemon.until(|what| what.starts_with("To connect"));
        let expected = [
            format!("Starting control daemon using socket {socket}"),
            format!(
                "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={}",
                self.path("pipe")
            ),
        ];
        assert_eq!(first, expected.map(|what| ("Control".to_owned(), what)));
        daemon
    }

    /// What the daemon answers to a command.
    fn ask(&self, question: &str) -> String {
        let mut control = self.control().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut input = control.stdin.take().expect("its input");
        input.write_all(format!("{question}\n").as_bytes()).expect("written");
        drop(input);
        let output = control.wait_with_output().expect("its answer");
        assert!(output.status.success(), "{question}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

struct Daemon {
    process: Process,
    log: Receiver<String>,
}

impl Daemon {
    fn is_up(&mut self) -> bool {
        matches!(self.process.0.try_wait(), Ok(None))
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

/// Has a server start, and returns what is said until it has ended.
fn start_server(mps: &Mps, daemon: &Daemon) -> Vec<Said> {
    assert_eq!(mps.ask("start_server -uid 0"), "");
    let said = daemon.until(|what| what.contains("exited with status"));
    assert!(said.iter().any(|(_, what)| what.starts_with("Starting new server")), "{said:?}");
    assert!(said.last().is_some_and(|(_, what)| what.ends_with("exited with status 1")), "{said:?}");
    said
}

#[test]
fn mps_control_daemon_serves_without_a_gpu_and_its_server_names_what_is_missing() {
    for branch in BRANCHES_WITH_MPS {
        let driver = real(branch);
        let mps = Mps::of(&driver);
        let mut daemon = mps.daemon();
        assert_eq!(mps.ask("get_server_list"), "");
        // What NVIDIA's wrapper around it sets.
        assert_eq!(mps.ask("set_default_active_thread_percentage 25"), "25.0");
        assert_eq!(mps.ask("get_default_active_thread_percentage"), "25.0");
        mps.ask("set_default_device_pinned_mem_limit 0 4G");
        assert_eq!(mps.ask("get_default_device_pinned_mem_limit 0"), "4G");
        let said = start_server(&mps, &daemon);
        let expected = [
            "Startup".to_owned(),
            format!("Connecting to control daemon on socket: {}", mps.path("pipe/control")),
            "Initializing server process".to_owned(),
            "Driver initialization failed with: no CUDA-capable device is detected".to_owned(),
            "Failed to start : no CUDA-capable device is detected".to_owned(),
        ];
        assert_eq!(of_servers(&said), expected, "{branch}");
        let fatal = ("Control".to_owned(), "Server encountered a fatal exception. Shutting down".to_owned());
        assert!(said.contains(&fatal), "{branch}: {said:?}");
        assert_eq!(mps.ask("get_server_list"), "");
        assert!(daemon.is_up(), "{branch}");
    }
}

#[test]
fn an_mps_server_without_the_drivers_library_ends_without_a_word() {
    for branch in BRANCHES_WITH_MPS {
        let mps = Mps::of(&real(branch));
        fs::remove_file(mps.path("driver/lib/libcuda.so.1")).expect("removed");
        let mut daemon = mps.daemon();
        let said = start_server(&mps, &daemon);
        assert!(of_servers(&said).is_empty(), "{branch}: {said:?}");
        assert!(!said.iter().any(|(_, what)| what.contains("fatal")), "{branch}: {said:?}");
        assert!(daemon.is_up(), "{branch}");
    }
}
