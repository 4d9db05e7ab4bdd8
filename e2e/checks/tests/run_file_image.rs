//! The installer of images/run-file, with stand-ins for the `.run` file, for the programs that manage kernel modules and for
//! those that download files: what it does, in which order, and what it does not repeat. The behavior of a real `.run` file
//! is not tested here.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{self, Command},
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../images/run-file/install.sh");
/// The token of a signed URL.
const CANARY: &str = "canary-in-the-url";
const HOST_DIR: &str = "/opt/nvidia";

/// The stand-ins, each a shell script. All of them log their calls.
const PROGRAMS: [(&str, &str); 9] = [
    ("uname", r#"cat "$NODE/kernel""#),
    (
        "curl",
        r#"[ ! -e "$NODE/no-network" ] || { echo "curl: (6) Could not resolve host: mirror.example.com" >&2; exit 6; }
           while [ "$1" != --output ]; do shift; done; cp "$NODE/driver.run" "$2""#,
    ),
    (
        "apt-get",
        r#"[ "$1" = update ] || [ ! -e "$NODE/no-headers" ] || { echo "E: Unable to locate package $4" >&2; exit 100; }"#,
    ),
    // The version of a loaded module is the content of its file.
    (
        "insmod",
        r#"name=$(basename "$1" .ko | tr - _); mkdir -p "$SYS_DIR/module/$name"; cp "$1" "$SYS_DIR/module/$name/version""#,
    ),
    (
        "rmmod",
        r#"[ ! -e "$NODE/busy" ] || { echo "rmmod: ERROR: Module $1 is in use" >&2; exit 1; }
           rm -r "$SYS_DIR/module/$1""#,
    ),
    ("modprobe", ""),
    ("mknod", r#"echo "$4 $5 $6" > "$3""#),
    ("ldconfig", ""),
    ("sleep", ""),
];

/// The stand-in for NVIDIA's installer, after a line with its version. It creates the files on which the script depends.
const RUN_FILE: &str = r#"
echo "driver.run $*" >> "$NODE/log"; echo "$0" > "$NODE/executed"
for option; do case $option in
    --utility-prefix=*) dir=${option#*=} ;;
    --kernel-install-path=*) drivers=${option#*=} ;;
esac; done
[ ! -e "$NODE/no-compiler" ] || { echo "ERROR: gcc-12: not found" > "$dir/nvidia-installer.log"; exit 1; }
[ ! -e "$NODE/installer.log" ] || { cp "$NODE/installer.log" "$dir/nvidia-installer.log"; exit 1; }
echo "$VERSION" > "$dir/lib64/libnvidia-ml.so.$VERSION"
for module in nvidia nvidia-uvm nvidia-modeset nvidia-drm; do echo "$VERSION" > "$drivers/$module.ko"; done
printf '#!/bin/sh\necho "nvidia-smi $LD_LIBRARY_PATH" >> "$NODE/log"; [ ! -e "$NODE/unhealthy" ]\n' > "$dir/bin/nvidia-smi"
chmod 755 "$dir/bin/nvidia-smi"
mkdir -p "$FIRMWARE_DIR/nvidia/$VERSION"; echo gsp > "$FIRMWARE_DIR/nvidia/$VERSION/gsp.bin"
"#;

/// A node in a folder.
struct Node(PathBuf);

impl Node {
    fn new(name: &str) -> Self {
        let node = Self(env::temp_dir().join(format!("run-file-{}-{name}", process::id())));
        for folder in ["bin", "install", "root/etc", "dev", "sys/module/firmware_class/parameters", "proc", "tmp"] {
            fs::create_dir_all(node.path(folder)).expect("a folder");
        }
        for (name, body) in PROGRAMS {
            node.program(name, &format!("#!/bin/sh\nset -e\necho \"{name} $*\" >> \"$NODE/log\"\n{body}\n"));
        }
        node.write("kernel", "6.8.0-60-generic\n");
        node.write("sys/module/firmware_class/parameters/path", "\n");
        node.write("proc/devices", "Character devices:\n195 nvidia\n511 nvidia-uvm\n");
        for minor in 0..2 {
            let gpu = format!("proc/driver/nvidia/gpus/0000:0{minor}:00.0");
            fs::create_dir_all(node.path(&gpu)).expect("a folder");
            node.write(&format!("{gpu}/information"), &format!("Model: \t\t x\nDevice Minor: \t {minor}\n"));
        }
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).expect("a file");
    }

    fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("removed");
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, text).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Writes the `.run` file of a version, and returns its checksum.
    fn file(&self, path: &str, version: &str) -> String {
        self.write(path, &format!("VERSION={version}{RUN_FILE}"));
        let output = Command::new("sha256sum").arg(self.path(path)).output().expect("sha256sum");
        String::from_utf8(output.stdout).expect("text").split(' ').next().expect("a checksum").to_owned()
    }

    /// Runs the script for the `known` version, if any, with a `.run` file of `version` on the server.
    fn run_as(&self, known: Option<&str>, version: &str) -> Result<Vec<String>, String> {
        let sha256 = self.file("driver.run", version);
        self.run_wanting(&sha256, known, version)
    }

    /// Runs the script for a file with this checksum. Returns the first two words of each call.
    fn run_wanting(&self, sha256: &str, known: Option<&str>, version: &str) -> Result<Vec<String>, String> {
        let _ = fs::remove_file(self.path("log"));
        let mut command = Command::new("sh");
        command.arg(SCRIPT).arg("--kernel-module-type=open").env_clear();
        let path = format!("{}:{}", self.path("bin").display(), env::var("PATH").expect("PATH"));
        for (name, folder) in [
            ("NODE", ""),
            ("NVIDIA_INSTALL_DIR_CONTAINER", "install"),
            ("ROOT_MOUNT_DIR", "root"),
            ("DEV_DIR", "dev"),
            ("PROC_DIR", "proc"),
            ("SYS_DIR", "sys"),
            ("FIRMWARE_DIR", "firmware"),
            ("TMPDIR", "tmp"),
        ] {
            command.env(name, self.path(folder));
        }
        let url = format!("https://mirror.example.com/NVIDIA-Linux-x86_64-{version}.run?token={CANARY}");
        command.envs([("PATH", path.as_str()), ("NVIDIA_INSTALL_DIR_HOST", HOST_DIR)]);
        command.envs([("NVIDIA_DRIVER_DOWNLOAD_URL", url.as_str()), ("NVIDIA_DRIVER_SHA256", sha256)]);
        command.envs(known.map(|known| ("NVIDIA_DRIVER_VERSION", known)));
        let output = command.output().expect("sh");
        let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
        assert!(!said.contains(CANARY), "the log shows the token of the URL: {said}");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let log = self.read("log");
        let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let programs = ["uname", "modprobe", "mknod", "ldconfig", "nvidia-smi"];
        let relevant = |line: &&str| !programs.iter().any(|program| line.starts_with(program));
        Ok(log.lines().filter(relevant).map(|line| words(line).replace(&self.0.display().to_string(), "")).collect())
    }

    fn run(&self, version: &str) -> Result<Vec<String>, String> {
        self.run_as(Some(version), version)
    }

    /// Reboots the node: no module is loaded, and there are no device nodes.
    fn boot(&self) {
        for name in ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"] {
            self.remove(&format!("sys/module/{name}"));
        }
        self.remove("dev");
        fs::create_dir_all(self.path("dev")).expect("a folder");
        self.write("sys/module/firmware_class/parameters/path", "\n");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const LOADS: [&str; 4] = [
    "insmod /install/drivers/nvidia.ko",
    "insmod /install/drivers/nvidia-uvm.ko",
    "insmod /install/drivers/nvidia-modeset.ko",
    "insmod /install/drivers/nvidia-drm.ko",
];
const UNLOADS: [&str; 4] = ["rmmod nvidia_drm", "rmmod nvidia_modeset", "rmmod nvidia_uvm", "rmmod nvidia"];
const BUILDS: [&str; 3] = ["apt-get update", "apt-get install", "driver.run --silent"];

fn calls(parts: &[&[&str]]) -> Vec<String> {
    parts.concat().into_iter().map(str::to_owned).collect()
}

#[test]
fn the_driver_is_downloaded_built_installed_loaded_and_checked() {
    assert!(Path::new(SCRIPT).exists());
    let node = Node::new("install");
    assert_eq!(node.run("535.309.01"), Ok(calls(&[&["curl --fail"], &BUILDS, &LOADS])));
    let log = node.read("log");
    let run = log.lines().find(|line| line.starts_with("driver.run")).expect("the .run file was run");
    assert!(run.ends_with(" --kernel-module-type=open"), "its arguments come last: {run}");
    assert!(log.contains("apt-get install --yes --no-install-recommends linux-headers-6.8.0-60-generic"), "{log}");
    let library = format!("nvidia-smi {}", node.path("install/lib64").display());
    assert!(log.contains(&library) && log.contains(&format!("ldconfig -r {}", node.path("root").display())), "{log}");
    for (device, numbers) in [
        ("nvidiactl", "c 195 255"),
        ("nvidia-modeset", "c 195 254"),
        ("nvidia0", "c 195 0"),
        ("nvidia1", "c 195 1"),
        ("nvidia-uvm", "c 511 0"),
        ("nvidia-uvm-tools", "c 511 1"),
    ] {
        assert_eq!(node.read(&format!("dev/{device}")).trim(), numbers, "{device}");
    }
    assert!(!node.has("dev/nvidia2"));
    assert_eq!(node.read("root/etc/ld.so.conf.d/nvidia-run-file.conf"), format!("{HOST_DIR}/lib64\n"));
    assert_eq!(node.read("sys/module/firmware_class/parameters/path"), format!("{HOST_DIR}/firmware"));
    assert!(node.has("install/firmware/nvidia/535.309.01/gsp.bin"));
}

#[test]
fn completed_steps_are_not_repeated() {
    let node = Node::new("again");
    node.run("535.309.01").expect("installed");
    assert_eq!(node.run("535.309.01"), Ok(calls(&[])), "the driver is loaded");
    // The same applies while the driver is in use.
    node.write("busy", "");
    assert_eq!(node.run("535.309.01"), Ok(calls(&[])));
    node.remove("busy");
    node.boot();
    assert_eq!(node.run("535.309.01"), Ok(calls(&[&LOADS])), "after a reboot the driver is loaded from the cache");
    assert!(node.has("dev/nvidia-uvm"));
    // Another kernel needs other modules, but no second download.
    node.write("kernel", "6.8.0-62-generic\n");
    node.boot();
    assert_eq!(node.run("535.309.01"), Ok(calls(&[&BUILDS, &LOADS])));
}

#[test]
fn another_version_replaces_an_unused_one() {
    let node = Node::new("version");
    node.run("535.309.01").expect("installed");
    node.write("busy", "");
    let said = node.run("580.173.02").expect_err("the driver is in use");
    assert!(said.contains("driver is in use") && said.contains("535.309.01"), "{said}");
    assert!(node.has("install/lib64/libnvidia-ml.so.535.309.01"), "the files of a driver in use are kept");
    node.remove("busy");
    // The first attempt has downloaded the file.
    assert_eq!(node.run("580.173.02"), Ok(calls(&[&UNLOADS, &BUILDS, &LOADS])));
    assert!(!node.has("install/lib64/libnvidia-ml.so.535.309.01"));
    assert_eq!(node.read("sys/module/nvidia/version"), "580.173.02\n");
    let files = fs::read_dir(node.path("install/.run")).expect("a folder").count();
    assert_eq!(files, 1, "the file of the other version is removed");
}

#[test]
fn failures_have_the_recognized_messages_and_leave_no_cache() {
    let node = Node::new("fails");
    for (fault, words) in [
        ("no-network", "Could not resolve host"),
        ("no-headers", "Unable to locate package linux-headers-6.8.0-60-generic"),
        ("no-compiler", "gcc-12: not found"),
    ] {
        node.write(fault, "");
        let said = node.run("535.309.01").expect_err(fault);
        assert!(said.contains(words), "{fault}: {said}");
        assert!(!node.has("install/.cache"), "{fault}");
        node.remove(fault);
    }
    let said = node.run_as(Some("535.309.01"), "470.256.02").expect_err("the file contains another version");
    assert!(said.contains("driver 470.256.02, and 535.309.01 is wanted"), "{said}");
    assert!(!node.has("install/.cache"));
    node.run("535.309.01").expect("without faults, the installation succeeds");
    node.write("unhealthy", "");
    assert!(node.run("535.309.01").expect_err("nvidia-smi fails").contains("nvidia-smi fails with driver 535.309.01"));
}

/// Kubelet keeps the last 2 KiB of a log: the installer's errors are in them, however long its log is.
#[test]
fn the_errors_of_the_run_file_are_printed_last() {
    let node = Node::new("errors");
    let output = "   make[3]: Entering directory '/usr/src/linux-headers-6.8.0-60-generic'\n".repeat(60);
    let echo = "make[2]: *** [Makefile:1925: kernel] Error 2\n".repeat(60);
    let noise = "[   88.000000] usb 1-1: device descriptor read/64, error -71\n".repeat(60);
    let failed =
        "ERROR: Installation has failed.  Please see the file '/usr/local/nvidia/nvidia-installer.log' for details.";
    let compiler = "/tmp/nv/nv-mm.h:88:5: error: too many arguments to function 'get_user_pages'";
    let load = "-> Kernel module load error: Key was rejected by service";
    let bound = "[  201.910514] NVRM: GPU 0000:01:00.0 is already bound to NovaCore.";
    for (log, shown) in [
        (format!("{output}   {compiler}\n   cc1: error: another one\n{echo}{failed}\n"), &[compiler][..]),
        (format!("{load}\n-> Kernel messages:\n{bound}\n{noise}{failed}\n"), &[load, bound]),
    ] {
        node.write("installer.log", &log);
        let said = node.run("535.309.01").expect_err("the .run file fails");
        let (_, end) = said.split_at(said.len().saturating_sub(2048));
        assert!(shown.iter().all(|line| end.contains(&format!("\n{line}\n"))), "{end}");
        assert!(
            end.ends_with("run-file installer: the .run file could not install the driver: see the error above\n"),
            "{end}"
        );
    }
}

#[test]
fn without_a_version_the_driver_is_read_from_the_file() {
    let node = Node::new("unknown");
    assert_eq!(node.run_as(None, "375.26"), Ok(calls(&[&["curl --fail"], &BUILDS, &LOADS])));
    assert_eq!(node.run_as(None, "375.26"), Ok(calls(&[])));
    assert_eq!(
        node.run_as(None, "384.111"),
        Ok(calls(&[&["curl --fail"], &UNLOADS, &BUILDS, &LOADS])),
        "the file differs"
    );
}

#[test]
fn a_file_with_another_checksum_is_never_executed() {
    const PLANTED: &str = "touch \"$NODE/planted\"\n";
    let node = Node::new("checksum");
    node.run("535.309.01").expect("installed");
    let sha256 = node.file("driver.run", "580.173.02");
    let cached = format!("install/.run/{sha256}.run");
    let rejected = |wanted: &str, case: &str| {
        let said = node.run_wanting(wanted, Some("580.173.02"), "580.173.02").expect_err(case);
        assert!(said.contains("checksum mismatch") && said.contains(wanted), "{case}: {said}");
        let log = node.read("log");
        assert!(!log.contains("driver.run") && !log.contains("rmmod"), "{case}: {log}");
        assert_eq!(node.read("sys/module/nvidia/version").trim(), "535.309.01", "{case}: the driver stays loaded");
        assert_eq!(
            fs::read_dir(node.path("install/.run")).expect("a folder").count(),
            0,
            "{case}: the file is removed"
        );
    };
    rejected(&"0".repeat(64), "the policy has another checksum");
    let whole = node.read("driver.run");
    node.write("driver.run", &whole[..whole.len() / 2]);
    rejected(&sha256, "the file is truncated");
    node.write("driver.run", PLANTED);
    rejected(&sha256, "the server has another file");
    // A file in the host's directory is checked like one that was just downloaded.
    node.write(&cached, PLANTED);
    node.write("no-network", "");
    node.run_wanting(&sha256, Some("580.173.02"), "580.173.02").expect_err("there is no file to execute");
    node.remove("no-network");
    node.write(&cached, PLANTED);
    assert_eq!(node.run("580.173.02"), Ok(calls(&[&["curl --fail"], &UNLOADS, &BUILDS, &LOADS])));
    assert!(!node.has("planted"), "another file was executed");
    let executed = node.read("executed");
    assert!(
        executed.starts_with(&*node.path("tmp").to_string_lossy()),
        "others can write to the executed file: {executed}"
    );
    assert!(
        node.run_wanting("", None, "580.173.02").expect_err("no checksum").contains("NVIDIA_DRIVER_SHA256 is not set")
    );
}
