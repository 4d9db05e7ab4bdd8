//! The step before a driver installation that unbinds the GPUs from the kernel's own drivers for them: nouveau, and nova, its successor.

use std::{ffi::CString, fs, io, path::Path, time::Duration};

use gpu_host::{
    observe::pci,
    root::{HostRoot, present},
};
use nix::{
    errno::Errno,
    kmod::{DeleteModuleFlags, delete_module},
};
use tokio::time::sleep;

use super::wait::GateStatus;

const MODULES: &str = "/sys/module";
/// The drivers on the PCI bus, each with a link for each device that is bound to it.
const DRIVERS: &str = "/sys/bus/pci/drivers";

/// A driver of the kernel, which may be unloaded. Other drivers that hold a GPU may do so on purpose.
struct KernelDriver {
    /// Its modules in the order in which they can be unloaded. The last one binds to GPUs and loads the others.
    modules: &'static [&'static str],
    /// The options that prevent it from binding to GPUs, beside its place in a blacklist.
    options: &'static str,
    /// What helps if it is built into the kernel.
    built_in: &'static str,
}

const KERNEL_DRIVERS: [KernelDriver; 2] = [
    KernelDriver {
        modules: &["nouveau"],
        options: " and \"options nouveau modeset=0\"",
        built_in: "Add nouveau.modeset=0 to the kernel command line of the node and reboot it",
    },
    KernelDriver {
        modules: &["nova_drm", "nova", "nova_core"],
        options: "",
        built_in: "Boot the node with a kernel in which it is a module",
    },
];

/// Unloads a module, which unbinds all its devices.
pub fn unload(module: &str) -> io::Result<()> {
    Ok(delete_module(&CString::new(module)?, DeleteModuleFlags::O_NONBLOCK)?)
}

/// Checks once, and unloads the drivers that are unused. A fact that cannot be read keeps the gate closed.
pub fn step(host: &HostRoot, unload: impl Fn(&str) -> io::Result<()>) -> GateStatus {
    let mut found = Vec::new();
    for driver in &KERNEL_DRIVERS {
        for module in driver.modules {
            match driver.step(host, module, &unload) {
                GateStatus::Open(text) => found.extend((!text.is_empty()).then_some(text)),
                waiting @ GateStatus::Waiting(_) => return waiting,
            }
        }
    }
    GateStatus::Open(if found.is_empty() { "neither nouveau nor nova is loaded".to_owned() } else { found.join("; ") })
}

impl KernelDriver {
    /// The text is empty for a module that is not loaded.
    fn step(&self, host: &HostRoot, module: &str, unload: impl Fn(&str) -> io::Result<()>) -> GateStatus {
        let path = format!("{MODULES}/{module}");
        if host.metadata(&path).is_err() {
            return GateStatus::Open(String::new());
        }
        let users = match host.read_if_present(format!("{path}/refcnt")) {
            Ok(Some(count)) if count == "0" => match unload(module) {
                Ok(()) => return GateStatus::Open(format!("{module} was loaded and unused, and has been unloaded")),
                // Another process has unloaded it.
                Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {
                    return GateStatus::Open(String::new());
                }
                Err(error) => format!("the kernel does not unload it: {error}"),
            },
            Ok(Some(count)) => format!("it is in use (use count {count}), such as by a console or a display server"),
            // Without a count, the module is built into the kernel, or the kernel cannot unload modules.
            Ok(None) => return self.step_in_kernel(host, module),
            Err(error) => format!("its use count cannot be read: {error}"),
        };
        let (listed, options) = (self.modules.last().unwrap_or(&module), self.options);
        GateStatus::Waiting(format!(
            "GpuBoundToOtherDriver: kernel module {module} is loaded and {users}. Write \"blacklist {listed}\"{options} to \
             /etc/modprobe.d/{listed}.conf of the node, rebuild its initramfs and reboot it"
        ))
    }

    /// Checks a module that cannot be unloaded: the gate is open while no device is bound to it.
    fn step_in_kernel(&self, host: &HostRoot, module: &str) -> GateStatus {
        let holds = match bound_to(host, module) {
            Ok(bound) if bound.is_empty() => {
                return GateStatus::Open(format!("{module} cannot be unloaded from this kernel, and holds no device"));
            }
            Ok(bound) => format!("holds {}", bound.join(", ")),
            Err(error) => format!("its devices cannot be read: {error}"),
        };
        GateStatus::Waiting(format!(
            "GpuBoundToOtherDriver: {module} cannot be unloaded from this kernel, and {holds}. {}",
            self.built_in
        ))
    }
}

/// Returns the devices that are bound to the drivers of a module. The name of a driver, such as `NovaCore`, may differ from its module's.
fn bound_to(host: &HostRoot, module: &str) -> io::Result<Vec<String>> {
    let mut bound = Vec::new();
    for driver in host.names(DRIVERS)? {
        let path = format!("{DRIVERS}/{driver}");
        let link = present(fs::read_link(host.resolve(&path)?.join("module")))?;
        let is_of_module = match link.as_deref().and_then(Path::file_name) {
            Some(name) => name == module,
            None => driver == module,
        };
        if is_of_module {
            // In addition to its devices, a driver's directory has files such as `bind`.
            bound.extend(host.names(&path)?.into_iter().filter(|name| pci::normalise(name).is_some()));
        }
    }
    Ok(bound)
}

/// Checks every `interval` until no driver is in the way, and passes each changed status to `notify`.
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
    use std::{
        cell::{Cell, RefCell},
        os::unix::fs::symlink,
    };

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
            (false, None, None, true, false, "neither nouveau nor nova is loaded"),
            (true, Some("0"), None, true, true, "has been unloaded"),
            (true, Some("2"), None, false, false, "in use (use count 2)"),
            (true, Some("-1"), None, false, false, "in use"),
            (true, Some("0"), Some(Errno::EWOULDBLOCK), false, true, "does not unload it"),
            (true, Some("0"), Some(Errno::ENOENT), true, true, "neither nouveau nor nova is loaded"),
        ];
        for (loaded, count, errno, open, asked, expected) in cases {
            let (_directory, root) = host(loaded, count, &["0000:01:00.0"]);
            let was_asked = Cell::new(false);
            let status = step(&root, |module| {
                assert_eq!(module, "nouveau");
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
            (&["bind", "new_id", "uevent"], true, "holds no device"),
            (&["bind", "0000:01:00.0", "uevent"], false, "holds 0000:01:00.0"),
            (&["0000:01:00.0", "10000:e1:00.0", "bind"], false, "holds 0000:01:00.0, 10000:e1:00.0"),
        ];
        for (bus, open, expected) in cases {
            let (_directory, root) = host(true, None, bus);
            let status = step(&root, |_| panic!("the kernel was requested to unload nouveau"));
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
        symlink("nouveau", &loop_of_links).unwrap();
        let status = step(&root, |_| panic!("the kernel was requested to unload nouveau"));
        assert!(matches!(&status, GateStatus::Waiting(text) if text.contains("cannot be read")), "{status:?}");
    }

    /// A host with nova: its modules with their use counts, and `NovaCore` bound to a GPU.
    fn nova(modules: &[(&str, Option<&str>)]) -> (tempfile::TempDir, HostRoot) {
        let (directory, root) = host(false, None, &[]);
        for (module, count) in modules {
            let path = directory.path().join("sys/module").join(module);
            fs::create_dir_all(&path).unwrap();
            if let Some(count) = count {
                fs::write(path.join("refcnt"), format!("{count}\n")).unwrap();
            }
        }
        let driver = directory.path().join("sys/bus/pci/drivers/NovaCore");
        fs::create_dir_all(driver.join("0000:01:00.0")).unwrap();
        symlink("../../../../module/nova_core", driver.join("module")).unwrap();
        (directory, root)
    }

    #[test]
    fn an_unused_nova_is_unloaded_with_the_modules_that_use_it() {
        // The modules, what is unloaded, whether the gate is open, the text.
        type Case<'a> = (&'a [(&'a str, Option<&'a str>)], &'a [&'a str], bool, &'a str);
        let cases: [Case<'_>; 5] = [
            (&[("nova_core", Some("0"))], &["nova_core"], true, "nova_core was loaded and unused"),
            (&[("nova_core", Some("0")), ("nova_drm", Some("0"))], &["nova_drm", "nova_core"], true, "unloaded"),
            (
                &[("nova_core", Some("1")), ("nova_drm", Some("2"))],
                &[],
                false,
                "module nova_drm is loaded and it is in use",
            ),
            (&[("nova_core", Some("1"))], &[], false, "module nova_core is loaded and it is in use (use count 1)"),
            (&[("nova_core", None)], &[], false, "holds 0000:01:00.0"),
        ];
        for (modules, unloaded, open, expected) in cases {
            let (_directory, root) = nova(modules);
            let asked = RefCell::new(Vec::new());
            let status = step(&root, |module| {
                asked.borrow_mut().push(module.to_owned());
                Ok(())
            });
            let (GateStatus::Open(text) | GateStatus::Waiting(text)) = &status;
            assert!(text.contains(expected), "{text}");
            assert_eq!(
                (matches!(status, GateStatus::Open(_)), asked.into_inner()),
                (open, unloaded.iter().map(|&m| m.to_owned()).collect()),
                "{text}"
            );
            assert!(open || text.starts_with("GpuBoundToOtherDriver: ") && text.contains("nova_core"), "{text}");
        }
    }
}
