//! `scratch`, a hidden command of `xtask`: runs a program whose files in the machine's own folders are discarded.

use std::{
    fs,
    io::ErrorKind,
    path::Path,
    process::{Command, ExitCode, ExitStatus},
};

use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
    sched::{CloneFlags, unshare},
    sys::signal::{SigSet, Signal},
};

use super::mounts;

/// The folders that buildah writes to besides those that it is given.
const BUILDAH_FOLDERS: [&str; 2] = ["/var/lib/containers", "/run/containers"];

/// Runs a command with empty file systems in memory on the folders of buildah, and returns its exit code.
pub fn run(command: &[String]) -> Result<ExitCode> {
    let (program, args) = command.split_first().context("no command given")?;
    // An interrupt ends the command, and this process still cleans up. The command itself starts with an empty signal mask.
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGINT);
    blocked.add(Signal::SIGTERM);
    blocked.thread_block()?;
    unshare(CloneFlags::CLONE_NEWNS).context("creating a mount namespace")?;
    mounts::make_private()?;
    let created: Vec<&Path> = BUILDAH_FOLDERS.map(Path::new).into_iter().filter(|place| !place.exists()).collect();
    for place in BUILDAH_FOLDERS {
        mounts::tmpfs(Path::new(place), "mode=700")?;
    }
    let status = Command::new(program).args(args).status();
    // The same in another checkout may have removed a folder meanwhile, with what is mounted on it.
    for place in BUILDAH_FOLDERS {
        umount2(place, MntFlags::MNT_DETACH)
            .or_else(|error| if error == Errno::EINVAL { Ok(()) } else { Err(error) })?;
    }
    for place in created {
        fs::remove_dir(place).or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    }
    Ok(exit_code(status.with_context(|| format!("starting {program}"))?))
}

/// Returns the exit code of a process; 1 if a signal ended it.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
