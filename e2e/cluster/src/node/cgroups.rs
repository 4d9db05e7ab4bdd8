//! Control groups of a node. They are above those of kubelet, so that all of kubelet's groups can be found and removed, and
//! they are the root of the hierarchies that the node sees.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use harness::{files::hex, node_id::NodeId, paths::Paths, wait::poll};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sha2::{Digest, Sha256};

const TOP: &str = "/sys/fs/cgroup";
/// The group of a node's processes outside its pods. In version 2 a group with child groups cannot have processes itself.
const SYSTEM: &str = "system";

/// A mounted hierarchy: the only one of version 2, or one of version 1 for each controller.
struct Hierarchy {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Returns the mounted hierarchies.
fn hierarchies() -> Vec<Hierarchy> {
    let top = PathBuf::from(TOP);
    let version = |folder: &Path| {
        if folder.join("cgroup.controllers").exists() { Version::Two } else { Version::One }
    };
    if top.join("cgroup.procs").exists() {
        return vec![Hierarchy { version: version(&top), folder: top }];
    }
    let folders = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    // Links such as `cpu` point to a hierarchy that is listed under another name.
    let real = folders.filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists());
    real.map(|folder| Hierarchy { version: version(&folder), folder }).collect()
}

/// Returns the name of the group above all nodes of this cluster. It has a hash of the cluster's folder, so that two clusters do not share
/// a group.
fn group(paths: &Paths) -> String {
    let hash = hex(&Sha256::digest(paths.state.as_os_str().as_encoded_bytes()));
    format!("gpu-operator-e2e-{}", &hash[..8])
}

impl Hierarchy {
    fn of_node(&self, paths: &Paths, node: NodeId) -> PathBuf {
        self.folder.join(group(paths)).join(node.name())
    }
}

/// Enables a version 2 group's controllers for its child groups. Errors are ignored: kubelet reports a missing controller if
/// it needs it.
fn delegate(group: &Path) {
    let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        let _ = fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Creates the groups of a node.
pub fn create(paths: &Paths, node: NodeId) -> Result<()> {
    for hierarchy in hierarchies() {
        let mut above = hierarchy.folder.clone();
        for part in [group(paths), node.name(), SYSTEM.to_owned()] {
            // Not for the node's own group, which kubelet delegates: no process could join it afterwards.
            if hierarchy.version == Version::Two && part != SYSTEM {
                delegate(&above);
            }
            let folder = above.join(part);
            fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
            // A new cpuset group of version 1 has no processors, and rejects processes until it has some.
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

/// Moves this process to a node's group, which becomes the root of a control group namespace that is created afterwards.
pub fn join(paths: &Paths, node: NodeId) -> Result<()> {
    move_to(|hierarchy| hierarchy.of_node(paths, node))
}

/// Moves this process to the group of the node's processes outside its pods.
pub fn join_system(paths: &Paths, node: NodeId) -> Result<()> {
    move_to(|hierarchy| hierarchy.of_node(paths, node).join(SYSTEM))
}

fn move_to(group: impl Fn(&Hierarchy) -> PathBuf) -> Result<()> {
    for hierarchy in hierarchies() {
        let file = group(&hierarchy).join("cgroup.procs");
        fs::write(&file, "0").with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// Replaces the machine's hierarchies under `root` by those that this process's namespace shows.
pub fn mount_under(root: &Path) -> Result<()> {
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

/// Removes the groups of a node after its processes have ended.
pub fn remove(paths: &Paths, node: NodeId) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.of_node(paths, node);
        if group.exists() {
            poll("the removal of the node's control groups", Duration::from_mins(3), || {
                Ok(remove_tree(&group).map_err(|error| error.to_string()))
            })?;
        }
    }
    Ok(())
}

/// Removes the group above all nodes.
pub fn remove_all(paths: &Paths) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.folder.join(group(paths));
        if group.exists() {
            remove_tree(&group).with_context(|| format!("removing {}", group.display()))?;
        }
    }
    Ok(())
}

/// Returns the groups of this cluster's nodes that still exist.
pub fn existing(paths: &Paths) -> Vec<PathBuf> {
    let groups = hierarchies().into_iter().map(|hierarchy| hierarchy.folder.join(group(paths)));
    groups.filter(|group| group.exists()).collect()
}

/// Removes a group and its child groups, bottom up, because a group with child groups cannot be removed. Kills processes that
/// the node has left in them.
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
