//! What a cluster would leave on the machine, outside its folder, if something of it did not end: processes, mounts, control
//! groups, network devices.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{cgroups, paths::Paths};

/// The machine's network devices, before there is a cluster.
pub(crate) struct Before(BTreeSet<String>);

impl Before {
    pub(crate) fn look() -> Result<Self> {
        Ok(Self(links()?))
    }

    /// Fails if anything is left of a cluster that was taken down.
    pub(crate) fn nothing_is_left(&self, paths: &Paths) -> Result<()> {
        let mut left: Vec<String> = links()?.difference(&self.0).map(|link| format!("network device {link}")).collect();
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
        left.extend(mounts_under(&mounts, &paths.base).into_iter().map(|place| format!("mount {place}")));
        left.extend(cgroups::left(paths).into_iter().map(|group| format!("control group {}", group.display())));
        left.extend(processes_of(&paths.base).into_iter().map(|process| format!("process {process}")));
        ensure!(left.is_empty(), "the cluster has left behind: {}", left.join(", "));
        Ok(())
    }
}

fn links() -> Result<BTreeSet<String>> {
    let entries = fs::read_dir("/sys/class/net").context("/sys/class/net")?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The places of mounts under a folder, of a text in the format of `/proc/PID/mountinfo`.
fn mounts_under(text: &str, folder: &Path) -> Vec<String> {
    let places = text.lines().filter_map(|line| line.split(' ').nth(4));
    places.filter(|place| Path::new(place).starts_with(folder)).map(str::to_owned).collect()
}

/// The processes whose program lies under a folder, by id and program.
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
    fn mounts_under_a_folder_are_found_by_whole_names() {
        let text = "36 35 98:0 / /a/b/root rw - overlay node rw\n37 35 98:0 / /a/bc rw - tmpfs tmpfs rw\n";
        assert_eq!(mounts_under(text, Path::new("/a/b")), ["/a/b/root"]);
    }

    #[test]
    fn a_process_is_found_by_where_its_program_lies() {
        let program = std::env::current_exe().unwrap();
        let found = processes_of(program.parent().unwrap());
        assert!(found.contains(&format!("{} ({})", std::process::id(), program.display())), "{found:?}");
        assert!(processes_of(tempfile::tempdir().unwrap().path()).is_empty());
    }
}
