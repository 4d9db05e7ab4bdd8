//! The host's operating system, machine and boot.

use std::{io, time::Duration};

use gpu_operator_crd::report::OsRelease;
use k8s_openapi::jiff::Timestamp;

use crate::root::HostRoot;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The machine's product name, from its firmware.
const PRODUCT_NAME: &str = "/sys/class/dmi/id/product_name";
const MAX_PRODUCT_NAME: u64 = 1024;
const UPTIME: &str = "/proc/uptime";
/// The possible error of the kernel log's clock, as a fraction of the time since the boot: unlike other clocks, it is
/// not corrected by NTP. 0.01 %, nine seconds a day, is more than the crystals of servers deviate.
const DRIFT: u32 = 10_000;

/// Returns the host's `ID` and `VERSION_ID`; empty if not set or if there is no os-release.
pub fn release(host: &HostRoot) -> io::Result<OsRelease> {
    // The first is usually a link to the second; some distributions lack the link.
    for path in ["/etc/os-release", "/usr/lib/os-release"] {
        if let Some(text) = host.read_if_present(path)? {
            return Ok(parse(&text));
        }
    }
    Ok(OsRelease::default())
}

/// Returns the machine's product name, if its firmware has one: virtual machines and boards without DMI may not.
pub fn machine(host: &HostRoot) -> Option<String> {
    let name = host.bytes(PRODUCT_NAME, MAX_PRODUCT_NAME).ok()?;
    Some(String::from_utf8_lossy(&name).trim().to_owned())
}

/// Returns the kernel's boot id. A container shares the host's kernel, so its own /proc is a fallback.
pub fn boot_id(host: &HostRoot) -> io::Result<String> {
    host.read(BOOT_ID).or_else(|_| HostRoot::new("/").read(BOOT_ID))
}

/// Returns the earliest time at which the kernel log's clock may have started: new entries may appear older than they
/// are, but never newer.
pub fn booted(host: &HostRoot, now: Timestamp) -> io::Result<Timestamp> {
    let text = host.read(UPTIME).or_else(|_| HostRoot::new("/").read(UPTIME))?;
    let seconds = text.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
    let uptime = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    uptime
        .and_then(|uptime| now.checked_sub(uptime.saturating_add(uptime / DRIFT)).ok())
        .ok_or_else(|| io::Error::other(format!("{UPTIME} contains no valid time: {text}")))
}

fn parse(text: &str) -> OsRelease {
    let mut os = OsRelease::default();
    for line in text.lines() {
        // The last of several assignments applies, as in a shell.
        match line.trim().split_once('=') {
            Some(("ID", value)) => os.id = unquote(value),
            Some(("VERSION_ID", value)) => os.version_id = unquote(value),
            _ => {}
        }
    }
    os
}

/// Returns the value of a shell assignment without expansions, with either kind of quotes and with backslashes.
fn unquote(value: &str) -> String {
    let value = value.trim();
    if let Some(inner) = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        return inner.to_owned();
    }
    let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
    let mut plain = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        plain.push(if character == '\\' { characters.next().unwrap_or('\\') } else { character });
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn id_and_version_are_read_with_any_quotes() {
        for (text, id, version) in [
            ("ID=ubuntu\nVERSION_ID=\"22.04\"\n", "ubuntu", "22.04"),
            ("ID='rhel'\nVERSION_ID='9.4'", "rhel", "9.4"),
            ("# ID=comment\nID_LIKE=debian\nNAME=\"ID=no\"\nID=debian", "debian", ""),
            ("ID=\"co\\\"s\"\r\nVERSION_ID=117\r\n", "co\"s", "117"),
            ("ID=first\nID=second", "second", ""),
            ("ID=\nVERSION_ID", "", ""),
            ("", "", ""),
            ("ID=\"", "\"", ""),
        ] {
            let os = parse(text);
            assert_eq!((os.id.as_str(), os.version_id.as_str()), (id, version), "{text:?}");
        }
    }

    #[test]
    fn the_link_to_usr_lib_is_followed_on_the_host() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["etc", "usr/lib"] {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        symlink("/usr/lib/os-release", directory.path().join("etc/os-release")).unwrap();
        fs::write(directory.path().join("usr/lib/os-release"), "ID=of-the-host").unwrap();
        assert_eq!(release(&HostRoot::new(directory.path())).unwrap().id, "of-the-host");
    }

    #[test]
    fn a_host_without_etc_os_release_uses_usr_lib() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("usr/lib")).unwrap();
        fs::write(directory.path().join("usr/lib/os-release"), "ID=cos").unwrap();
        assert_eq!(release(&HostRoot::new(directory.path())).unwrap().id, "cos");
    }

    #[test]
    fn the_machines_name_comes_from_its_firmware_if_it_has_one() {
        let directory = tempfile::tempdir().unwrap();
        let host = HostRoot::new(directory.path());
        assert_eq!(machine(&host), None);
        let file = directory.path().join(PRODUCT_NAME.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        for (text, name) in [(&b" PowerEdge R750 \n"[..], "PowerEdge R750"), (b"\n", ""), (b"DGX\xff", "DGX\u{fffd}")] {
            fs::write(&file, text).unwrap();
            assert_eq!(machine(&host).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_missing_os_release_is_empty_an_unreadable_one_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let host = HostRoot::new(directory.path());
        assert_eq!(release(&host).unwrap(), OsRelease::default());
        fs::create_dir_all(directory.path().join("etc")).unwrap();
        fs::write(directory.path().join("etc/os-release"), [0xff, 0xfe]).unwrap();
        assert!(release(&host).is_err());
    }

    #[test]
    fn the_logs_time_starts_at_the_boot_or_slightly_earlier() {
        let directory = tempfile::tempdir().unwrap();
        let host = HostRoot::new(directory.path());
        let now = Timestamp::from_second(10_000_000).unwrap();
        // Without the host's, this kernel's is used.
        assert!(booted(&host, now).unwrap() < now);
        fs::create_dir_all(directory.path().join("proc")).unwrap();
        fs::write(directory.path().join("proc/uptime"), "1000000.50 7654321.00\n").unwrap();
        assert_eq!(booted(&host, now).unwrap(), "1970-04-15T03:58:19.49995Z".parse().unwrap());
        for wrong in ["", "-1 2", "long", "1e300"] {
            fs::write(directory.path().join("proc/uptime"), wrong).unwrap();
            assert!(booted(&host, now).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_boot_id_is_the_hosts_or_else_this_kernels() {
        let directory = tempfile::tempdir().unwrap();
        let host = HostRoot::new(directory.path());
        assert_eq!(boot_id(&host).unwrap(), fs::read_to_string(BOOT_ID).unwrap().trim());
        fs::create_dir_all(directory.path().join("proc/sys/kernel/random")).unwrap();
        fs::write(directory.path().join(BOOT_ID.trim_start_matches('/')), "another\n").unwrap();
        assert_eq!(boot_id(&host).unwrap(), "another");
    }
}
