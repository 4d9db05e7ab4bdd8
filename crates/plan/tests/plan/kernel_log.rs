//! What the kernel has logged about a driver that is not loaded: the node's reason and message while the driver's own log has no cause.

use crate::{
    causes::{RUN_FILE, UBUNTU},
    sim::Faults,
    sources::node,
};
use gpu_operator_crd::{Phase, reason::Reason};

const NO_DEVICE: &str =
    "Loading NVIDIA driver kernel modules...\nmodprobe: ERROR: could not insert 'nvidia': No such device\n";

/// What the kernel has logged, the reason, and what the message contains. Where the reason is that of a container, a host's driver is not
/// loaded.
const KERNEL: &[(&[&str], Reason, &[&str])] = &[
    (
        &[
            "NVRM: GPU 0000:01:00.0 is already bound to NovaCore.",
            "NVRM: The NVIDIA probe routine was not called for 1 device(s).",
            "NVRM: No NVIDIA devices probed.",
        ],
        Reason::GpuBoundToOtherDriver,
        &["is already bound to NovaCore.", "blacklist"],
    ),
    (
        &[
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85) installed in this system requires use of the NVIDIA open kernel modules.",
            "nvidia 0000:01:00.0: probe with driver nvidia failed with error -1",
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
            "NVRM: None of the NVIDIA devices were initialized.",
        ],
        Reason::DriverUnsupported,
        &["driver.container.kernelModule: Open", "10de:2b85) installed in this system requires use of"],
    ),
    (
        &[
            "NVRM: The NVIDIA GPU 0000:af:00.0 (PCI ID: 10de:1db5) installed in this system is not supported by open nvidia.ko because it does not include the required GPU System Processor (GSP).",
            "NVRM: None of the NVIDIA devices were initialized.",
        ],
        Reason::DriverUnsupported,
        &["driver.container.kernelModule: Proprietary", "0000:af:00.0"],
    ),
    (
        &[
            "NVRM: The NVIDIA Tesla V100-SXM2-32GB GPU installed in this system is supported through the NVIDIA 580.xx Legacy drivers. Please visit http://www.nvidia.com/object/unix.html for more information.  The 595.91.07 NVIDIA driver will ignore this GPU.  Continuing probe...",
            "NVRM: No NVIDIA GPU found.",
        ],
        Reason::DriverUnsupported,
        &["older driver branch", "driver.version", "NVIDIA 580.xx Legacy drivers"],
    ),
    (
        &[
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2f04) installed in this system is not supported by the NVIDIA 535.309.01 driver release.",
        ],
        Reason::DriverUnsupported,
        &["later branch", "driver.version", "535.309.01 driver release"],
    ),
    (
        &[
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR0 is 0M @ 0x0 (PCI:0000:01:00.0)",
            "nvidia: probe of 0000:01:00.0 failed with error -1",
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        ],
        Reason::ContainerCrashed,
        &["Above 4G Decoding", "hypervisor", "BAR0 is 0M @ 0x0 (PCI:0000:01:00.0)"],
    ),
    (
        &[
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
            "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:07:00.0)",
        ],
        Reason::ContainerCrashed,
        &["Above 4G Decoding", "BAR1 is 0M @ 0x0"],
    ),
    (
        &["Loading of module with unavailable key is rejected"],
        Reason::SecureBootRejectsModule,
        &["mokutil", "Loading of module with unavailable key is rejected"],
    ),
    (
        &[
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to commands.",
        ],
        Reason::ContainerCrashed,
        &["does not respond", "0000:01:00.0"],
    ),
    // Of an unknown one, the first sentence that is no consequence.
    (
        &["NVRM: failed to wait for bar firewall to lower", "NVRM: The NVIDIA probe routine failed for 1 device(s)."],
        Reason::ContainerCrashed,
        &["kernel log: NVRM: failed to wait for bar firewall to lower"],
    ),
    (&["nvidia: disagrees about version of symbol module_layout"], Reason::ContainerCrashed, &["module_layout"]),
];

#[test]
fn while_no_driver_is_loaded_the_kernels_log_has_the_cause() {
    for (sentences, reason, shown) in KERNEL {
        let load_errors: Vec<String> = sentences.iter().map(|sentence| (*sentence).to_owned()).collect();
        for spec in ["{}", RUN_FILE] {
            let mut sim = node(spec, UBUNTU, &[]);
            sim.report("a").driver.load_errors.clone_from(&load_errors);
            sim.faults.insert("a".into(), Faults { driver_crash: Some(NO_DEVICE.into()), ..Faults::default() });
            sim.run(60);
            let status = sim.status("a");
            assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(*reason)), "{}", status.message);
            assert!(shown.iter().all(|words| status.message.contains(words)), "{}", status.message);
            assert!(status.message.contains("driver@a"), "{}", status.message);
        }
        let mut sim = node("{}", UBUNTU, &[]);
        sim.report("a").driver.load_errors = load_errors;
        sim.host_driver("a", "580.173.02", false);
        sim.run(60);
        let status = sim.status("a");
        let of_host = if *reason == Reason::ContainerCrashed { Reason::DriverNotLoaded } else { *reason };
        assert_eq!(status.reason(), Some(of_host), "{}", status.message);
        assert!(shown.iter().all(|words| status.message.contains(words)), "{}", status.message);
    }
}

#[test]
fn a_cause_in_the_drivers_own_log_comes_before_the_kernels() {
    let mut sim = node("{}", UBUNTU, &[]);
    // Of an attempt before the node's kernel was updated.
    sim.report("a").driver.load_errors = vec!["NVRM: GPU 0000:01:00.0 is already bound to NovaCore.".into()];
    let crash = "make: *** /lib/modules/6.8.0/build: No such file or directory.  Stop.\n";
    sim.faults.insert("a".into(), Faults { driver_crash: Some(crash.into()), ..Faults::default() });
    sim.run(60);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::KernelHeadersUnavailable), "{}", status.message);
    assert!(!status.message.contains("NovaCore"), "{}", status.message);
}
