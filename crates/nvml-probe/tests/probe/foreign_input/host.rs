//! Files of the host and of the kernel.

use std::{fs, path::Path};

use gpu_host::{
    nvml::supervisor::NvmlStatus,
    observe::{
        device_nodes,
        driver::library_directories,
        host_runtimes,
        kernel_log::{
            KernelLog, NewEvents, XidSource,
            record::{Message, Record},
        },
        os, pci, vgpu,
    },
    root::HostRoot,
};
use gpu_operator_crd::report::VirtualGpus;
use k8s_openapi::jiff::Timestamp;
use nvml_probe::{
    health::node::NodeHealth,
    report::build::{Facts, build_report},
};
use proptest::{collection::vec, prelude::*};
use tempfile::TempDir;
use test_support::damaged;

use super::{fits_the_api, samples};

/// Returns configurations of container runtimes.
fn configurations(kind: &str) -> Vec<Vec<u8>> {
    damaged::corpus(concat!(env!("CARGO_MANIFEST_DIR"), "/../node-tools"), kind)
}

/// Returns a host with these files.
fn host(files: &[(&str, &[u8])]) -> (TempDir, HostRoot) {
    let directory = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        write(directory.path(), path, bytes);
    }
    fs::create_dir_all(directory.path().join("sys/bus/pci/devices")).unwrap();
    let root = HostRoot::new(directory.path());
    (directory, root)
}

fn write(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn reports(facts: &Facts) {
    fits_the_api(&build_report(facts, &NvmlStatus::Absent(None), &NodeHealth::default()));
}

/// Returns what is read from a kernel log.
fn logged(bytes: &[u8]) -> NewEvents {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "kmsg", bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut log = KernelLog::open(&directory.path().join("kmsg"), Timestamp::UNIX_EPOCH).unwrap();
        log.read_all().await;
        log.take(Timestamp::now())
    })
}

fn is_bounded(events: &NewEvents, bytes: usize) {
    let counts: Vec<_> = events.xids.values().flatten().collect();
    assert!(counts.len() <= 1024 && counts.iter().map(|count| count.count).sum::<u64>() <= bytes as u64);
    for (address, counts) in &events.xids {
        assert_eq!(pci::normalise(address).as_ref(), Some(address), "an address that sysfs would not write");
        for count in counts {
            assert!(count.message.chars().count() <= 200 && !count.message.contains(char::is_control), "{count:?}");
            assert!(!matches!(count.source, XidSource::Nvml), "{count:?}");
        }
    }
}

/// The sample is the log of an H200's host, on which two programs have written to an invalid address; only the identifiers are others.
#[test]
fn xids_are_found_in_a_real_kernel_log() {
    let events = logged(include_bytes!("../../corpus/kernel_log/h200"));
    let found: Vec<_> = events
        .xids
        .iter()
        .flat_map(|(at, xids)| xids.iter().map(move |xid| (at.as_str(), xid.xid, xid.count)))
        .collect();
    assert_eq!(found, [("0000:00:06.0", 31, 2)]);
    let [xid] = &events.xids["0000:00:06.0"][..] else { panic!("{events:?}") };
    assert!(xid.message.contains("MMU Fault: ENGINE GRAPHICS"), "{}", xid.message);
    assert!(events.driver_loaded.is_some());
}

proptest! {
    #![proptest_config(test_support::random::config(256))]

    #[test]
    fn the_kernel_log(bytes in damaged::bytes(samples("kernel_log"))) {
        is_bounded(&logged(&bytes), bytes.len());
        for record in bytes.split(|byte| *byte == b'\n').filter_map(Record::parse) {
            let _ = Message::parse(record.message);
        }
    }

    #[test]
    fn os_release_and_the_names_of_machine_and_driver(
        release in damaged::bytes(samples("os_release")),
        name in damaged::bytes(samples("os_release")),
    ) {
        let (_directory, host) = host(&[
            ("etc/os-release", &release),
            ("sys/class/dmi/id/product_name", &name),
            ("proc/sys/kernel/random/boot_id", &name),
            ("proc/uptime", &name),
        ]);
        let _ = os::booted(&host, Timestamp::now());
        reports(&Facts {
            os: os::release(&host).unwrap_or_default(),
            machine: os::machine(&host),
            boot_id: os::boot_id(&host).unwrap_or_default(),
            loaded: Some(String::from_utf8_lossy(&name).into_owned()),
            waits: Some(String::from_utf8_lossy(&release).into_owned()),
            load_errors: Vec::new(),
            ..Facts::default()
        });
    }

    #[test]
    fn pci_devices(
        names in vec("[0-9a-fA-F:.x-]{1,60}", 1..4),
        device in prop_oneof!["0x[0-9a-fA-F]{0,40}", ".{0,40}"],
        class in prop_oneof!["0x0302[0-9a-fA-F]{0,40}", ".{0,40}"],
        configuration in damaged::bytes(samples("pci_config")),
    ) {
        let (directory, host) = host(&[]);
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            for (file, bytes) in [("vendor", &b"0x10de\n"[..]), ("device", device.as_bytes()), ("class", class.as_bytes()), ("config", &configuration)] {
                write(directory.path(), &format!("sys/bus/pci/devices/{name}/{file}"), bytes);
            }
        }
        reports(&Facts { bus: pci::bus(&host).unwrap_or_default(), ..Facts::default() });
    }

    #[test]
    fn a_devices_configuration(bytes in damaged::bytes(samples("pci_config"))) {
        let known = vgpu::add_device(VirtualGpus::default(), &bytes);
        prop_assert!(bytes.len() >= 256 || known.is_none(), "a short configuration is incomplete");
    }

    #[test]
    fn the_kernels_devices_and_the_drivers_capabilities(
        majors in damaged::bytes(samples("proc_devices")),
        capability in "(DeviceFile(Minor|Mode): .{0,10}\n){0,4}",
    ) {
        let (_directory, host) = host(&[
            ("proc/devices", &majors),
            ("proc/driver/nvidia/capabilities/mig/config", capability.as_bytes()),
            ("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", capability.as_bytes()),
        ]);
        let _ = device_nodes::wanted(&host, &host);
        let missing = device_nodes::missing(&host, &host, "/run/nvidia/driver");
        prop_assert!(!missing.is_empty() && missing.len() < 10, "{:?}", missing);
    }

    #[test]
    fn the_linkers_configuration(
        text in "((/usr/lib[a-z/]{0,9}|include +(/etc/)?ld.so.conf.d/[a-z]?\\*?.conf|include /etc/ld.so.conf|.{0,20})\n){0,90}",
        cache in vec(any::<u8>(), 0..100),
    ) {
        let (_directory, host) = host(&[
            ("etc/ld.so.conf", text.as_bytes()),
            ("etc/ld.so.conf.d/a.conf", text.as_bytes()),
            ("etc/ld.so.cache", &cache),
            ("usr/lib/x", b""),
        ]);
        let folders = library_directories::of(&host, "libnvidia-ml.so.").unwrap_or_default();
        prop_assert!(folders.len() < 200);
    }

    #[test]
    fn the_hosts_runtimes(
        docker in damaged::bytes(configurations("daemon_json")),
        containerd in damaged::bytes(configurations("containerd_toml")),
        dropped_in in damaged::bytes(configurations("containerd_toml")),
        crio in damaged::bytes(configurations("crio_toml")),
    ) {
        let (_directory, host) = host(&[
            ("etc/docker/daemon.json", &docker),
            ("etc/containerd/config.toml", &containerd),
            ("etc/containerd/conf.d/a.toml", &dropped_in),
            ("etc/crio/crio.conf", &crio),
            ("usr/bin/nvidia-container-runtime", b""),
        ]);
        reports(&Facts { runtimes: host_runtimes::runtimes(&host), ..Facts::default() });
    }
}
