//! Control groups of a node: above kubelet's, so that all that it makes can be found and removed, and the root of what the
//! node sees of them.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sha2::{Digest, Sha256};

use crate::{paths::Paths, process::poll, state::NodeId, tools::hex};

const TOP: &str = "/sys/fs/cgroup";
/// What of a node runs outside its pods. With version 2 a group with groups below it may hold no process itself.
const SYSTEM: &str = "system";

/// A mounted hierarchy: the one of version 2, or one of version 1 for each controller.
struct Hierarchy {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The mounted hierarchies.
fn hierarchies() -> Vec<Hierarchy> {
    let top = PathBuf::from(TOP);
    let version = |folder: &Path| {
        if folder.join("cgroup.controllers").exists() { Version::Two } else { Version::One }
    };
    if top.join("cgroup.procs").exists() {
        return vec![Hierarchy { version: version(&top), folder: top }];
    }
    let folders = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    // Links such as cpu,cpuacct name what is there under another name already.
    let real = folders.filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists());
    real.map(|folder| Hierarchy { version: version(&folder), folder }).collect()
}

/// The group of all nodes of this checkout, whose name tells it, so that two of them do not meet.
fn group(paths: &Paths) -> String {
    let hash = hex(&Sha256::digest(paths.root.as_os_str().as_encoded_bytes()));
    format!("gpu-operator-e2e-{}", &hash[..8])
}

impl Hierarchy {
    fn of_node(&self, paths: &Paths, node: NodeId) -> PathBuf {
        self.folder.join(group(paths)).join(node.name())
    }
}

/// Hands what a group of version 2 has been handed on to the groups below it. What cannot be, kubelet says if it needs it.
fn delegate(group: &Path) {
    let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        let _ = fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Makes the groups of a node.
pub(crate) fn make(paths: &Paths, node: NodeId) -> Result<()> {
    for hierarchy in hierarchies() {
        let mut above = hierarchy.folder.clone();
        for part in [group(paths), node.name(), SYSTEM.to_owned()] {
            // A node's own group is kubelet's to divide: no process could join it any more.
            if hierarchy.version == Version::Two && part != SYSTEM {
                delegate(&above);
            }
            let folder = above.join(part);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
            // Version 1 starts with no processor at all, and lets nothing in until it is given some.
            for file in ["cpuset.mems", "cpuset.cpus"] {
                let (from, to) = (above.join(file), folder.join(file));
                if hierarchy.version == Version::One && from.exists() && to.exists() {
                    fs::write(&to, fs::read_to_string(&from)?.trim())
                        .with_context(|| format!("writing {}", to.display()))?;
                }
            }
            above = folder;
        }
    }
    Ok(())
}

/// Moves this process into a node's group, which is what the root of a control group namespace made now will be.
pub(crate) fn join(paths: &Paths, node: NodeId) -> Result<()> {
    move_to(|hierarchy| hierarchy.of_node(paths, node))
}

/// Moves this process to what else of the node runs outside its pods.
pub(crate) fn settle(paths: &Paths, node: NodeId) -> Result<()> {
    move_to(|hierarchy| hierarchy.of_node(paths, node).join(SYSTEM))
}

fn move_to(group: impl Fn(&Hierarchy) -> PathBuf) -> Result<()> {
    for hierarchy in hierarchies() {
        let file = group(&hierarchy).join("cgroup.procs");
        fs::write(&file, "0").with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// Mounts the hierarchies in place of those of the machine under `root`, as this process's namespace shows them.
pub(crate) fn mount_under(root: &Path) -> Result<()> {
    for Hierarchy { folder, version } in hierarchies() {
        let place = root.join(folder.strip_prefix("/").unwrap_or(&folder));
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let (kind, options) = match (version, &*name) {
            (Version::Two, _) => ("cgroup2", None),
            (Version::One, "systemd") => ("cgroup", Some("none,name=systemd".to_owned())),
            (Version::One, controllers) => ("cgroup", Some(controllers.to_owned())),
        };
        umount2(&place, MntFlags::MNT_DETACH).with_context(|| format!("unmounting {}", place.display()))?;
        mount(Some("cgroup"), &place, Some(kind), MsFlags::empty(), options.as_deref())
            .with_context(|| format!("mounting {}", place.display()))?;
    }
    Ok(())
}

/// Removes the groups of a node, whose processes have ended.
pub(crate) fn remove(paths: &Paths, node: NodeId) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.of_node(paths, node);
        if group.exists() {
            poll("the end of the node's control groups", Duration::from_secs(20), || {
                Ok(remove_tree(&group).map_err(|error| error.to_string()))
            })?;
        }
    }
    Ok(())
}

/// Removes the group above those of the nodes.
pub(crate) fn remove_all(paths: &Paths) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.folder.join(group(paths));
        if group.exists() {
            remove_tree(&group).with_context(|| format!("removing {}", group.display()))?;
        }
    }
    Ok(())
}

/// The groups that are there of this checkout's nodes.
pub(crate) fn left(paths: &Paths) -> Vec<PathBuf> {
    let groups = hierarchies().into_iter().map(|hierarchy| hierarchy.folder.join(group(paths)));
    groups.filter(|group| group.exists()).collect()
}

/// Bottom up, for a group that holds another cannot be removed. What still runs in it was left behind by its node.
fn remove_tree(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    for id in fs::read_to_string(group.join("cgroup.procs"))?.lines().filter_map(|line| line.parse().ok()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
    }
    fs::remove_dir(group)
}
