//! The root file system of a node: a copy-on-write view of the machine's, with its own `/dev`, `/proc`, `/run` and stand-ins.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use harness::{
    files::write,
    mounts::{bind, bind_file, make_shared, tmpfs},
    node_id::NodeId,
    paths::Paths,
};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::{chdir, pivot_root},
};
use standin_node::{FOLDER, driver::devices};

use super::cgroups;

/// Kernel settings that kubelet would otherwise change on the machine, with the values that it expects.
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Device nodes that every Linux has, and `/dev/kmsg`, which kubelet reads.
const DEVICES: [(&str, u64, u64); 7] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("kmsg", 1, 11),
    ("tty", 5, 0),
];

const OS_RELEASE: &str = "PRETTY_NAME=\"Ubuntu 22.04.5 LTS\"
NAME=\"Ubuntu\"
VERSION_ID=\"22.04\"
VERSION=\"22.04.5 LTS (Jammy Jellyfish)\"
VERSION_CODENAME=jammy
ID=ubuntu
ID_LIKE=debian
";

/// The node's `cat`. NVIDIA's runtime looks for the module with `cat /proc/modules`, a file that does not exist on a kernel
/// without modules and that cannot be mounted over.
const CAT: &str = "#!/bin/sh
[ \"$*\" = /proc/modules ] || exec /bin/cat \"$@\"
for module in /sys/module/*/refcnt; do
    module=${module%/refcnt}
    [ -d \"$module\" ] && echo \"${module##*/} 16384 $(/bin/cat \"$module/refcnt\") - Live 0x0000000000000000\"
done
";

/// Mounts the root of a node and makes it this process's root. The process must be the first in the node's namespaces.
pub(super) fn build(paths: &Paths, id: NodeId) -> Result<()> {
    let node = paths.node(id);
    let root = node.join("root");
    let layers =
        format!("lowerdir=/,upperdir={},workdir={}", node.join("upper").display(), node.join("work").display());
    mount(Some("node"), &root, Some("overlay"), MsFlags::empty(), Some(layers.as_str()))
        .context("mounting the copy-on-write view of the machine's root")?;

    for dir in ["run", "tmp", "dev"] {
        tmpfs(&root.join(dir), if dir == "tmp" { "mode=1777" } else { "mode=755" })?;
    }
    devices(&root.join("dev"))?;
    let proc = root.join("proc");
    fs::create_dir_all(&proc)?;
    mount(Some("proc"), &proc, Some("proc"), MsFlags::empty(), None::<&str>).context("mounting /proc")?;
    tunables(&root)?;
    boot_id(&root)?;
    bind(Path::new("/sys"), &root.join("sys"))?;
    cgroups::mount_under(&root)?;

    // The folder of the cluster, wherever it lies: programs, configuration and logs have the same paths inside and outside.
    bind(&paths.base, &inside(&root, &paths.base)?)?;
    // On the machine's own file system, because an overlay cannot be on an overlay. A machine that is a node itself has
    // folders of the same names, which this node must not see.
    for (folder, place) in [
        ("containerd", "var/lib/containerd"),
        ("docker", "var/lib/docker"),
        ("kubelet", "var/lib/kubelet"),
        ("cni", "var/lib/cni"),
    ] {
        let disk = node.join("disk").join(folder);
        fs::create_dir_all(&disk)?;
        bind(&disk, &root.join(place))?;
    }
    let standin = paths.standin(id);
    bind(&standin, &inside(&root, Path::new(FOLDER))?)?;
    bind(&standin.join("pci"), &root.join("sys/bus/pci/devices"))?;
    bind(&standin.join("module"), &root.join("sys/module"))?;
    bind_file(&standin.join(devices::FILE), &root.join("proc/devices"))?;
    os_release(&root)?;
    let cat = root.join("usr/local/sbin/cat");
    write(&cat, CAT)?;
    fs::set_permissions(&cat, fs::Permissions::from_mode(0o755))?;
    remove(&root.join("etc/cdi"))?;

    chdir(&root)?;
    pivot_root(".", ".").context("changing to the node's root")?;
    umount2(".", MntFlags::MNT_DETACH).context("unmounting the machine's root")?;
    chdir("/")?;
    // Mounts that one container makes under a Bidirectional host path must be visible to the next container.
    make_shared()
}

fn devices(dev: &Path) -> Result<()> {
    // The process's umask would remove permissions.
    nix::sys::stat::umask(Mode::empty());
    for (name, major, minor) in DEVICES {
        let mode = Mode::from_bits_truncate(if name == "kmsg" { 0o644 } else { 0o666 });
        mknod(&dev.join(name), SFlag::S_IFCHR, mode, makedev(major, minor))
            .with_context(|| format!("creating /dev/{name}"))?;
    }
    nix::sys::stat::umask(Mode::from_bits_truncate(0o022));
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(link))?;
    }
    let pts = dev.join("pts");
    fs::create_dir(&pts)?;
    mount(Some("devpts"), &pts, Some("devpts"), MsFlags::empty(), Some("newinstance,ptmxmode=0666,mode=620"))
        .context("mounting /dev/pts")?;
    tmpfs(&dev.join("shm"), "mode=1777")
}

/// Mounts plain files over the kernel settings: kubelet finds the values that it expects, and the machine keeps its own.
fn tunables(root: &Path) -> Result<()> {
    for (name, value) in TUNABLES {
        let place = root.join("proc/sys").join(name);
        if place.exists() {
            let file = root.join("run/tunables").join(name);
            write(&file, &format!("{value}\n"))?;
            bind_file(&file, &place)?;
        }
    }
    Ok(())
}

/// Gives the node a boot ID for this start, which kubelet and the probe read: all nodes share the machine's kernel.
fn boot_id(root: &Path) -> Result<()> {
    // Every read of this file returns another one.
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid").context("reading a random UUID")?;
    let file = root.join("run/boot-id");
    write(&file, &random)?;
    bind_file(&file, &root.join("proc/sys/kernel/random/boot_id"))
}

fn os_release(root: &Path) -> Result<()> {
    for place in ["etc/os-release", "usr/lib/os-release"] {
        let file = root.join(place);
        remove(&file)?;
        fs::write(&file, OS_RELEASE).with_context(|| format!("writing the node's /{place}"))?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    removed.with_context(|| format!("removing {}", path.display()))
}

/// Returns the path below `root` of an absolute path of the machine.
fn inside(root: &Path, path: &Path) -> Result<PathBuf> {
    Ok(root.join(path.strip_prefix("/").with_context(|| format!("{} is not absolute", path.display()))?))
}
