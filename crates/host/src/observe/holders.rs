//! The programs that have a device file of the driver open, from the host's `/proc`.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Component, Path},
};

use gpu_operator_crd::report::Holder;

use crate::root::{HostRoot, present};

/// The programs that hold the GPUs are not known.
#[derive(Debug, thiserror::Error)]
pub enum HoldersError {
    #[error("cannot list the host's processes")]
    Processes(#[source] io::Error),
    #[error("cannot read process {0} of the host")]
    Process(u32, #[source] io::Error),
}

/// Returns the programs that have a device file of the driver open, without those of the probe's own container: one for each pod,
/// those outside of pods first.
pub fn holders(host: &HostRoot) -> Result<Vec<Holder>, HoldersError> {
    let own = host.read_if_present("/proc/self/cgroup").map_err(HoldersError::Processes)?;
    let mut found = BTreeSet::new();
    let mut unreadable = None;
    for name in host.names("/proc").map_err(HoldersError::Processes)? {
        let Ok(pid) = name.parse::<u32>() else { continue };
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

/// Returns whether the path of an open file is that of a device file of the driver, such as `/dev/nvidia0` or
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
    use std::os::unix::fs::symlink;

    use super::*;

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
