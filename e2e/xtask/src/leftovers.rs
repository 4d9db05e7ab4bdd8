//! What a cluster can leave behind on the machine outside its folder: processes, mounts, control groups and network devices.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};
use cluster::node::cgroups;
use harness::paths::Paths;

/// The machine's network devices before the cluster starts.
pub(super) struct DevicesBefore(BTreeSet<String>);

impl DevicesBefore {
    pub(super) fn list() -> Result<Self> {
        Ok(Self(network_devices()?))
    }

    /// Fails if a removed cluster has left anything behind.
    pub(super) fn ensure_nothing_left(&self, paths: &Paths) -> Result<()> {
        let mut left: Vec<String> =
            network_devices()?.difference(&self.0).map(|link| format!("network device {link}")).collect();
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
        left.extend(mounts_under(&mounts, &paths.base).into_iter().map(|place| format!("mount {place}")));
        left.extend(cgroups::existing(paths).into_iter().map(|group| format!("control group {}", group.display())));
        left.extend(processes_of(&paths.base).into_iter().map(|process| format!("process {process}")));
        ensure!(left.is_empty(), "the cluster has left behind: {}", left.join(", "));
        Ok(())
    }
}

fn network_devices() -> Result<BTreeSet<String>> {
    let entries = fs::read_dir("/sys/class/net").context("/sys/class/net")?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Returns the mount points under a folder, from the contents of `/proc/PID/mountinfo`.
fn mounts_under(text: &str, folder: &Path) -> Vec<String> {
    let places = text.lines().filter_map(|line| line.split(' ').nth(4));
    places.filter(|place| Path::new(place).starts_with(folder)).map(str::to_owned).collect()
}

/// Returns the processes whose program is under a folder, as id and program.
fn processes_of(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let running = entries.filter_map(|entry| {
        let program = fs::read_link(entry.path().join("exe")).ok()?;
        program.starts_with(folder).then(|| format!("{} ({})", entry.file_name().display(), program.display()))
    });
    running.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_under_a_folder_are_found_by_whole_path_components() {
        let text = "36 35 98:0 / /a/b/root rw - overlay node rw\n37 35 98:0 / /a/bc rw - tmpfs tmpfs rw\n";
        assert_eq!(mounts_under(text, Path::new("/a/b")), ["/a/b/root"]);
    }

    #[test]
    fn a_process_is_found_by_the_folder_of_its_program() {
        let program = std::env::current_exe().unwrap();
        let found = processes_of(program.parent().unwrap());
        assert!(found.contains(&format!("{} ({})", std::process::id(), program.display())), "{found:?}");
        assert!(processes_of(tempfile::tempdir().unwrap().path()).is_empty());
    }
}
