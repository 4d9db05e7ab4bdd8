//! The inside of a node: namespaces of its own for processes, network and control groups, and one for mounts, whose root is
//! a copy-on-write view of the machine's.
//!
//! Hidden commands of `xtask` live here. `node-start` makes the namespaces and leaves `node-init` in them, as the
//! first process; when that one is killed the kernel ends every process of the node, and with the last of them all
//! mounts vanish. `node-exec` runs a command in there.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus, Stdio},
    thread::{self, sleep},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    sys::{
        signal::{SigSet, Signal},
        stat::{Mode, SFlag, makedev, mknod},
        wait::wait,
    },
    unistd::{Pid, chdir, pivot_root},
};
use standin_node::driver::proc_devices;

use crate::{asked, cgroups, machines, module_users, network, paths::Paths, process::create, state::NodeId};

/// Kernel settings that kubelet would change on the machine, with the values that it wants to see.
const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Device nodes that every Linux has, beside /dev/kmsg, which kubelet watches.
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

/// The node's `cat`. NVIDIA's runtime looks for the module by `cat /proc/modules`, a file that a kernel without modules does
/// not have and that nothing can be put in the place of.
const CAT: &str = "#!/bin/sh
[ \"$*\" = /proc/modules ] || exec /bin/cat \"$@\"
for module in /sys/module/*/refcnt; do
    module=${module%/refcnt}
    [ -d \"$module\" ] && echo \"${module##*/} 16384 $(/bin/cat \"$module/refcnt\") - Live 0x0000000000000000\"
done
";

/// Where the node sees the folder that steers the stand-ins.
const STANDIN: &str = "/run/nvidia/standin";

/// Written by `node-init` once the node's root stands.
pub(crate) fn ready_file(paths: &Paths, node: NodeId) -> PathBuf {
    paths.cluster().join(format!("{}.ready", node.name()))
}

/// `node-start`: leaves `node-init` behind, attached to the network that this process holds, and prints its id.
pub(crate) fn start(paths: &Paths, node: NodeId, network: u32) -> Result<()> {
    cgroups::join(paths, node)?;
    let own =
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWCGROUP;
    unshare(own).context("making the node's namespaces")?;
    cgroups::settle(paths, node)?;
    // From here on nothing that is mounted shows outside.
    mount_flags("/", MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    let log = create(&paths.log(&format!("node-init.{}", node.name())))?;
    let child = Command::new(std::env::current_exe()?)
        .args(["node-init", "--number", &node.number().to_string()])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()?;
    network::enter(network)?;
    network::attach(node)?;
    say!("{}", child.id());
    Ok(())
}

/// `node-init`: builds the root, and is the node's init system until it is killed: it runs containerd, starts it again
/// whenever it ends, and waits for orphans.
pub(crate) fn init(paths: &Paths, node: NodeId) -> Result<()> {
    if std::process::id() != 1 {
        bail!("node-init is started by node-start only");
    }
    network::bring_up(node)?;
    build_root(paths, node).context("building the node's root")?;
    thread::spawn(|| module_users::follow(Path::new(STANDIN)));
    thread::spawn(|| {
        if let Err(error) = asked::follow(Path::new(STANDIN)) {
            warn!("what the stand-in NVML is asked in vain is not written down: {error}");
        }
    });
    let runtime = machines::containerd(node);
    let mut running = runtime.start(paths, node)?;
    fs::write(ready_file(paths, node), "")?;
    loop {
        let ended = wait()?.pid().map(Pid::as_raw);
        if ended == i32::try_from(running).ok() {
            // One that cannot start must not keep the machine busy.
            sleep(Duration::from_millis(200));
            running = runtime.start(paths, node)?;
        }
    }
}

/// `scratch`: runs a command that leaves files in folders of the machine, so that it leaves none.
pub(crate) fn scratch(command: &[String]) -> Result<ExitCode> {
    let (program, args) = command.split_first().context("no command given")?;
    // So that an interrupt ends the command and we still tidy up. The command itself starts without this.
    let mut patient = SigSet::empty();
    patient.add(Signal::SIGINT);
    patient.add(Signal::SIGTERM);
    patient.thread_block()?;
    unshare(CloneFlags::CLONE_NEWNS).context("making a mount namespace")?;
    mount_flags("/", MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    let made: Vec<&Path> = BUILDAH.map(Path::new).into_iter().filter(|place| !place.exists()).collect();
    for place in BUILDAH {
        tmpfs(Path::new(place), "mode=700")?;
    }
    let status = Command::new(program).args(args).status();
    for place in BUILDAH {
        umount2(place, MntFlags::MNT_DETACH)?;
    }
    for place in made {
        fs::remove_dir(place)?;
    }
    Ok(exit_code(status.with_context(|| format!("starting {program}"))?))
}

/// Where buildah writes beside the folders that it is given.
const BUILDAH: [&str; 2] = ["/var/lib/containers", "/run/containers"];

fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn build_root(paths: &Paths, id: NodeId) -> Result<()> {
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
    bind(Path::new("/sys"), &root.join("sys"))?;
    cgroups::mount_under(&root)?;

    // The checkout's own folder, as it is: programs, configuration and logs are the same inside and outside.
    bind(&paths.base, &inside(&root, &paths.base)?)?;
    // On the machine's own file system: an overlay cannot lie on an overlay, and a machine that is a node itself has
    // folders of the same names, of which this node must see nothing.
    for (folder, place) in
        [("containerd", "var/lib/containerd"), ("kubelet", "var/lib/kubelet"), ("cni", "var/lib/cni")]
    {
        let disk = node.join("disk").join(folder);
        fs::create_dir_all(&disk)?;
        bind(&disk, &root.join(place))?;
    }
    let standin = paths.standin(id);
    bind(&standin, &root.join("run/nvidia/standin"))?;
    bind(&standin.join("pci"), &root.join("sys/bus/pci/devices"))?;
    bind(&standin.join("module"), &root.join("sys/module"))?;
    bind_file(&standin.join(proc_devices::FILE), &root.join("proc/devices"))?;
    os_release(&root)?;
    let cat = root.join("usr/local/sbin/cat");
    fs::write(&cat, CAT).with_context(|| format!("writing {}", cat.display()))?;
    fs::set_permissions(&cat, fs::Permissions::from_mode(0o755))?;
    remove(&root.join("etc/cdi"))?;

    chdir(&root)?;
    pivot_root(".", ".").context("changing to the node's root")?;
    umount2(".", MntFlags::MNT_DETACH).context("letting go of the machine's root")?;
    chdir("/")?;
    // So that what one container mounts under a Bidirectional host path is seen by the next.
    mount_flags("/", MsFlags::MS_REC | MsFlags::MS_SHARED)
}

fn devices(dev: &Path) -> Result<()> {
    // The process's own mask would take rights away.
    nix::sys::stat::umask(Mode::empty());
    for (name, major, minor) in DEVICES {
        let mode = Mode::from_bits_truncate(if name == "kmsg" { 0o644 } else { 0o666 });
        mknod(&dev.join(name), SFlag::S_IFCHR, mode, makedev(major, minor))
            .with_context(|| format!("making /dev/{name}"))?;
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

/// Plain files in place of the settings: kubelet finds what it wants, and the machine keeps what it had.
fn tunables(root: &Path) -> Result<()> {
    for (name, value) in TUNABLES {
        let place = root.join("proc/sys").join(name);
        if place.exists() {
            let file = root.join("run/tunables").join(name);
            drop(create(&file)?);
            fs::write(&file, format!("{value}\n"))?;
            bind_file(&file, &place)?;
        }
    }
    Ok(())
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
    let gone = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    gone.with_context(|| format!("removing {}", path.display()))
}

fn tmpfs(place: &Path, options: &str) -> Result<()> {
    fs::create_dir_all(place)?;
    mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), Some(options))
        .with_context(|| format!("mounting a tmpfs on {}", place.display()))
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .with_context(|| format!("binding {} to {}", from.display(), to.display()))
}

/// Shows a file in place of another one that is there.
fn bind_file(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("binding {} to {}", from.display(), to.display()))
}

fn mount_flags(place: &str, flags: MsFlags) -> Result<()> {
    mount(None::<&str>, place, None::<&str>, flags, None::<&str>).with_context(|| format!("changing the mount {place}"))
}

/// An absolute path of the machine, seen from outside under `root`.
fn inside(root: &Path, path: &Path) -> Result<PathBuf> {
    Ok(root.join(path.strip_prefix("/").context("the checkout's path is not absolute")?))
}

/// `node-exec`: runs a command in the namespaces of a node, which `process` holds. With `log`, leaves it running there, its
/// output in that file, and prints its id; else waits for it and ends as it did.
pub(crate) fn exec(
    paths: &Paths,
    node: NodeId,
    process: u32,
    log: Option<&Path>,
    command: &[String],
) -> Result<ExitCode> {
    let (program, args) = command.split_first().context("no command given")?;
    let log = log.map(|path| fs::File::options().create(true).append(true).open(path)).transpose()?;
    cgroups::settle(paths, node)?;
    let namespaces = ["cgroup", "net", "pid", "mnt"].map(|kind| fs::File::open(format!("/proc/{process}/ns/{kind}")));
    let kinds =
        [CloneFlags::CLONE_NEWCGROUP, CloneFlags::CLONE_NEWNET, CloneFlags::CLONE_NEWPID, CloneFlags::CLONE_NEWNS];
    for (namespace, kind) in namespaces.into_iter().zip(kinds) {
        setns(namespace.context("the node does not run")?, kind).context("entering the node")?;
    }
    chdir("/")?;
    let mut child = Command::new(program);
    child.args(args).env("PATH", machines::containerd(node).search_path(paths));
    if let Some(log) = log {
        let child = child
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {program} in the node"))?;
        say!("{}", child.id());
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.status().with_context(|| format!("starting {program} in the node"))?;
    Ok(exit_code(status))
}
