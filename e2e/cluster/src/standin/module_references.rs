//! The reference count of the stand-in module `nvidia`. As in the kernel, every program that has the driver open counts.
//!
//! A program that opens the driver through the stand-in NVML holds a shared lock on one file. A program that is killed
//! releases it silently, so the count is taken from the kernel's list of locks. The node's first process does this, because
//! its `/proc` lists the locks of all containers.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path, thread::sleep, time::Duration};

/// The file with the number of references that do not come from NVML; tests write it.
pub(super) const OTHER_REFERENCES: &str = "references";
/// The file that programs lock which have the driver open through the stand-in NVML.
pub(super) const LOCK: &str = "lock/nvml.lock";

const COUNT: &str = "module/nvidia/refcnt";
const PERIOD: Duration = Duration::from_millis(100);

/// Keeps the count up to date; never returns.
pub fn keep_count(standin: &Path) {
    loop {
        // A file that cannot be read or written now is being replaced.
        if let Ok(locks) = fs::read_to_string("/proc/locks") {
            let _ = update(standin, &locks);
        }
        sleep(PERIOD);
    }
}

/// Writes the count if it has changed.
fn update(standin: &Path, locks: &str) -> io::Result<()> {
    let current = fs::read_to_string(standin.join(COUNT))?;
    let holders = fs::metadata(standin.join(LOCK)).map_or(0, |file| holders(locks, file.ino()));
    let others = fs::read_to_string(standin.join(OTHER_REFERENCES)).ok().and_then(|text| text.trim().parse().ok());
    let count = format!("{}\n", holders + others.unwrap_or(0_usize));
    if current == count {
        return Ok(());
    }
    // Readers see either the old or the new count, never an empty file.
    let new = standin.join(".refcnt");
    fs::write(&new, count)?;
    fs::rename(new, standin.join(COUNT))
}

/// Counts the shared locks on a file in the contents of `/proc/locks`. The file is identified by its inode alone: on some file
/// systems the kernel's device number differs from that of `stat`.
fn holders(locks: &str, inode: u64) -> usize {
    let is_held = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let kind = [words.next(), words.next(), words.next()];
        let file = words.nth(1).and_then(|file| file.rsplit(':').next()).and_then(|number| number.parse().ok());
        kind == [Some("FLOCK"), Some("ADVISORY"), Some("READ")] && file == Some(inode)
    };
    locks.lines().filter(is_held).count()
}
