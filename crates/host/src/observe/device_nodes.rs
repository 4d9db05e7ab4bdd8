//! The driver's device files: the nodes that programs open in addition to those of the GPUs, which of them a running driver has
//! and a root lacks, and the programs that have one open, from the host's `/proc`.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Component, Path, PathBuf},
};

use gpu_operator_crd::report::Holder;

use crate::{
    observe::processes,
    root::{HostRoot, present},
};

/// The nodes that every CUDA program opens, on any GPU.
const NEEDED: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];

/// The folder of the MIG capabilities' nodes, below `/dev`.
const CAPS: &str = "nvidia-caps/";

/// The kernel's list of drivers and their major numbers.
const MAJORS: &str = "/proc/devices";

/// The MIG capabilities, each a file with the minor number of its node.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

/// The most folders that are searched: more than the capabilities of sixteen GPUs have.
const MAX_FOLDERS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its path below `/dev`.
    pub name: String,
    pub major: u64,
    pub minor: u64,
    pub mode: u32,
}

/// A MIG capability: the minor number of its node, and the node's mode.
type Capability = (u64, u32);

const OPEN_TO_ALL: u32 = 0o666;

/// Returns the device nodes that programs need and that a driver's root lacks. `own` is this process' own root, whose
/// `/proc` shows the kernel's devices and the MIG capabilities.
pub fn missing(host: &HostRoot, own: &HostRoot, root: &str) -> Vec<String> {
    let is_there = |name: &String| {
        let node = host.metadata(format!("{root}/dev/{name}"));
        node.is_ok_and(|node| node.file_type().is_char_device())
    };
    let of_mig = wanted_from(&own.read(MAJORS).unwrap_or_default(), &capabilities(own));
    let of_mig = of_mig.into_iter().map(|device| device.name).filter(|name| name.starts_with(CAPS));
    NEEDED.map(str::to_owned).into_iter().chain(of_mig).filter(|name| !is_there(name)).collect()
}

/// Returns the devices that a running driver has, from the kernel's list of majors and the minors of the MIG
/// capabilities.
fn wanted_from(majors: &str, capabilities: &[Capability]) -> Vec<Device> {
    let number = |name: &str| {
        let lines = majors.lines().take_while(|line| !line.starts_with("Block"));
        lines.filter_map(|line| line.trim().split_once(' ')).find(|(_, of)| *of == name)?.0.parse::<u64>().ok()
    };
    let device = |name: &str, major, minor| Device { name: name.to_owned(), major, minor, mode: OPEN_TO_ALL };
    let mut devices = Vec::new();
    if let Some(uvm) = number("nvidia-uvm") {
        devices.extend([device("nvidia-uvm", uvm, 0), device("nvidia-uvm-tools", uvm, 1)]);
    }
    // Drivers before 560 are listed under the name of their frontend.
    if let Some(nvidia) = number("nvidia").or_else(|| number("nvidia-frontend")) {
        devices.extend([device("nvidiactl", nvidia, 255), device("nvidia-modeset", nvidia, 254)]);
    }
    if let Some(caps) = number("nvidia-caps") {
        let of_mig =
            |(cap, mode): &Capability| Device { mode: *mode, ..device(&format!("{CAPS}nvidia-cap{cap}"), caps, *cap) };
        devices.extend(capabilities.iter().map(of_mig));
    }
    devices
}

/// Returns the MIG capabilities, from the driver's files with `DeviceFileMinor: N` and `DeviceFileMode: N` lines.
fn capabilities(own: &HostRoot) -> Vec<Capability> {
    let mut folders = vec![PathBuf::from(CAPABILITIES)];
    let mut minors = Vec::new();
    let mut seen = 0;
    while let Some(folder) = folders.pop().filter(|_| seen < MAX_FOLDERS) {
        seen += 1;
        for name in own.names(&folder).unwrap_or_default() {
            let path = folder.join(name);
            match own.metadata(&path) {
                Ok(found) if found.is_dir() => folders.push(path),
                Ok(_) => minors.extend(own.read(&path).ok().as_deref().and_then(capability)),
                Err(_) => {}
            }
        }
    }
    minors.sort_unstable();
    minors.dedup();
    minors
}

fn capability(text: &str) -> Option<Capability> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    let mode = value("DeviceFileMode:").and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o444);
    Some((value("DeviceFileMinor:")?, mode))
}

/// Returns the devices that a running driver has. `host` shows the kernel's devices, and `own` the MIG capabilities.
pub fn wanted(host: &HostRoot, own: &HostRoot) -> Vec<Device> {
    wanted_from(&host.read(MAJORS).unwrap_or_default(), &capabilities(own))
}

#[derive(Debug, thiserror::Error)]
pub enum HoldersError {
    #[error("cannot list the host's processes")]
    Processes(#[source] io::Error),
    #[error("cannot read process {0} of the host")]
    Process(u32, #[source] io::Error),
}

/// Returns the programs that have a device file of the driver open, except the probe's own container: one for each pod,
/// programs outside of pods first.
pub fn holders(host: &HostRoot) -> Result<Vec<Holder>, HoldersError> {
    let own = host.read_if_present("/proc/self/cgroup").map_err(HoldersError::Processes)?;
    let mut found = BTreeSet::new();
    let mut unreadable = None;
    for pid in processes::pids(host).map_err(HoldersError::Processes)? {
        match holder(host, pid, own.as_deref()) {
            Ok(holder) => found.extend(holder),
            Err(error) => unreadable = Some(HoldersError::Process(pid, error)),
        }
    }
    if let Some(error) = unreadable.filter(|_| found.is_empty()) {
        return Err(error);
    }
    // Sorted by pod: those without a pod are first.
    let mut found: Vec<_> = found.into_iter().collect();
    found.dedup_by(|other, first| other.pod_uid.is_some() && other.pod_uid == first.pod_uid);
    Ok(found)
}

/// Returns a process that has a device file of the driver open, unless it is in the probe's own control group.
fn holder(host: &HostRoot, pid: u32, own: Option<&str>) -> io::Result<Option<Holder>> {
    if !has_device_open(host, pid)? {
        return Ok(None);
    }
    let cgroup = of_process(host.read_if_present(format!("/proc/{pid}/cgroup")))?;
    let process = of_process(host.read_if_present(format!("/proc/{pid}/comm")))?;
    // A process that has ended meanwhile holds nothing.
    let (Some(cgroup), Some(process)) = (cgroup, process) else { return Ok(None) };
    let pod_uid = pod_uid(&cgroup);
    let holder = Holder { pid: pod_uid.is_none().then_some(pid), pod_uid, process };
    Ok((own != Some(cgroup.as_str())).then_some(holder))
}

/// Returns whether a process has a device file of the driver open, or false if it has ended.
fn has_device_open(host: &HostRoot, pid: u32) -> io::Result<bool> {
    // The links are not followed: they lead to files of other mount namespaces.
    let Some(directory) = of_process(present(host.resolve(format!("/proc/{pid}/fd"))))? else { return Ok(false) };
    let Some(entries) = of_process(present(fs::read_dir(directory)))? else { return Ok(false) };
    for entry in entries {
        let Some(entry) = of_process(present(entry))? else { return Ok(false) };
        let target = of_process(present(fs::read_link(entry.path())))?;
        if target.is_some_and(|target| is_device(&target)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Turns the errors of reading a process that has ended into `None`.
fn of_process<T>(result: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(None),
        result => result,
    }
}

/// Whether an open file is a device file of the driver, such as `/dev/nvidia0` or
/// `/run/nvidia/driver/dev/nvidia-caps/nvidia-cap1`.
fn is_device(path: &Path) -> bool {
    let mut parts = path.components().skip_while(|part| *part != Component::Normal("dev".as_ref())).skip(1);
    matches!(parts.next(), Some(Component::Normal(name)) if name.to_string_lossy().starts_with("nvidia"))
}

/// Returns the UID of the pod in the control groups of a process, as the drivers `cgroupfs` and `systemd` write it:
/// `/kubepods/burstable/pod<UID>/…`, or `…/kubepods-burstable-pod<UID with underscores>.slice/…`.
fn pod_uid(cgroups: &str) -> Option<String> {
    let of_group = |group: &str| {
        let group = group.strip_suffix(".slice").unwrap_or(group);
        let uid = group.strip_prefix("pod").or_else(|| Some(group.rsplit_once("-pod")?.1))?;
        let is_uid = uid.len() >= 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || b"-_".contains(&byte));
        is_uid.then(|| uid.replace('_', "-"))
    };
    cgroups.split(['/', '\n']).find_map(of_group)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use gpu_operator_crd::report::CONTAINER_ROOT;

    use super::*;

    const OF_580: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n506 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n  7 nvidia-uvm\n";

    fn listed(majors: &str, capabilities: &[Capability]) -> Vec<String> {
        wanted_from(majors, capabilities).iter().map(|d| format!("{} {}:{}", d.name, d.major, d.minor)).collect()
    }

    #[test]
    fn device_numbers_come_from_the_kernel() {
        assert_eq!(
            listed(OF_580, &[(1, 0o400), (12, 0o444)]),
            [
                "nvidia-uvm 510:0",
                "nvidia-uvm-tools 510:1",
                "nvidiactl 195:255",
                "nvidia-modeset 195:254",
                "nvidia-caps/nvidia-cap1 506:1",
                "nvidia-caps/nvidia-cap12 506:12",
            ]
        );
        let old = "Character devices:\n195 nvidia-frontend\n509 nvidia-uvm\n";
        assert_eq!(
            listed(old, &[(3, 0o444)]),
            ["nvidia-uvm 509:0", "nvidia-uvm-tools 509:1", "nvidiactl 195:255", "nvidia-modeset 195:254"]
        );
        assert!(listed("Character devices:\n  1 mem\n", &[]).is_empty(), "no driver");
    }

    #[test]
    fn mig_capabilities_are_found_at_any_depth() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("proc/driver/nvidia/capabilities");
        for (file, minor) in [("mig/config", 1), ("gpu0/mig/gi1/access", 12), ("gpu0/mig/gi1/ci0/access", 13)] {
            let path = below.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")).unwrap();
        }
        fs::write(below.join("nonsense"), "DeviceFileMinor: x").unwrap();
        assert_eq!(capabilities(&HostRoot::new(folder.path())), [(1, 0o444), (12, 0o444), (13, 0o444)]);
    }

    #[test]
    fn a_plain_file_is_not_a_device_node() {
        let folder = tempfile::tempdir().unwrap();
        let dev = folder.path().join("run/nvidia/driver/dev");
        fs::create_dir_all(&dev).unwrap();
        fs::write(dev.join("nvidiactl"), "").unwrap();
        let (host, nothing) = (HostRoot::new(folder.path()), HostRoot::new(folder.path().join("none")));
        assert_eq!(missing(&host, &nothing, CONTAINER_ROOT), NEEDED);
    }

    #[test]
    fn missing_mig_nodes_are_reported_if_the_driver_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        for (file, text) in [
            ("proc/devices", OF_580),
            ("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\n"),
        ] {
            fs::create_dir_all(own.join(file).parent().unwrap()).unwrap();
            fs::write(own.join(file), text).unwrap();
        }
        let missing = missing(&HostRoot::new(folder.path()), &HostRoot::new(&own), CONTAINER_ROOT);
        assert_eq!(missing.last().map(String::as_str), Some("nvidia-caps/nvidia-cap1"));
    }

    const UID: &str = "3f1c9f2e-0d0a-4f6b-9d3c-1a2b3c4d5e6f";

    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            host.process("1", "systemd", "0::/../../init.scope", &["/dev/null", "socket:[12]"]);
            host
        }

        fn process(&self, pid: &str, comm: &str, cgroup: &str, open: &[&str]) {
            let directory = self.0.path().join("proc").join(pid);
            fs::create_dir_all(directory.join("fd")).unwrap();
            fs::write(directory.join("comm"), format!("{comm}\n")).unwrap();
            fs::write(directory.join("cgroup"), format!("{cgroup}\n")).unwrap();
            for (fd, target) in open.iter().enumerate() {
                symlink(target, directory.join(format!("fd/{fd}"))).unwrap();
            }
        }

        fn holders(&self) -> Vec<Holder> {
            holders(&HostRoot::new(self.0.path())).unwrap()
        }
    }

    fn of_pod(process: &str) -> Holder {
        Holder { pod_uid: Some(UID.into()), pid: None, process: process.into() }
    }

    #[test]
    fn processes_of_the_host_come_first_and_a_pod_is_listed_once() {
        let host = Host::new();
        let scope = format!("0::/../../kubepods-besteffort-pod{}.slice/cri-containerd-1.scope", UID.replace('-', "_"));
        host.process("20", "worker", &scope, &["/dev/nvidiactl"]);
        host.process("21", "exporter", &scope, &["/dev/null", "/dev/nvidia0"]);
        host.process("300", "nvidia-smi", "0::/../../user.slice", &["/dev/nvidia-uvm"]);
        host.process("31", "Xorg", "0::/../../user.slice", &["/dev/nvidia-modeset"]);
        let of_host = |pid, process: &str| Holder { pod_uid: None, pid: Some(pid), process: process.into() };
        assert_eq!(host.holders(), [of_host(31, "Xorg"), of_host(300, "nvidia-smi"), of_pod("exporter")]);
    }

    #[test]
    fn the_probes_own_processes_are_left_out() {
        let host = Host::new();
        host.process("7", "nvml-probe", "0::/", &["/dev/nvidia0"]);
        host.process("8", "nvml-probe", "0::/", &["/dev/nvidia0"]);
        symlink("7", host.0.path().join("proc/self")).unwrap();
        assert_eq!(host.holders(), []);
    }

    #[test]
    fn a_process_that_cannot_be_read_hides_no_other() {
        let host = Host::new();
        fs::create_dir_all(host.0.path().join("proc/5")).unwrap();
        symlink("fd", host.0.path().join("proc/5/fd")).unwrap();
        let error = holders(&HostRoot::new(host.0.path())).unwrap_err();
        assert_eq!(error.to_string(), "cannot read process 5 of the host");
        host.process("31", "Xorg", "0::/../../user.slice", &["/dev/nvidia-modeset"]);
        assert_eq!(host.holders(), [Holder { pod_uid: None, pid: Some(31), process: "Xorg".into() }]);
    }

    #[test]
    fn the_pod_is_found_in_cgroups_of_both_drivers_and_versions() {
        let systemd = UID.replace('-', "_");
        for cgroup in [
            format!("0::/../../pod{UID}/0123"),
            format!("12:devices:/kubepods/burstable/pod{UID}/0123\n11:cpu:/kubepods/burstable/pod{UID}/0123"),
            format!("0::/../../kubepods-pod{systemd}.slice/cri-containerd-0123.scope"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice/crio-0123.scope"
            ),
        ] {
            assert_eq!(pod_uid(&cgroup).as_deref(), Some(UID), "{cgroup}");
        }
        for cgroup in ["0::/", "0::/kubepods.slice/kubepods-burstable.slice", "0::/machine.slice/libpod-0123.scope"] {
            assert_eq!(pod_uid(cgroup), None, "{cgroup}");
        }
    }

    #[test]
    fn only_device_files_of_the_driver_count() {
        for (path, is) in [
            ("/dev/nvidia0", true),
            ("/dev/nvidiactl", true),
            ("/dev/nvidia0 (deleted)", true),
            ("/run/nvidia/driver/dev/nvidia-caps/nvidia-cap1", true),
            ("/dev/null", false),
            ("/dev/dri/card0", false),
            ("/var/lib/nvidia0", false),
            ("anon_inode:[eventpoll]", false),
        ] {
            assert_eq!(is_device(Path::new(path)), is, "{path}");
        }
    }
}
