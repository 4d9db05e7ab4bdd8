//! The folder for the toolkit, whose programs are written by a container and started on the host: it must be on a file system that is
//! mounted writable and executable.

use std::{
    io,
    path::{Path, PathBuf},
};

use gpu_operator_crd::report::TOOLKIT_FOLDERS;

use crate::root::{HostRoot, present};

/// The mounts of the host's first process.
const MOUNTS: &str = "/proc/1/mountinfo";
/// Each container of the node has some mounts.
const MAX_MOUNTS_BYTES: u64 = 16 * 1024 * 1024;
/// A program of the toolkit in its folder.
const INSTALLED: &str = "toolkit/nvidia-cdi-hook";

/// Returns the first suitable folder; of several, one in which the toolkit is already installed.
pub fn choose(host: &HostRoot) -> io::Result<Option<&'static str>> {
    let mounts = host.bytes(MOUNTS, MAX_MOUNTS_BYTES)?;
    let mounts = String::from_utf8_lossy(&mounts);
    let mut suitable = Vec::new();
    for folder in TOOLKIT_FOLDERS {
        if is_suitable(&mounts, &existing(host, Path::new(folder))?) {
            suitable.push(folder);
        }
    }
    let installed = suitable.iter().find(|folder| host.metadata(Path::new(folder).join(INSTALLED)).is_ok());
    Ok(installed.or(suitable.first()).copied())
}

/// Returns the part of a path that exists, without links.
fn existing(host: &HostRoot, folder: &Path) -> io::Result<PathBuf> {
    for ancestor in folder.ancestors() {
        if let Some(found) = present(host.resolve(ancestor))? {
            let inside = found.strip_prefix(host.as_path()).unwrap_or(&found);
            return Ok(Path::new("/").join(inside));
        }
    }
    Ok(PathBuf::from("/"))
}

/// Of mounts one over another, the last is visible.
fn is_suitable(mounts: &str, path: &Path) -> bool {
    let above = mounts.lines().filter_map(Mount::parse).filter(|mount| path.starts_with(mount.point));
    above.max_by_key(|mount| mount.point.len()).is_some_and(|mount| !mount.has("ro") && !mount.has("noexec"))
}

struct Mount<'t> {
    point: &'t str,
    /// Those of the mount and those of its file system.
    options: [&'t str; 2],
}

impl<'t> Mount<'t> {
    /// Parses a line such as `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda1 rw`. The escaped characters in paths do not occur in
    /// [`TOOLKIT_FOLDERS`].
    fn parse(line: &'t str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(4);
        let (point, options) = (fields.next()?, fields.next()?);
        Some(Self { point, options: [options, file_system.rsplit(' ').next()?] })
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|options| options.split(',').any(|one| one == option))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A host with these mounts, folders and links.
    fn host(mounts: &[(&str, &str, &str)], folders: &[&str], links: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let inside = |path: &str| directory.path().join(path.trim_start_matches('/'));
        let text = mounts.iter().enumerate().map(|(index, (point, options, file_system))| {
            format!("{} 1 259:{index} / {point} {options} shared:{index} - {file_system}\n", index + 20)
        });
        for folder in ["/proc/1"].iter().chain(folders) {
            fs::create_dir_all(inside(folder)).unwrap();
        }
        for (link, target) in links {
            fs::create_dir_all(inside(link).parent().unwrap()).unwrap();
            symlink(target, inside(link)).unwrap();
        }
        fs::write(inside(MOUNTS), text.collect::<String>()).unwrap();
        directory
    }

    fn chosen(host: &tempfile::TempDir) -> Option<&'static str> {
        choose(&HostRoot::new(host.path())).unwrap()
    }

    const ROOT: (&str, &str, &str) = ("/", "rw,relatime", "ext4 /dev/sda1 rw,errors=remount-ro");
    const READ_ONLY_ROOT: (&str, &str, &str) = ("/", "ro,relatime", "erofs /dev/dm-0 ro");

    #[test]
    fn every_system_has_a_folder() {
        let usual = ["/usr/local/bin", "/opt", "/var/lib"];
        for (system, mounts, links, expected) in [
            ("Ubuntu", &[ROOT, ("/boot/efi", "rw,relatime", "vfat /dev/sda15 rw,fmask=0077")][..], None, "/usr/local"),
            (
                "RHEL",
                &[("/", "rw,relatime", "xfs /dev/mapper/rhel-root rw,seclabel"), ("/opt", "ro", "nfs4 nas:/opt ro")],
                None,
                "/usr/local",
            ),
            // A partition of its own, hardened.
            ("Ubuntu with /usr/local", &[ROOT, ("/usr/local", "rw,nodev,noexec", "ext4 /dev/sdb rw")], None, "/opt"),
            ("A read-only image", &[ROOT, ("/usr/local", "rw,relatime", "squashfs /dev/loop0 ro")], None, "/opt"),
            ("Flatcar", &[ROOT, ("/usr", "ro,relatime", "btrfs /dev/mapper/usr ro,rescue=nologreplay")], None, "/opt"),
            (
                "Fedora CoreOS",
                &[
                    ("/", "ro,relatime", "overlay composefs ro,seclabel,lowerdir+=/run/ostree,datadir+=/sysroot"),
                    ("/etc", "rw,relatime", "xfs /dev/sda4 rw"),
                    ("/var", "rw,relatime", "xfs /dev/sda4 rw,seclabel"),
                ],
                Some(("/usr/local", "../var/usrlocal")),
                "/usr/local",
            ),
            (
                "Talos",
                &[
                    READ_ONLY_ROOT,
                    ("/var", "rw,nosuid,nodev,noatime", "xfs /dev/sda4 rw,prjquota"),
                    (
                        "/opt",
                        "rw,nosuid,nodev",
                        "overlay overlay rw,lowerdir=/opt,upperdir=/var/system/overlays/opt-diff",
                    ),
                ],
                None,
                "/opt",
            ),
            (
                "Bottlerocket",
                &[
                    READ_ONLY_ROOT,
                    ("/local", "rw,nosuid,nodev,noatime", "xfs /dev/nvme1n1p1 rw,seclabel"),
                    ("/opt", "rw,nosuid,nodev,noatime", "xfs /dev/nvme1n1p1 rw,seclabel"),
                    ("/var", "rw,nosuid,nodev,noatime", "xfs /dev/nvme1n1p1 rw,seclabel"),
                ],
                None,
                "/opt",
            ),
            (
                "COS",
                &[
                    READ_ONLY_ROOT,
                    ("/var", "rw,nosuid,nodev,noexec,relatime", "ext4 /dev/sda1 rw,commit=30"),
                    ("/home", "rw,nosuid,nodev,noexec,relatime", "ext4 /dev/sda1 rw,commit=30"),
                    ("/var/lib/google", "rw,nosuid,nodev,relatime", "ext4 /dev/sda1 rw,commit=30"),
                ],
                None,
                "/var/lib/google",
            ),
            ("NixOS", &[ROOT, ("/nix/store", "ro,nosuid,nodev", "ext4 /dev/sda1 rw")], None, "/usr/local"),
            ("openSUSE MicroOS", &[READ_ONLY_ROOT, ("/opt", "rw", "btrfs /dev/sda3 rw,subvol=/@/opt")], None, "/opt"),
            ("Ubuntu Core", &[READ_ONLY_ROOT, ("/var/lib", "rw", "ext4 /dev/sda3 rw")], None, "/var/lib"),
            // GKE mounts a folder of COS again, executable.
            (
                "GKE",
                &[READ_ONLY_ROOT, ("/home/kubernetes/bin", "rw,nosuid,nodev", "ext4 /dev/sda1 rw")],
                None,
                "/home/kubernetes/bin",
            ),
        ] {
            let present = links.map_or(&usual[..], |_| &["/var/usrlocal", "/opt", "/var/lib", "/home/kubernetes/bin"]);
            let more = ["/home/kubernetes/bin", "/var/lib/google"];
            let host = host(mounts, &[present, &more].concat(), links.as_slice());
            assert_eq!(chosen(&host), Some(format!("{expected}/nvidia").as_str()), "{system}");
        }
    }

    #[test]
    fn a_folder_with_the_toolkit_stays_while_it_is_suitable() {
        let var = ("/var", "rw", "ext4 /dev/sda2 rw");
        let later = host(&[ROOT, var], &["/usr/local", "/var/lib"], &[]);
        fs::create_dir_all(later.path().join("opt/nvidia/toolkit")).unwrap();
        assert_eq!(chosen(&later), Some("/usr/local/nvidia"), "nothing is installed");
        fs::write(later.path().join("opt/nvidia").join(INSTALLED), "").unwrap();
        assert_eq!(chosen(&later), Some("/opt/nvidia"));
        let mounts = "20 1 8:1 / / ro - ext4 /dev/sda1 ro\n21 1 8:2 / /var rw - ext4 /dev/sda2 rw\n";
        fs::write(later.path().join("proc/1/mountinfo"), mounts).unwrap();
        assert_eq!(chosen(&later), Some("/var/lib/nvidia"));
    }

    #[test]
    fn the_last_of_several_mounts_decides() {
        let over = |last: &'static str| host(&[READ_ONLY_ROOT, ("/", last, "overlay overlay rw")], &["/usr"], &[]);
        assert_eq!(chosen(&over("rw")), Some("/usr/local/nvidia"));
        assert_eq!(chosen(&over("rw,noexec")), None);
        // A folder with a similar name.
        assert_eq!(chosen(&host(&[READ_ONLY_ROOT, ("/opt/nvidia2", "rw", "ext4 a rw")], &["/opt"], &[])), None);
        let none = tempfile::tempdir().unwrap();
        assert!(choose(&HostRoot::new(none.path())).is_err());
    }
}
