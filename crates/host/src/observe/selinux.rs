//! Whether SELinux is enabled, and whether its policy has the type of containers that use files of the host.

use std::io;

use crate::root::{HostRoot, present};

/// The kernel's file system for SELinux is mounted once a policy has been loaded. The file exists in permissive mode, too.
const ENFORCE: &str = "/sys/fs/selinux/enforce";
/// The loaded policy in its binary form, which contains the names of all types.
const POLICY: &str = "/sys/fs/selinux/policy";
/// Those of distributions have less than ten million.
const MAX_POLICY_BYTES: u64 = 64 * 1024 * 1024;
/// From `container-selinux`, the policy of containers that most distributions have. A system with a policy of its own may not have the type,
/// and would start no container with it.
const TYPE: &[u8] = b"spc_t";

/// Returns whether containers need the type to use files of the host.
pub fn is_enabled(host: &HostRoot) -> io::Result<bool> {
    if present(host.metadata(ENFORCE))?.is_none() {
        return Ok(false);
    }
    let policy = host.bytes(POLICY, MAX_POLICY_BYTES)?;
    Ok(policy.windows(TYPE.len()).any(|name| name == TYPE))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn it_is_enabled_by_its_file_system_and_policy() {
        for (enforce, policy, enabled) in [
            (Some("1"), Some(&b"\x8c\xff|\xf9\x08\0\0\0SE Linux\x05\0\0\0spc_t\x01"[..]), Some(true)),
            // Permissive.
            (Some("0"), Some(b"container_t\x05\0\0\0spc_t"), Some(true)),
            // A policy of its own, as that of Bottlerocket.
            (Some("1"), Some(b"SE Linux\x09\0\0\0control_t\x07\0\0\0super_t"), Some(false)),
            (Some("1"), None, None),
            (None, None, Some(false)),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let folder = directory.path().join("sys/fs/selinux");
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in [("enforce", enforce.map(str::as_bytes)), ("policy", policy)] {
                if let Some(text) = text {
                    fs::write(folder.join(name), text).unwrap();
                }
            }
            assert_eq!(is_enabled(&HostRoot::new(directory.path())).ok(), enabled, "{enforce:?} {policy:?}");
        }
    }
}
