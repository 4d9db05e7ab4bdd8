//! The step before a driver installation that unbinds the GPUs from nouveau, the kernel's own driver for them.

use std::{io, time::Duration};

use gpu_host::{observe::pci, root::HostRoot};
use nix::{
    errno::Errno,
    kmod::{DeleteModuleFlags, delete_module},
};
use tokio::time::sleep;

use super::wait::GateStatus;

const MODULE: &str = "/sys/module/nouveau";
/// The driver on the PCI bus, with a link for each device that is bound to it.
const DRIVER: &str = "/sys/bus/pci/drivers/nouveau";

/// Unloads nouveau, which unbinds all its devices.
pub fn unload() -> io::Result<()> {
    Ok(delete_module(c"nouveau", DeleteModuleFlags::O_NONBLOCK)?)
}

/// Checks once, and unloads nouveau if it is unused. A fact that cannot be read keeps the gate closed.
pub fn step(host: &HostRoot, unload: impl Fn() -> io::Result<()>) -> GateStatus {
    if host.metadata(MODULE).is_err() {
        return GateStatus::Open("nouveau is not loaded".to_owned());
    }
    let users = match host.read_if_present(format!("{MODULE}/refcnt")) {
        Ok(Some(count)) if count == "0" => match unload() {
            Ok(()) => return GateStatus::Open("nouveau was loaded and unused, and has been unloaded".to_owned()),
            // Another process has unloaded it.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {
                return GateStatus::Open("nouveau is not loaded".to_owned());
            }
            Err(error) => format!("the kernel does not unload it: {error}"),
        },
        Ok(Some(count)) => format!("it is in use (use count {count}), such as by a console or a display server"),
        // Without a count, nouveau is built into the kernel, or the kernel cannot unload modules.
        Ok(None) => return step_in_kernel(host),
        Err(error) => format!("its use count cannot be read: {error}"),
    };
    GateStatus::Waiting(format!(
        "NouveauLoaded: kernel module nouveau is loaded and {users}. Write \"blacklist nouveau\" and \"options nouveau \
         modeset=0\" to /etc/modprobe.d/nouveau.conf of the node, rebuild its initramfs and reboot it"
    ))
}

/// Checks a nouveau that cannot be unloaded: the gate is open while no device is bound to it.
fn step_in_kernel(host: &HostRoot) -> GateStatus {
    let holds = match host.names(DRIVER) {
        Ok(names) => {
            // In addition to its devices, a driver's directory has files such as `bind`.
            let bound: Vec<_> = names.into_iter().filter(|name| pci::normalise(name).is_some()).collect();
            if bound.is_empty() {
                return GateStatus::Open("nouveau cannot be unloaded from this kernel, and holds no device".to_owned());
            }
            format!("holds {}", bound.join(", "))
        }
        Err(error) => format!("its devices cannot be read: {error}"),
    };
    GateStatus::Waiting(format!(
        "NouveauLoaded: nouveau cannot be unloaded from this kernel, and {holds}. Add nouveau.modeset=0 to the kernel \
         command line of the node and reboot it"
    ))
}

/// Checks every `interval` until nouveau is not in the way, and passes each changed status to `notify`.
pub async fn unload_unused(host: &HostRoot, interval: Duration, mut notify: impl FnMut(&str)) {
    let mut last = None;
    loop {
        let status = step(host, unload);
        let (GateStatus::Open(text) | GateStatus::Waiting(text)) = &status;
        if last.as_ref() != Some(&status) {
            notify(text);
        }
        if matches!(status, GateStatus::Open(_)) {
            return;
        }
        last = Some(status);
        sleep(interval).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs};

    use super::*;

    /// A host with nouveau loaded, its use count, and the content of the driver's directory on the PCI bus.
    fn host(loaded: bool, count: Option<&str>, bus: &[&str]) -> (tempfile::TempDir, HostRoot) {
        let directory = tempfile::tempdir().unwrap();
        let module = directory.path().join("sys/module/nouveau");
        if loaded {
            fs::create_dir_all(&module).unwrap();
        }
        if let Some(count) = count {
            fs::write(module.join("refcnt"), format!("{count}\n")).unwrap();
        }
        let driver = directory.path().join("sys/bus/pci/drivers/nouveau");
        for name in bus {
            fs::create_dir_all(driver.join(name)).unwrap();
        }
        let root = HostRoot::new(directory.path());
        (directory, root)
    }

    #[test]
    fn only_an_unused_nouveau_is_unloaded() {
        // Whether it is loaded, its count, the kernel's answer; whether the gate is open, whether the kernel was
        // called, the text.
        type Case<'a> = (bool, Option<&'a str>, Option<Errno>, bool, bool, &'a str);
        let cases: [Case<'_>; 6] = [
            (false, None, None, true, false, "is not loaded"),
            (true, Some("0"), None, true, true, "has been unloaded"),
            (true, Some("2"), None, false, false, "in use (use count 2)"),
            (true, Some("-1"), None, false, false, "in use"),
            (true, Some("0"), Some(Errno::EWOULDBLOCK), false, true, "does not unload it"),
            (true, Some("0"), Some(Errno::ENOENT), true, true, "is not loaded"),
        ];
        for (loaded, count, errno, open, asked, expected) in cases {
            let (_directory, root) = host(loaded, count, &["0000:01:00.0"]);
            let was_asked = Cell::new(false);
            let status = step(&root, || {
                was_asked.set(true);
                errno.map_or(Ok(()), |errno| Err(errno.into()))
            });
            let (GateStatus::Open(text) | GateStatus::Waiting(text)) = &status;
            assert!(text.contains(expected), "{text}");
            assert_eq!((matches!(status, GateStatus::Open(_)), was_asked.get()), (open, asked), "{text}");
            assert_eq!(text.contains("blacklist nouveau"), !open, "{text}");
        }
    }

    #[test]
    fn a_nouveau_that_stays_blocks_only_while_it_holds_a_device() {
        // The content of the driver's directory, whether the gate is open, the text.
        let cases: [(&[&str], bool, &str); 4] = [
            (&[], true, "holds no device"),
            (&["bind", "module", "new_id", "uevent"], true, "holds no device"),
            (&["bind", "0000:01:00.0", "uevent"], false, "holds 0000:01:00.0"),
            (&["0000:01:00.0", "10000:e1:00.0", "bind"], false, "holds 0000:01:00.0, 10000:e1:00.0"),
        ];
        for (bus, open, expected) in cases {
            let (_directory, root) = host(true, None, bus);
            let status = step(&root, || panic!("the kernel was requested to unload nouveau"));
            let (GateStatus::Open(text) | GateStatus::Waiting(text)) = &status;
            assert!(text.contains(expected), "{text}");
            assert_eq!(matches!(status, GateStatus::Open(_)), open, "{text}");
            // A modprobe configuration does not affect a built-in module.
            assert_eq!(text.contains("nouveau.modeset=0"), !open, "{text}");
            assert!(!text.contains("modprobe.d"), "{text}");
        }
    }

    #[test]
    fn an_unreadable_driver_directory_keeps_the_gate_closed() {
        let (directory, root) = host(true, None, &[]);
        let loop_of_links = directory.path().join("sys/bus/pci/drivers/nouveau");
        fs::create_dir_all(loop_of_links.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("nouveau", &loop_of_links).unwrap();
        let status = step(&root, || panic!("the kernel was requested to unload nouveau"));
        assert!(matches!(&status, GateStatus::Waiting(text) if text.contains("cannot be read")), "{status:?}");
    }
}
