//! The processes of the host, from the `/proc` below its root: a mount of the host's process namespace, which lists every process of
//! the machine, those of containers too.

use std::io;

use crate::root::{HostRoot, present};

/// The kernel truncates the name of a process to this many bytes.
const MAX_NAME: usize = 15;
/// The most that is read of a command line.
pub const MAX_COMMAND_LINE: u64 = 64 * 1024;

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

/// Returns the command lines of the host's daemons of a name, each argument ended by a zero byte: processes of root that the host's first
/// process has started, or a daemon that `is_parent` accepts by its name. A container's process of that name is none.
pub fn daemons(host: &HostRoot, name: &str, is_parent: impl Fn(&str) -> bool) -> impl Iterator<Item = Vec<u8>> {
    let comm = |pid: u32| host.read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let parent = |pid: u32| Status::of(host, pid).filter(|status| status.is_root).map(|status| status.parent);
    let is_of_host = move |parent_of: u32| match parent(parent_of) {
        Some(1) => true,
        Some(by) => is_parent(&comm(by)) && parent(by) == Some(1),
        None => false,
    };
    let found = pids(host).into_iter().flatten().filter(move |pid| comm(*pid) == name && is_of_host(*pid));
    // One that is ending has no command line.
    found
        .filter_map(|pid| host.bytes(format!("/proc/{pid}/cmdline"), MAX_COMMAND_LINE).ok())
        .filter(|line| !line.is_empty())
}

/// Returns those flags of a command line that have one of these names, with their values: a value follows `=`, or is the next argument.
pub fn flags<'n>(command_line: &[u8], names: &[&'n str]) -> Vec<(&'n str, String)> {
    let text = String::from_utf8_lossy(command_line);
    // The first argument is the program.
    let text = text.strip_suffix('\0').unwrap_or(&text);
    let mut arguments = text.split('\0').skip(1).take_while(|argument| *argument != "--");
    let mut found = Vec::new();
    while let Some(argument) = arguments.next() {
        let (flag, value) = argument.split_once('=').map_or((argument, None), |(flag, value)| (flag, Some(value)));
        let flag = flag.strip_prefix("--").or_else(|| flag.strip_prefix('-'));
        let Some(name) = names.iter().find(|name| flag == Some(**name)) else { continue };
        let Some(value) = value.or_else(|| arguments.next()) else { break };
        found.push((*name, value.to_owned()));
    }
    found
}

/// Returns the value of a flag by any of its names. The last one counts.
pub fn last<'f>(flags: &'f [(&str, String)], names: &[&str]) -> Option<&'f str> {
    flags.iter().rev().find(|(name, _)| names.contains(name)).map(|(_, value)| value.as_str())
}

struct Status {
    parent: u32,
    is_root: bool,
}

impl Status {
    fn of(host: &HostRoot, pid: u32) -> Option<Self> {
        let text = host.read(format!("/proc/{pid}/status")).ok()?;
        let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next());
        Some(Self { parent: field("PPid:")?.parse().ok()?, is_root: field("Uid:") == Some("0") })
    }
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
