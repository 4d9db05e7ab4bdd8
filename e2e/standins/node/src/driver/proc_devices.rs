//! `/proc/devices` while the driver is loaded: a file in the stand-in's folder that the node mounts there.

use std::{
    fs::OpenOptions,
    io::{self, Read, Seek, Write},
    path::Path,
};

/// The major of the GPUs and of the control device.
pub const GPU_MAJOR: u64 = 195;
/// The major of nvidia-uvm. The kernel assigns a free major to the real one; this is the major of the virtual consoles'
/// memory, because its minors 0 and 1 can be opened on any Linux with virtual consoles, and opening them has no effect.
pub const UVM_MAJOR: u64 = 7;
/// The major of the capabilities that MIG devices need. It has no driver.
const CAPS_MAJOR: u64 = 508;

const DRIVERS: [(u64, &str); 5] = [
    (GPU_MAJOR, "nvidia"),
    (GPU_MAJOR, "nvidia-modeset"),
    (GPU_MAJOR, "nvidiactl"),
    (UVM_MAJOR, "nvidia-uvm"),
    (CAPS_MAJOR, "nvidia-caps"),
];

/// The file in the stand-in's folder.
pub const FILE: &str = "proc-devices";

const SECTION: &str = "Character devices:\n";

/// Lists the driver's majors in the file, or removes them from it. The file is mounted over `/proc/devices`.
pub fn list(standin: &Path, is_loaded: bool) -> io::Result<()> {
    rewrite(&standin.join(FILE), |old| listing(old, is_loaded))
}

/// Rewrites a file in place, because it is mounted somewhere, or locked.
pub fn rewrite(path: &Path, text: impl FnOnce(&str) -> String) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut old = String::new();
    file.read_to_string(&mut old)?;
    let new = text(&old);
    file.rewind()?;
    file.write_all(new.as_bytes())?;
    file.set_len(u64::try_from(new.len()).unwrap_or(u64::MAX))
}

/// Returns the text of `/proc/devices` with the driver's majors, or without them.
pub fn listing(text: &str, is_loaded: bool) -> String {
    let is_ours = |line: &str| line.split_whitespace().nth(1).is_some_and(|name| name.starts_with("nvidia"));
    let mut lines: String = text.lines().filter(|line| !is_ours(line)).flat_map(|line| [line, "\n"]).collect();
    if !lines.contains(SECTION) {
        lines.insert_str(0, &format!("{SECTION}\nBlock devices:\n"));
    }
    if is_loaded {
        let end = lines.find("\n\n").map_or(lines.len(), |end| end + 1);
        for (major, name) in DRIVERS.iter().rev() {
            lines.insert_str(end, &format!("{major:>3} {name}\n"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;

    const PLAIN: &str = "Character devices:\n  1 mem\n  7 vcs\n\nBlock devices:\n259 blkext\n";

    #[test]
    fn the_drivers_majors_are_added_and_removed() {
        let loaded = "Character devices:\n  1 mem\n  7 vcs\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n  7 nvidia-uvm\n508 nvidia-caps\n\nBlock devices:\n259 blkext\n";
        for (text, is_loaded, expected) in
            [(PLAIN, true, loaded), (loaded, true, loaded), (loaded, false, PLAIN), (PLAIN, false, PLAIN)]
        {
            assert_eq!(listing(text, is_loaded), expected);
        }
        assert_eq!(listing("", false), "Character devices:\n\nBlock devices:\n");
        assert!(listing("", true).starts_with("Character devices:\n195 nvidia\n"));
    }

    #[test]
    fn the_file_is_rewritten_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        fs::write(&file, PLAIN).unwrap();
        let inode = || fs::metadata(&file).unwrap().ino();
        let before = inode();
        list(folder.path(), true).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("  7 nvidia-uvm\n"));
        list(folder.path(), false).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), PLAIN);
        assert_eq!(inode(), before);
    }
}
