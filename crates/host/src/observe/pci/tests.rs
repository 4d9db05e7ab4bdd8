use std::os::unix::fs::symlink;

use super::*;

/// A sysfs with these devices: address, vendor, device, class, driver.
fn sysfs(devices: &[(&str, &str, &str, &str, &str)]) -> (tempfile::TempDir, HostRoot) {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("sys/bus/pci/devices")).unwrap();
    for (address, vendor, device, class, driver) in devices {
        // As in the kernel: a link into the device tree.
        let real = directory.path().join("sys/devices/pci0000:00").join(address);
        fs::create_dir_all(&real).unwrap();
        for (name, value) in [("vendor", vendor), ("device", device), ("class", class)] {
            if !value.is_empty() {
                fs::write(real.join(name), format!("{value}\n")).unwrap();
            }
        }
        if !driver.is_empty() {
            symlink(format!("../../../bus/pci/drivers/{driver}"), real.join("driver")).unwrap();
        }
        symlink(
            format!("../../../devices/pci0000:00/{address}"),
            directory.path().join("sys/bus/pci/devices").join(address),
        )
        .unwrap();
    }
    let root = HostRoot::new(directory.path());
    (directory, root)
}

fn found(devices: &[(&str, &str, &str, &str, &str)]) -> Vec<String> {
    let (_directory, root) = sysfs(devices);
    gpus(&root).unwrap().into_iter().map(|gpu| format!("{} {}", gpu.address, gpu.device_id)).collect()
}

#[test]
fn both_halves_of_a_k80_are_found_in_order_of_address() {
    let k80 = [
        ("0000:07:00.0", "0x10de", "0x102d", "0x030200", "nvidia"),
        ("0000:06:00.0", "0x10de", "0x102d", "0x030200", ""),
    ];
    assert_eq!(found(&k80), ["0000:06:00.0 102d", "0000:07:00.0 102d"]);
}

#[test]
fn only_nvidias_vga_and_3d_controllers_are_gpus() {
    let devices = [
        ("0000:01:00.0", "0x10de", "0x1CB6", "0x030000", ""),
        ("0000:01:00.1", "0x10de", "0x0fb9", "0x040300", "snd_hda_intel"),
        ("0000:02:00.0", "0x10de", "0x2330", "0x030200", ""),
        ("0000:03:00.0", "0x10de", "0x22a3", "0x068000", ""),
        ("0000:04:00.0", "0x10de", "0x1ad6", "0x0c0330", ""),
    ];
    assert_eq!(found(&devices), ["0000:01:00.0 1cb6", "0000:02:00.0 2330"]);
    let (_directory, root) = sysfs(&devices);
    assert_eq!(bus(&root).unwrap().bridges, ["22a3"], "an NVSwitch");
}

#[test]
fn a_gpu_assigned_to_a_virtual_machine_is_not_counted() {
    let devices = [
        ("0000:01:00.0", "0x10de", "0x2330", "0x030200", "vfio-pci"),
        ("0000:02:00.0", "0x10de", "0x2330", "0x030200", "nvidia"),
    ];
    assert_eq!(found(&devices), ["0000:02:00.0 2330"]);
}

#[test]
fn other_drivers_and_passed_through_gpus_are_reported() {
    let devices = [
        ("0000:01:00.0", "0x10de", "0x2330", "0x030200", "vfio-pci"),
        ("0000:02:00.0", "0x10de", "0x2330", "0x030200", "nvidia"),
        ("0000:03:00.0", "0x10de", "0x2330", "0x030200", "nouveau"),
        ("0000:04:00.0", "0x10de", "0x2330", "0x030200", ""),
        ("0000:05:00.0", "0x10de", "0x2330", "0x030200", "vfio-pci"),
        ("0000:05:00.1", "0x10de", "0x0fb9", "0x040300", "vfio-pci"),
    ];
    let (_directory, root) = sysfs(&devices);
    let bus = bus(&root).unwrap();
    assert_eq!(bus.gpus.len(), 3);
    assert_eq!(bus.passed_through, ["0000:01:00.0", "0000:05:00.0"]);
    assert_eq!(bus.held_by, BTreeMap::from([("0000:03:00.0".to_owned(), "nouveau".to_owned())]));
}

/// The path of a device in the tree of [`sysfs`].
fn device(directory: &tempfile::TempDir, address: &str) -> std::path::PathBuf {
    directory.path().join("sys/devices/pci0000:00").join(address)
}

/// Two L40S with NVIDIA's driver, of which the first has two virtual functions with this driver.
fn with_functions(driver: &str) -> (tempfile::TempDir, HostRoot) {
    let l40s = |address, driver| (address, "0x10de", "0x26b9", "0x030200", driver);
    let (directory, root) = sysfs(&[
        l40s("0000:3b:00.0", "nvidia"),
        l40s("0000:3b:00.4", driver),
        l40s("0000:3b:00.5", "nvidia"),
        l40s("0000:5e:00.0", "nvidia"),
    ]);
    for function in ["0000:3b:00.4", "0000:3b:00.5"] {
        symlink("../0000:3b:00.0", device(&directory, function).join("physfn")).unwrap();
    }
    (directory, root)
}

/// Gives a function a type of virtual GPU, of which 0 is none.
fn set_vgpu_type(directory: &tempfile::TempDir, kind: &str) {
    let folder = device(directory, "0000:3b:00.5").join("nvidia");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("current_vgpu_type"), format!("{kind}\n")).unwrap();
}

fn add_mediated(directory: &tempfile::TempDir, parent: &str) {
    let uuid = "7f5b3e2c-0000-4000-8000-000000000001";
    fs::create_dir_all(device(directory, parent).join(uuid)).unwrap();
    let bus = directory.path().join("sys/bus/mdev/devices");
    fs::create_dir_all(&bus).unwrap();
    symlink(format!("../../../devices/pci0000:00/{parent}/{uuid}"), bus.join(uuid)).unwrap();
}

/// Adds something to a sysfs.
type Make = fn(&tempfile::TempDir);

fn addresses(bus: &Bus) -> Vec<&str> {
    bus.gpus.iter().map(|gpu| gpu.address.as_str()).collect()
}

#[test]
fn virtual_functions_are_no_gpus_of_the_host() {
    let (_directory, root) = with_functions("nvidia");
    let bus = bus(&root).unwrap();
    assert_eq!(addresses(&bus), ["0000:3b:00.0", "0000:5e:00.0"]);
    assert!(bus.passed_through.is_empty() && bus.held_by.is_empty(), "{bus:?}");
}

#[test]
fn a_gpu_whose_functions_virtual_machines_use_is_passed_through() {
    let cases: [(&str, &str, Make, bool); 6] = [
        ("a function of vfio-pci", "vfio-pci", |_| {}, true),
        ("a function of NVIDIA's vfio driver", "nvidia-vgpu-vfio", |_| {}, true),
        ("a vGPU by a function's type", "nvidia", |directory| set_vgpu_type(directory, "558"), true),
        ("no vGPU", "nvidia", |directory| set_vgpu_type(directory, "0"), false),
        ("a mediated device of a function", "nvidia", |directory| add_mediated(directory, "0000:3b:00.4"), true),
        ("a mediated device of the GPU", "nvidia", |directory| add_mediated(directory, "0000:3b:00.0"), true),
    ];
    for (what, driver, make, used) in cases {
        let (directory, root) = with_functions(driver);
        make(&directory);
        let bus = bus(&root).unwrap();
        let passed: &[&str] = if used { &["0000:3b:00.0"] } else { &[] };
        assert_eq!(bus.passed_through, passed, "{what}");
        let gpus: &[&str] = if used { &["0000:5e:00.0"] } else { &["0000:3b:00.0", "0000:5e:00.0"] };
        assert_eq!(addresses(&bus), gpus, "{what}");
    }
}

#[test]
fn every_driver_for_virtual_machines_passes_a_gpu_through() {
    for (driver, module, passed) in [
        ("vfio-pci", "vfio_pci", true),
        ("nvgrace-gpu-vfio-pci", "nvgrace_gpu_vfio_pci", true),
        ("nvidia_vgpu_vfio", "nvidia_vgpu_vfio", true),
        ("pci-stub", "pci_stub", true),
        // A driver of another name whose module has the word.
        ("gpu-for-guests", "acme_vfio", true),
        ("nouveau", "nouveau", false),
        ("NovaCore", "nova_core", false),
    ] {
        let (directory, root) = sysfs(&[("0000:01:00.0", "0x10de", "0x2330", "0x030200", driver)]);
        let folder = directory.path().join("sys/bus/pci/drivers").join(driver);
        fs::create_dir_all(&folder).unwrap();
        symlink(format!("../../../../module/{module}"), folder.join("module")).unwrap();
        let bus = bus(&root).unwrap();
        assert_eq!((bus.passed_through.len(), bus.held_by.len()), if passed { (1, 0) } else { (0, 1) }, "{driver}");
    }
}

#[test]
fn virtual_gpus_are_reported_only_if_every_config_can_be_read() {
    let devices = [
        ("0000:01:00.0", "0x10de", "0x2330", "0x030200", "nvidia"),
        ("0000:02:00.0", "0x10de", "0x1CB6", "0x030000", ""),
        ("0000:02:00.1", "0x10de", "0x0fb9", "0x040300", ""),
    ];
    let (directory, root) = sysfs(&devices);
    let classes: Vec<_> = bus(&root).unwrap().gpus.into_iter().map(|gpu| gpu.class).collect();
    assert_eq!(classes, ["030200", "030000"]);
    assert_eq!(bus(&root).unwrap().vgpu, None);
    let config = |address: &str, bytes: usize| {
        fs::write(directory.path().join("sys/bus/pci/devices").join(address).join("config"), vec![0; bytes]).unwrap();
    };
    for (address, ..) in &devices {
        config(address, 4096);
    }
    assert_eq!(bus(&root).unwrap().vgpu, Some(VirtualGpus::default()));
    // What the kernel shows to readers without privileges.
    config("0000:02:00.1", 64);
    assert_eq!(bus(&root).unwrap().vgpu, None);
}

#[test]
fn a_vga_controller_of_another_vendor_is_not_counted() {
    assert!(found(&[("0000:00:02.0", "0x8086", "0x3e98", "0x030000", "i915")]).is_empty());
}

#[test]
fn a_device_that_disappears_while_it_is_read_is_skipped() {
    let devices = [
        ("0000:01:00.0", "0x10de", "0x2330", "", ""),
        ("0000:02:00.0", "0x10de", "", "0x030200", ""),
        ("0000:03:00.0", "", "", "", ""),
        ("0000:04:00.0", "0x10de", "0x2330", "0x030200", ""),
    ];
    let (directory, root) = sysfs(&devices);
    symlink("../../../devices/pci0000:00/gone", directory.path().join("sys/bus/pci/devices/0000:05:00.0")).unwrap();
    let addresses: Vec<_> = gpus(&root).unwrap().into_iter().map(|gpu| gpu.address).collect();
    assert_eq!(addresses, ["0000:04:00.0"]);
}

#[test]
fn a_machine_without_a_pci_bus_has_no_gpus() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("sys/bus")).unwrap();
    assert!(gpus(&HostRoot::new(directory.path())).unwrap().is_empty());
}

#[test]
fn a_missing_sysfs_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = gpus(&HostRoot::new(directory.path())).unwrap_err();
    assert!(matches!(error, PciError::NoSysfs(_)), "{error}");
}

#[test]
fn nvml_addresses_are_normalised_to_sysfs_notation() {
    for (from, to) in [
        ("00000000:06:00.0", Some("0000:06:00.0")),
        ("00000000:AF:1F.0", Some("0000:af:1f.0")),
        ("00010000:01:00.0", Some("10000:01:00.0")),
        ("0000:06:00.0", Some("0000:06:00.0")),
        ("", None),
        ("GPU-1234", None),
        ("00000000:06:00", None),
    ] {
        assert_eq!(normalise(from).as_deref(), to, "{from}");
    }
}
