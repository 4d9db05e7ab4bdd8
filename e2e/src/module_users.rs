//! The reference count of the stand-in module `nvidia`: as in the kernel, each program that has the driver open counts.
//!
//! A program that opens the driver through the stand-in NVML holds a shared lock on one file. Whoever is killed lets go of it
//! without a word, so the count follows the kernel's list of locks. The first process of the node does that, since its
//! `/proc` lists those of all containers.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path, thread::sleep, time::Duration};

/// References of which NVML knows nothing: a number that tests write.
pub(crate) const OTHERS: &str = "references";

const COUNT: &str = "module/nvidia/refcnt";
pub(crate) const LOCK: &str = "lock/nvml.lock";
const PERIOD: Duration = Duration::from_millis(100);

/// Keeps the count true for ever.
pub(crate) fn follow(standin: &Path) {
    loop {
        // What cannot be read or written now is being replaced.
        if let Ok(locks) = fs::read_to_string("/proc/locks") {
            let _ = update(standin, &locks);
        }
        sleep(PERIOD);
    }
}

/// Writes the count if it is another one than before.
fn update(standin: &Path, locks: &str) -> io::Result<()> {
    let shown = fs::read_to_string(standin.join(COUNT))?;
    let holders = fs::metadata(standin.join(LOCK)).map_or(0, |file| holders(locks, file.ino()));
    let others = fs::read_to_string(standin.join(OTHERS)).ok().and_then(|text| text.trim().parse().ok());
    let count = format!("{}\n", holders + others.unwrap_or(0_usize));
    if shown == count {
        return Ok(());
    }
    // A reader sees the old count or the new, never an empty file.
    let new = standin.join(".refcnt");
    fs::write(&new, count)?;
    fs::rename(new, standin.join(COUNT))
}

/// Counts the shared locks on the file of this number, in the format of `/proc/locks`. The file system's number beside it is
/// left out, as the kernel's differs from that which `stat` shows on some.
fn holders(locks: &str, inode: u64) -> usize {
    let is_held = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let kind = [words.next(), words.next(), words.next()];
        let file = words.nth(1).and_then(|file| file.rsplit(':').next()).and_then(|number| number.parse().ok());
        kind == [Some("FLOCK"), Some("ADVISORY"), Some("READ")] && file == Some(inode)
    };
    locks.lines().filter(is_held).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_locks_on_the_file_are_its_users() {
        let locks = "1: FLOCK  ADVISORY  READ 812 fe:00:4711 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 900 fe:00:4711 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 900 fe:00:4712 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 901 fe:00:4711 0 EOF\n\
                     4: -> FLOCK  ADVISORY  READ 902 fe:00:4711 0 EOF\n\
                     5: POSIX  ADVISORY  READ 77 fe:00:4711 0 EOF\n";
        assert_eq!(holders(locks, 4711), 2);
        assert_eq!(holders(locks, 1), 0);
    }

    #[test]
    fn the_count_is_of_those_with_nvml_open_and_of_those_that_a_test_names() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["module/nvidia", "lock"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        fs::write(dir.path().join(COUNT), "0\n").unwrap();
        fs::write(dir.path().join(LOCK), "").unwrap();
        let count = || {
            update(dir.path(), &fs::read_to_string("/proc/locks").unwrap()).unwrap();
            fs::read_to_string(dir.path().join(COUNT)).unwrap()
        };
        let [first, second] = [0, 1].map(|_| fs::File::open(dir.path().join(LOCK)).unwrap());
        first.try_lock_shared().unwrap();
        second.try_lock_shared().unwrap();
        assert_eq!(count(), "2\n");
        fs::write(dir.path().join(OTHERS), "1").unwrap();
        assert_eq!(count(), "3\n");
        // Closing is not enough: a program that another test is just starting has them open, too, until it runs.
        first.unlock().unwrap();
        second.unlock().unwrap();
        fs::remove_file(dir.path().join(OTHERS)).unwrap();
        assert_eq!(count(), "0\n");

        // Nothing is made where no module is loaded.
        fs::remove_dir_all(dir.path().join("module/nvidia")).unwrap();
        assert!(update(dir.path(), "").is_err());
        assert!(!dir.path().join("module/nvidia").exists());
    }
}
