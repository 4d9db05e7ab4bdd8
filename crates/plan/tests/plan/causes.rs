//! The cause of a driver that does not work, as the node's reason and message show it: not the last step that has failed.

use crate::{
    sim::{Faults, Sim},
    sources::node,
};
use gpu_operator_crd::{GpuNodeStatus, Phase, policy::Stage, reason::Reason};
use gpu_operator_plan::world::{PodFacts, Refusal, Role};

pub(crate) const UBUNTU: (&str, &str) = ("ubuntu", "24.04");
pub(crate) const RUN_FILE: &str = "{defaults: {driver: {source: RunFile, runFile: {sha256: a1}, version: 580.173.02, image: {repository: own/run-file, tag: a}}}}";

/// Returns the state of a node whose driver container ends with this log.
fn ends_with(log: &str, spec: &str) -> GpuNodeStatus {
    let mut sim = node(spec, UBUNTU, &[]);
    sim.faults.insert("a".into(), Faults { driver_crash: Some(log.into()), ..Faults::default() });
    sim.run(60);
    sim.status("a")
}

const CLEANUP: &str = "Stopping NVIDIA persistence daemon...\nUnloading NVIDIA driver kernel modules...\nUnmounting NVIDIA driver rootfs...\n";
const INSTALLER_END: &str = "ERROR: Installation has failed.  Please see the file '/usr/local/nvidia/nvidia-installer.log' for details.\nrun-file installer: the .run file could not install the driver\n";
const UNLOADABLE: &str = "-> Kernel module compilation complete.\n-> Unable to determine if Secure Boot is enabled: No such file or directory\nERROR: Unable to load the kernel module 'nvidia.ko'.  This happens most frequently when this kernel module was built against the wrong or improperly configured kernel sources, or if another driver, such as nouveau, is present.\n";

/// The beginning and the end of a log, the reason, and what the message contains.
type Case = (&'static str, &'static str, Reason, &'static [&'static str]);

const COMPILATION: &[Case] = &[
    (
        "Compiling NVIDIA driver kernel modules...\nwarning: the compiler differs from the one used to build the kernel\n  The kernel was built by: x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0) 13.3.0\n  You are using:           cc (Ubuntu 11.4.0) 11.4.0\ncc: error: unrecognized command-line option '-fmin-function-alignment=16'\nmake[3]: *** [scripts/Makefile.build:243: /usr/src/nvidia-535/kernel/nvidia/nv.o] Error 1\nmake[2]: *** [/usr/src/linux-headers-6.8.0-90-generic/Makefile:1925: /usr/src/nvidia-535/kernel] Error 2\nmake[1]: *** [Makefile:240: __sub-make] Error 2\nmake: *** [Makefile:82: modules] Error 2\n",
        CLEANUP,
        Reason::ContainerCrashed,
        &[
            "cc: error: unrecognized command-line option '-fmin-function-alignment=16')",
            "precompiled",
            "driver.version",
            "compiler",
        ],
    ),
    (
        "/usr/src/nvidia-470/common/inc/nv-mm.h:88:5: error: too many arguments to function 'get_user_pages'\n   88 |     get_user_pages(a, b)\n      |     ^~~~\n/usr/src/nvidia-470/nvidia/os-mlock.c:5:1: error: conflicting types\nmake[2]: *** [scripts/Makefile.build:243: os-mlock.o] Error 1\nmake: *** [Makefile:82: modules] Error 2\n",
        CLEANUP,
        Reason::ContainerCrashed,
        &["nv-mm.h:88:5: error: too many arguments to function 'get_user_pages')", "precompiled"],
    ),
    (
        "Compiling NVIDIA driver kernel modules...\nmake[2]: *** [cc_version_check] Error 1\nmake[2]: *** Waiting for unfinished jobs....\nmake[1]: *** [_module_/usr/src/nvidia-418.40.04/kernel] Error 2\nmake: *** [modules] Error 2\n",
        CLEANUP,
        Reason::ContainerCrashed,
        &["make[2]: *** [cc_version_check] Error 1)", "precompiled"],
    ),
    (
        "Generating Linux kernel version string...\nCompiling NVIDIA driver kernel modules...\nmake[1]: *** /lib/modules/5.15.0-60-generic/build: No such file or directory.  Stop.\nmake: *** [Makefile:82: modules] Error 2\n",
        CLEANUP,
        Reason::KernelHeadersUnavailable,
        &["make[1]: *** /lib/modules/5.15.0-60-generic/build: No such file or directory.  Stop."],
    ),
    (
        "Error! Your kernel headers for kernel 6.8.0 cannot be found at\n/lib/modules/6.8.0/build or /lib/modules/6.8.0/source.\nERROR: Failed to run `/usr/sbin/dkms build -m nvidia -v 535 -k 6.8.0`: \nError! Bad return status for module build on kernel: 6.8.0 (x86_64)\n",
        INSTALLER_END,
        Reason::KernelHeadersUnavailable,
        &["cannot be found at /lib/modules/6.8.0/build or"],
    ),
    (
        "ERROR: The kernel header file '/lib/modules/4.4.0/build/include/linux/kernel.h' does not exist.\n",
        INSTALLER_END,
        Reason::KernelHeadersUnavailable,
        &["'/lib/modules/4.4.0/build/include/linux/kernel.h' does not exist."],
    ),
];

const LOADING: &[Case] = &[
    (
        UNLOADABLE,
        "-> Kernel module load error: No such device\n-> Kernel messages:\n[  201.910514] NVRM: GPU 0000:01:00.0 is already bound to NovaCore.\n[  201.913648] NVRM: No NVIDIA devices probed.\n",
        Reason::GpuBoundToOtherDriver,
        &["NVRM: GPU 0000:01:00.0 is already bound to NovaCore.", "blacklist"],
    ),
    (
        UNLOADABLE,
        "-> Kernel module load error: No such device\n",
        Reason::ContainerCrashed,
        &["load error: No such device"],
    ),
    (
        UNLOADABLE,
        "-> Kernel module load error: Invalid argument\n-> Kernel messages:\n[  201.910514] nvidia: disagrees about version of symbol module_layout\n",
        Reason::ContainerCrashed,
        &["load error: Invalid argument"],
    ),
    (
        "Loading NVIDIA driver kernel modules...\nmodprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n",
        CLEANUP,
        Reason::SecureBootRejectsModule,
        &["Key was rejected by service", "precompiled", "mokutil", "switch Secure Boot off"],
    ),
    (
        "-> Unable to determine if Secure Boot is enabled: No such file or directory\nERROR: The kernel module failed to load. Secure boot is enabled on this system, so this is likely because it was not signed by a key that is trusted by the kernel.\n",
        "-> Kernel module load error: Key was rejected by service\n-> Kernel messages:\n[   88.113648] Loading of unsigned module is rejected\n",
        Reason::SecureBootRejectsModule,
        &["Secure boot is enabled on this system", "precompiled", "mokutil", "switch Secure Boot off"],
    ),
    (
        "insmod: ERROR: could not insert module /usr/local/nvidia/drivers/nvidia.ko: Required key not available\n",
        "run-file installer: cannot load nvidia: see the node's kernel log\n",
        Reason::SecureBootRejectsModule,
        &["Required key not available"],
    ),
];

#[test]
fn the_first_error_of_a_compilation_is_shown() {
    for (begin, end, reason, shown) in COMPILATION {
        let status = ends_with(&format!("{begin}{end}"), "{}");
        assert_eq!(status.reason(), Some(*reason), "{}", status.message);
        assert!(shown.iter().all(|words| status.message.contains(words)), "{}", status.message);
    }
}

#[test]
fn the_reason_why_a_module_is_not_loaded_is_shown() {
    for (begin, end, reason, shown) in LOADING {
        for (log, spec) in [(format!("{begin}{end}{INSTALLER_END}"), RUN_FILE), (format!("{begin}{end}"), "{}")] {
            let status = ends_with(&log, spec);
            assert_eq!(status.reason(), Some(*reason), "{}", status.message);
            assert!(shown.iter().all(|words| status.message.contains(words)), "{}", status.message);
            assert!(!status.message.contains("could not install the driver"), "{}", status.message);
        }
    }
}

const DENIED: [&str; 2] = [
    "Back-off pulling image \"registry.example.com/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04\": ErrImagePull: failed to pull and unpack image \"registry.example.com/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04\": failed to resolve reference \"registry.example.com/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04\": pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed",
    "Error response from daemon: unauthorized: repository driver not found",
];

#[test]
fn a_denied_pull_does_not_prove_a_missing_image() {
    let tag = "595-6.8.0-60-generic-ubuntu24.04";
    let spec = "{images: {pullSecrets: [{name: expired}]}, defaults: {driver: {source: Container, container: {precompiled: true}}}}";
    for pull_error in DENIED {
        let mut sim = node(spec, UBUNTU, &[]);
        let missing_images = [tag.to_owned()].into();
        sim.faults
            .insert("a".into(), Faults { missing_images, pull_error: Some(pull_error.into()), ..Faults::default() });
        sim.run(60);
        let status = sim.status("a");
        assert_eq!(
            (status.reason(), &status.missing_image),
            (Some(Reason::ImagePullFailed), &None),
            "{}",
            status.message
        );
        assert!(status.message.contains("images.pullSecrets"), "{}", status.message);
        // With the right credentials the precompiled driver is pulled.
        sim.faults.clear();
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
        assert!(Sim::image(sim.sets_of(Stage::Driver)[0]).ends_with(tag));
    }
}

#[test]
fn a_denied_pull_before_an_update_records_nothing() {
    let spec = |version: &str| {
        format!("{{defaults: {{driver: {{source: Container, container: {{precompiled: true}}, version: {version}}}}}}}")
    };
    let mut sim = node(&spec("580.173.02"), UBUNTU, &[]);
    sim.settle();
    let missing_images = ["595-6.8.0-60-generic-ubuntu24.04".to_owned()].into();
    sim.faults.insert("a".into(), Faults { missing_images, pull_error: Some(DENIED[0].into()), ..Faults::default() });
    let mut sim = sim.policy("all", &spec("595.91.07"));
    sim.run(60);
    assert_eq!(sim.status("a").missing_image, None);
    let sets = sim.sets_of(Stage::Driver);
    assert!(sets.iter().all(|set| !Sim::image(set).contains("595.91.07")), "nothing is compiled instead");
    let message = sim.message("all", "Stalled");
    assert!(message.contains("images.pullSecrets"), "{message}");
}

/// Returns a node whose GPU is bound to another driver.
pub(crate) fn bound_to(driver: &str, spec: &str) -> Sim {
    let mut sim = node(spec, UBUNTU, &[]);
    sim.report("a").gpus[0].held_by = Some(driver.into());
    sim
}

#[test]
fn gpus_bound_to_another_driver_are_reported() {
    let crash = "Loading NVIDIA driver kernel modules...\nmodprobe: ERROR: could not insert 'nvidia': No such device\n";
    for (driver, module) in [("nouveau", "nouveau"), ("NovaCore", "nova_core"), ("nvidiafb", "nvidiafb")] {
        for spec in ["{}", RUN_FILE] {
            let mut sim = bound_to(driver, spec);
            sim.faults.insert("a".into(), Faults { driver_crash: Some(crash.into()), ..Faults::default() });
            sim.run(60);
            let status = sim.status("a");
            let found = (status.phase, status.reason());
            assert_eq!(found, (Phase::Driver, Some(Reason::GpuBoundToOtherDriver)), "{}", status.message);
            let shown = ["driver@a", &format!("bound to kernel driver {driver}"), &format!("blacklist {module}")];
            assert!(shown.iter().all(|words| status.message.contains(*words)), "{}", status.message);
            // Once the driver is gone, other problems are reported.
            sim.report("a").gpus[0].held_by = None;
            sim.run(60);
            assert_ne!(sim.status("a").reason(), Some(Reason::GpuBoundToOtherDriver));
        }
        let mut sim = bound_to(driver, "{}");
        sim.host_driver("a", "580.173.02", false);
        sim.run(60);
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(Reason::GpuBoundToOtherDriver), "{}", status.message);
        assert!(!status.message.contains("modprobe nvidia"), "{}", status.message);
    }
}

/// The pod of a stage of node `a`.
fn pod_of(sim: &mut Sim, stage: Stage) -> &mut PodFacts {
    sim.pods.values_mut().find(|pod| pod.role == Role::Operand(stage)).expect("a pod")
}

#[test]
fn a_volume_that_kubelet_cannot_mount_is_shown() {
    let words = "MountVolume.SetUp failed for volume \"module-parameters\" : configmap \"nvidia\" not found";
    for stage in [Stage::Driver, Stage::Toolkit] {
        let mut sim = node("{}", UBUNTU, &[]);
        if stage == Stage::Toolkit {
            sim.host_driver("a", "580.173.02", true);
        }
        sim.faults.insert("a".into(), Faults { slow: 10_000, ..Faults::default() });
        sim.run(10);
        let pod = pod_of(&mut sim, stage);
        pod.sandbox_since = None;
        let name = pod.name.clone();
        sim.refusals.insert("another-pod".into(), Refusal { message: "of another pod".into(), at: None });
        sim.run(90);
        assert_eq!(sim.status("a").reason(), Some(Reason::PodStarting), "{}", sim.status("a").message);
        sim.refusals.insert(name.clone(), Refusal { message: words.into(), at: None });
        sim.run(5);
        let status = sim.status("a");
        let shown = status.message.contains(words) && status.message.contains(&name);
        assert!(status.reason() == Some(Reason::ContainerCrashed) && shown, "{:?} {}", status.reason(), status.message);
        // The Event outlives its cause.
        let now = sim.now;
        pod_of(&mut sim, stage).sandbox_since = Some(now.into());
        sim.run(5);
        assert_eq!(sim.status("a").reason(), Some(Reason::PodStarting), "{}", sim.status("a").message);
    }
}

#[test]
fn a_mount_error_of_the_first_minute_is_no_failure() {
    let mut sim = node("{}", UBUNTU, &[]);
    sim.faults.insert("a".into(), Faults { slow: 10_000, ..Faults::default() });
    sim.run(10);
    let pod = pod_of(&mut sim, Stage::Driver);
    pod.sandbox_since = None;
    let refusal = Refusal { message: "failed to sync configmap cache".into(), at: None };
    let name = pod.name.clone();
    sim.refusals.insert(name, refusal);
    sim.run(30);
    assert_eq!(sim.status("a").reason(), Some(Reason::PodStarting), "{}", sim.status("a").message);
    sim.run(60);
    assert_eq!(sim.status("a").reason(), Some(Reason::ContainerCrashed), "{}", sim.status("a").message);
}
