//! The processes of the host, from the `/proc` below its root: a mount of the host's process namespace, which lists every process of
//! the machine, those of containers too.

use std::io;

use crate::root::{HostRoot, present};

/// The kernel truncates the name of a process to this many bytes.
const MAX_NAME: usize = 15;

/// Returns the ids of all processes.
pub fn pids(host: &HostRoot) -> io::Result<impl Iterator<Item = u32>> {
    Ok(host.names("/proc")?.into_iter().filter_map(|name| name.parse().ok()))
}

/// Returns whether a process with this name runs. One that ends while it is read does not.
pub fn runs(host: &HostRoot, name: &str) -> io::Result<bool> {
    let name = &name.as_bytes()[..name.len().min(MAX_NAME)];
    for pid in pids(host)? {
        let found = host.bytes(format!("/proc/{pid}/comm"), MAX_NAME as u64);
        match present(found) {
            Ok(Some(found)) if found.trim_ascii_end() == name => return Ok(true),
            Err(error) if error.raw_os_error() != Some(nix::libc::ESRCH) => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_process_is_found_by_its_truncated_name() {
        let folder = tempfile::tempdir().unwrap();
        let host = HostRoot::new(folder.path());
        let process = |pid: &str, comm: &str| {
            fs::create_dir_all(folder.path().join("proc").join(pid)).unwrap();
            fs::write(folder.path().join("proc").join(pid).join("comm"), format!("{comm}\n")).unwrap();
        };
        process("1", "systemd");
        process("30", "nv-fabric");
        process("self", "nv-fabricmanage");
        // It has ended.
        fs::create_dir_all(folder.path().join("proc/31")).unwrap();
        assert!(!runs(&host, "nv-fabricmanager").unwrap());
        process("400", "nv-fabricmanage");
        assert!(runs(&host, "nv-fabricmanager").unwrap());
        assert!(runs(&host, "systemd").unwrap() && !runs(&host, "system").unwrap());
    }
}
