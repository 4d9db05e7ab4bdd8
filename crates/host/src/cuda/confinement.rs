//! What the process that loads CUDA's library has, and what it cannot do: start programs and create device nodes.

use std::{collections::BTreeMap, path::Path};

#[cfg(target_arch = "x86_64")]
use nix::libc::{SYS_fork, SYS_mknod, SYS_vfork};
use nix::{
    libc::{
        CLONE_THREAD, ENOSYS, EPERM, SYS_clone, SYS_clone3, SYS_execve, SYS_execveat, SYS_finit_module,
        SYS_init_module, SYS_mknodat,
    },
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

#[cfg(target_arch = "x86_64")]
const OF_ARCHITECTURE: [i64; 3] = [SYS_fork, SYS_vfork, SYS_mknod];
#[cfg(not(target_arch = "x86_64"))]
const OF_ARCHITECTURE: [i64; 0] = [];

const DENIED: [i64; 5] = [SYS_execve, SYS_execveat, SYS_mknodat, SYS_init_module, SYS_finit_module];

/// Makes this process's own `/proc` that of a root, for this process only: the library names its threads there and otherwise fails with
/// `CUDA_ERROR_OPERATING_SYSTEM`. The `/proc` that the root has lists processes by the IDs of another namespace.
pub fn bring_proc(root: &Path) -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Mounts and unmounts of the host still arrive, so that this process keeps none of them busy, but none of its own leave it.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SLAVE | MsFlags::MS_REC, None::<&str>)?;
    mount(Some("/proc"), &root.join("proc"), None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
}

/// Confines the calling thread, and the threads that it starts, for good.
pub fn confine() -> Result<(), Error> {
    // The flags of this call are in memory, which a filter cannot read. The C library then makes the older call.
    apply_filter(&filter([(SYS_clone3, vec![])], ENOSYS)?)?;
    let no_thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread_flag()), 0)?;
    let processes = (SYS_clone, vec![SeccompRule::new(vec![no_thread])?]);
    let calls = DENIED.into_iter().chain(OF_ARCHITECTURE).map(|call| (call, vec![]));
    apply_filter(&filter(calls.chain([processes]), EPERM)?)
}

fn thread_flag() -> u64 {
    u64::from(CLONE_THREAD.unsigned_abs())
}

/// Returns a filter that answers these calls with an error, and allows all others.
fn filter(calls: impl IntoIterator<Item = (i64, Vec<SeccompRule>)>, error: i32) -> Result<BpfProgram, Error> {
    let calls: BTreeMap<_, _> = calls.into_iter().collect();
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter =
        SeccompFilter::new(calls, SeccompAction::Allow, SeccompAction::Errno(error.unsigned_abs()), architecture)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, process::Command, thread};

    use nix::{
        errno::Errno,
        sys::stat::{Mode, SFlag, makedev, mknod},
    };

    use super::*;

    #[test]
    fn threads_start_but_neither_programs_nor_device_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let create = |name: &str| mknod(&folder.path().join(name), SFlag::S_IFCHR, Mode::empty(), makedev(195, 255));
        // Only this thread is confined.
        thread::scope(|scope| {
            let confined = scope.spawn(|| {
                confine().unwrap();
                assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
                let started = Command::new("/bin/true").status().unwrap_err();
                assert_eq!(started.kind(), ErrorKind::PermissionDenied, "{started}");
                assert_eq!(create("nvidiactl"), Err(Errno::EPERM));
            });
            confined.join().unwrap();
        });
        assert!(Command::new("/bin/true").status().unwrap().success());
    }
}
