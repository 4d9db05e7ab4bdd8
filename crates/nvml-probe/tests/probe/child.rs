//! The supervised NVML child: real processes, the stand-in library, and small programs that misbehave.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use gpu_host::{
    nvml::{
        protocol::Inventory,
        supervisor::{ChildCommand, Limits, NvmlStatus, Supervisor, child_command},
        trusted::Target,
    },
    observe::driver::{CONTAINER_ROOT, GKE_ROOT, HOST_ROOT, all_libraries},
};
use gpu_operator_crd::health::CauseKind;
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, geteuid, mkfifo},
};
use test_support::host::Host;
use tokio::process::Command;

use crate::{
    PROBE,
    process::Process,
    running::{GPUS, VERSION},
};

const ANSWER: &str = r#"{"inventory":{"driverVersion":"1.2","cudaVersion":null,"gpus":[]}}"#;

pub fn limits(answer: Duration) -> Limits {
    Limits { answer, end: Duration::from_millis(300), first_pause: Duration::from_mins(1), ..Limits::default() }
}

/// Long enough for a busy machine; no test waits for it.
pub fn patient() -> Limits {
    limits(Duration::from_mins(1))
}

pub fn probe() -> ChildCommand {
    child_command(PathBuf::from(PROBE))
}

/// A child that runs this shell script.
pub fn script(script: impl Into<String>) -> ChildCommand {
    let script = script.into();
    Box::new(move |_, _| {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&script);
        command
    })
}

pub fn target(host: &Host, chroot: bool, version: &str) -> Result<Target, Option<String>> {
    Target::choose(&host.root(), chroot, "boot", Some(version), &all_libraries(&host.root(), None).unwrap())
}

pub async fn look(supervisor: &mut Supervisor, target: Result<Target, Option<String>>, now: Instant) -> NvmlStatus {
    supervisor.query(target, &GPUS.map(|(address, _)| address.to_owned()), now).await
}

/// A host whose driver serves [`GPUS`], and the supervisor that queries it.
pub struct Asked {
    pub host: Host,
    pub supervisor: Supervisor,
    began: Instant,
}

impl Asked {
    pub fn new(limits: Limits) -> Self {
        let host = Host::new();
        host.install(CONTAINER_ROOT, VERSION, &GPUS);
        Self { host, supervisor: Supervisor::new(probe(), limits), began: Instant::now() }
    }

    /// Queries NVML so many seconds after the beginning.
    pub async fn after(&mut self, seconds: u64) -> NvmlStatus {
        let now = self.began + Duration::from_secs(seconds);
        look(&mut self.supervisor, target(&self.host, false, VERSION), now).await
    }

    pub async fn inventory(&mut self) -> Inventory {
        inventory(self.after(0).await)
    }
}

pub fn anything() -> Target {
    Target {
        host_root: PathBuf::from("/"),
        chroot: None,
        library: PathBuf::new(),
        version: "1.2".to_owned(),
        boot_id: "boot".to_owned(),
    }
}

fn inventory(look: NvmlStatus) -> Inventory {
    match look {
        NvmlStatus::Answering(inventory) => inventory,
        other => panic!("expected an answer, got {other:?}"),
    }
}

pub fn failure(look: NvmlStatus) -> String {
    match look {
        NvmlStatus::Failing(why) => why,
        other => panic!("expected a failure, got {other:?}"),
    }
}

fn uuids(inventory: &Inventory) -> Vec<&str> {
    inventory.gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).collect()
}

#[tokio::test]
async fn the_inventory_is_nvmls_and_follows_its_changes() {
    let mut asked = Asked::new(patient());
    let first = asked.inventory().await;
    assert_eq!(first.driver_version, "580.173.02");
    assert_eq!(first.cuda_version.as_deref(), Some("13.1"));
    assert!(first.refused.is_empty(), "{first:?}");
    let gpu = &first.gpus[0];
    assert_eq!(gpu.pci_address, "0000:06:00.0");
    assert_eq!(gpu.uuid.as_deref(), Some("GPU-six"));
    assert_eq!(gpu.name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
    assert_eq!(gpu.memory_mib, Some(81559));
    assert_eq!((first.count, gpu.compute_capability.as_deref(), gpu.mig_capable), (2, Some("9.0"), Some(true)));
    assert_eq!(gpu.fabric_clique, None);
    asked.host.serve(CONTAINER_ROOT, &GPUS[1..], false);
    let second = asked.inventory().await;
    assert_eq!((uuids(&second), second.count), (vec!["GPU-seven"], 1));
    assert_eq!(second.refused.iter().map(|gpu| gpu.kind).collect::<Vec<_>>(), [CauseKind::NotListed]);
}

#[tokio::test]
async fn the_child_works_from_inside_the_drivers_root() {
    if !geteuid().is_root() {
        eprintln!("skipped: changing root requires root privileges");
        return;
    }
    for (root, place) in [(CONTAINER_ROOT, CONTAINER_ROOT), (HOST_ROOT, HOST_ROOT), (GKE_ROOT, HOST_ROOT)] {
        let host = Host::new();
        host.install(root, "580.173.02", &GPUS);
        let target = target(&host, true, "580.173.02").unwrap();
        let expected = host.path(place);
        assert_eq!(target.chroot.as_deref().map(|path| path.join("")), Some(expected.join("")), "{root}");
        let mut supervisor = Supervisor::new(probe(), patient());
        let inventory = inventory(look(&mut supervisor, Ok(target), Instant::now()).await);
        assert_eq!(uuids(&inventory), ["GPU-six", "GPU-seven"], "{root}");
    }
}

/// What another user has put in place of the library, or of a folder above it, since it was found.
#[tokio::test]
async fn a_library_that_others_can_replace_is_not_loaded() {
    for chroot in [true, false] {
        if chroot && !geteuid().is_root() {
            eprintln!("skipped: changing root requires root privileges");
            continue;
        }
        let host = Host::new();
        host.install(CONTAINER_ROOT, "580.173.02", &GPUS);
        let target = target(&host, chroot, "580.173.02").unwrap();
        let query = || async {
            let mut supervisor = Supervisor::new(probe(), patient());
            failure(look(&mut supervisor, Ok(target.clone()), Instant::now()).await)
        };
        let folder = host.path("run/nvidia/driver/usr");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        let why = query().await;
        let expected = "users other than root may write to /run/nvidia/driver/usr (mode 1777)";
        assert!(why.contains(expected), "chroot {chroot}: {why}");
        assert!(!host.is_held(CONTAINER_ROOT));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();

        let library = host.path("run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.173.02");
        fs::remove_file(&library).unwrap();
        mkfifo(&library, Mode::S_IRWXU).unwrap();
        let why = query().await;
        assert!(why.ends_with("libnvidia-ml.so.580.173.02: it is a FIFO"), "chroot {chroot}: {why}");
    }
}

#[test]
fn gkes_library_is_loaded_from_the_root_with_its_devices() {
    let host = Host::new();
    host.write("home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.535.309.01", "");
    let target = target(&host, true, "535.309.01").unwrap();
    assert_eq!(target.chroot.as_deref(), Some(host.root().as_path()));
    assert_eq!(target.library, Path::new("/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.535.309.01"));
}

#[test]
fn without_a_module_and_its_library_there_is_nothing_to_query() {
    let host = Host::new();
    host.write("usr/lib64/libnvidia-ml.so.535.309.01", "");
    let libraries = all_libraries(&host.root(), None).unwrap();
    assert_eq!(Target::choose(&host.root(), true, "boot", None, &libraries), Err(None));
    let why = Target::choose(&host.root(), true, "boot", Some("580.173.02"), &libraries).unwrap_err().unwrap();
    assert!(why.contains("580.173.02"), "{why}");
}

#[tokio::test]
async fn a_replaced_driver_gets_its_own_child_and_the_old_is_released() {
    let host = Host::new();
    host.install(HOST_ROOT, "580.173.02", &GPUS);
    let mut supervisor = Supervisor::new(probe(), patient());
    inventory(look(&mut supervisor, target(&host, false, "580.173.02"), Instant::now()).await);
    host.install(CONTAINER_ROOT, "595.91.07", &GPUS[..1]);
    let new = inventory(look(&mut supervisor, target(&host, false, "595.91.07"), Instant::now()).await);
    assert_eq!((new.driver_version.as_str(), uuids(&new)), ("595.91.07", vec!["GPU-six"]));
    assert!(!host.is_held(HOST_ROOT));
    assert!(host.is_held(CONTAINER_ROOT));
    assert_eq!(look(&mut supervisor, Err(None), Instant::now()).await, NvmlStatus::Absent(None));
    assert!(!host.is_held(CONTAINER_ROOT));
}

#[tokio::test]
async fn another_boot_gets_another_child() {
    let starts = tempfile::NamedTempFile::new().unwrap();
    let child = format!("echo x >>{}; while read line; do echo '{ANSWER}'; done", starts.path().display());
    let mut supervisor = Supervisor::new(script(child), patient());
    for (boot_id, expected) in [("one", 1), ("one", 1), ("two", 2)] {
        let target = Ok(Target { boot_id: boot_id.to_owned(), ..anything() });
        inventory(look(&mut supervisor, target, Instant::now()).await);
        assert_eq!(fs::read_to_string(starts.path()).unwrap().lines().count(), expected, "{boot_id}");
    }
}

#[tokio::test]
async fn a_hanging_child_is_killed_and_another_queried_after_a_pause() {
    let mut asked = Asked::new(limits(Duration::from_secs(2)));
    asked.inventory().await;
    asked.host.serve(CONTAINER_ROOT, &GPUS, true);
    let why = failure(asked.after(0).await);
    assert!(why.contains("no answer within 2 s"), "{why}");
    assert!(!asked.host.is_held(CONTAINER_ROOT));
    asked.host.serve(CONTAINER_ROOT, &GPUS, false);
    assert_eq!(failure(asked.after(59).await), why);
    assert!(!asked.host.is_held(CONTAINER_ROOT));
    inventory(asked.after(60).await);
}

#[tokio::test]
async fn the_end_of_a_child_is_reported_with_its_cause() {
    for (program, expected) in [
        ("read line; kill -SEGV $$", "signal 11 (SIGSEGV)"),
        ("read line; exit 3", "exit code 3"),
        ("read line; echo nonsense; read line", "cannot parse"),
        ("read line; tr '\\0' a < /dev/zero", "longer than 4194304 bytes"),
        ("read line; echo '{\"failed\":\"no driver\"}'; read line", "no driver"),
        ("exec 1>&-; read line; exec sleep 1000", "closed its output"),
    ] {
        let short = Limits { kill: Duration::from_millis(500), ..patient() };
        let mut supervisor = Supervisor::new(script(program), short);
        let why = failure(look(&mut supervisor, Ok(anything()), Instant::now()).await);
        assert!(why.contains(expected), "{program}: {why}");
    }
    let missing: ChildCommand = Box::new(|_, _| Command::new("/no/such/program"));
    let why = failure(look(&mut Supervisor::new(missing, patient()), Ok(anything()), Instant::now()).await);
    assert!(why.contains("cannot start"), "{why}");
}

#[tokio::test]
async fn an_nvml_that_fails_is_queried_again_later_or_after_a_release() {
    for (is_released, seconds) in [(true, 0), (false, 60)] {
        let mut asked = Asked::new(patient());
        fs::remove_file(asked.host.path("run/nvidia/driver/dev/nvidiactl")).unwrap();
        let why = failure(asked.after(0).await);
        assert!(why.contains("driver"), "{why}");
        asked.host.write("run/nvidia/driver/dev/nvidiactl", "");
        if is_released {
            asked.supervisor.release().await.unwrap();
        }
        // By a new process: a library that failed once is not asked again.
        inventory(asked.after(seconds).await);
    }
}

#[tokio::test]
async fn a_dropped_query_leaves_a_child_that_the_next_query_ends() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    // The first child hangs; every other one answers.
    let child = format!(
        "echo $$ >>{pids}; if [ $(wc -l <{pids}) = 1 ]; then exec sleep 1000; fi; while read line; do echo '{ANSWER}'; done",
        pids = pids.display()
    );
    let mut supervisor = Supervisor::new(script(child), patient());
    let dropped = tokio::select! {
        look = look(&mut supervisor, Ok(anything()), Instant::now()) => Some(look),
        () = exists(&pids) => None,
    };
    assert_eq!(dropped, None);
    inventory(look(&mut supervisor, Ok(anything()), Instant::now()).await);
    let pids = fs::read_to_string(pids).unwrap();
    assert!(is_gone(pids.lines().next().unwrap()));
}

#[tokio::test]
async fn a_child_that_ignores_the_end_of_its_input_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let pid = directory.path().join("pid");
    let child = format!("echo $$ >{}; read line; echo '{ANSWER}'; exec sleep 1000", pid.display());
    let mut supervisor = Supervisor::new(script(child), patient());
    inventory(look(&mut supervisor, Ok(anything()), Instant::now()).await);
    let pid = fs::read_to_string(pid).unwrap();
    assert!(!is_gone(pid.trim()));
    supervisor.end().await.unwrap();
    assert!(is_gone(pid.trim()));
}

#[tokio::test]
async fn a_child_dies_with_a_killed_probe() {
    let host = Host::new();
    host.install(CONTAINER_ROOT, "580.173.02", &GPUS);
    let library = target(&host, false, "580.173.02").unwrap().library;
    // The shell takes the probe's place. Its child's input stays open, so that only the shell's death can end the child.
    let parent = std::process::Command::new("/bin/sh")
        .arg("-c")
        .arg("exec 3<&0; \"$0\" nvml-child --parent $$ --host-root \"$1\" --library \"$2\" <&3 & echo $!; wait")
        .arg(PROBE)
        .arg(host.path(""))
        .arg(library)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut parent = Process(parent);
    let mut input = parent.0.stdin.take().unwrap();
    let mut lines = BufReader::new(parent.0.stdout.take().unwrap()).lines();
    let child = lines.next().unwrap().unwrap();
    std::io::Write::write_all(&mut input, b"[]\n").unwrap();
    assert!(lines.next().unwrap().unwrap().contains("GPU-six"));
    kill(Pid::from_raw(i32::try_from(parent.0.id()).unwrap()), Signal::SIGKILL).unwrap();
    parent.0.wait().unwrap();
    // The child's threads end one by one, and the last one releases the driver.
    let free = async {
        gone(&child).await;
        while host.is_held(CONTAINER_ROOT) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), free).await.unwrap();
}

/// In a root with another C library, only what is already loaded can be relied on.
#[cfg(target_env = "gnu")]
#[test]
fn what_nvml_needs_of_the_c_library_is_loaded_with_the_probe() {
    let mut hold = Process(std::process::Command::new(PROBE).arg("hold").stderr(Stdio::null()).spawn().unwrap());
    hold.listens();
    let maps = fs::read_to_string(format!("/proc/{}/maps", hold.0.id())).unwrap();
    for library in ["libm.so", "libdl.so", "libpthread.so", "librt.so"] {
        assert!(maps.contains(library), "{library} is not loaded");
    }
}

#[test]
fn a_child_of_another_parent_does_not_start() {
    let child = std::process::Command::new(PROBE)
        .args(["nvml-child", "--parent", "1", "--library", "/no/such/library"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!child.status.success());
    assert!(String::from_utf8_lossy(&child.stderr).contains("parent"));
}

/// Returns whether the process has ended, including zombies.
fn is_gone(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}

async fn gone(pid: &str) {
    while !is_gone(pid) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn exists(path: &Path) {
    while !fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n')) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
