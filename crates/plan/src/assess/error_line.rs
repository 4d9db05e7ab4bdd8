//! The part of a container's log that reports what is wrong.
//!
//! Kubelet keeps the last 2 KiB of a log as termination message. They can begin in the middle of a line, and the error is rarely the last
//! line: cleanup, a configuration dump, a stack trace or a reference to the error follows.

use crate::assess::log_records::{Record, records};

/// What lines contain that only refer to an error before them or in another file, in lower case.
const REFERENCES: [&str; 13] = [
    "see the file",
    "see the log",
    "see the error above",
    "see the node's kernel log",
    "see /",
    "consult /",
    "check the dkms logs",
    "error: failed to run",
    "bad return status",
    "installation has failed",
    "kernel module was not created",
    // images/run-file before it printed "see the error above".
    "the .run file could not install the driver",
    "nvidia-smi fails with driver",
];

/// What NVIDIA's module logs about a failure that it has logged the cause of, and when it is loaded, in lower case.
const AFTERMATH: [&str; 4] = [
    "no nvidia devices probed",
    "none of the nvidia devices were initialized",
    "nvidia probe routine",
    "loading nvidia unix",
];

/// Returns the record that reports the error, on one line and without its time, so that a container that fails repeatedly reports the same
/// error each time: the last one of NVIDIA's module in the kernel's log, or else of the program itself. If the errors only refer to
/// another, it is the first that make refers to, or the last one, and without an error the last record.
pub fn error_line(log: &str) -> String {
    let records = records(log);
    let errors = || records.iter().filter(|record| record.reports_an_error());
    let has = |record: &Record<'_>, words: &[&str]| {
        let said = record.head.to_lowercase();
        words.iter().any(|word| said.contains(word))
    };
    let of_module = records.iter().rfind(|record| record.is_of_kernel_module() && !has(record, &AFTERMATH));
    let is_make = |record: &Record<'_>| is_of_make(record.head);
    let found = of_module
        .or_else(|| errors().rfind(|record| !is_make(record) && !has(record, &REFERENCES)))
        .or_else(|| errors().find(|record| is_make(record)))
        .or_else(|| errors().next_back())
        .or(records.last());
    found.map_or_else(|| last_line(log).to_owned(), Record::text)
}

/// Make repeats that a command has failed for each target that needs it.
fn is_of_make(line: &str) -> bool {
    line.trim_start_matches('g').starts_with("make")
        && (line.contains("] Error ")
            || line.contains("*** Waiting for unfinished jobs")
            || line.contains("not remade because"))
}

fn last_line(log: &str) -> &str {
    log.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assess::log_records::MAX_LENGTH;

    /// The shapes of logs that this operator's containers write, and what is reported of each.
    const LOGS: &[(&str, &str, &str)] = &[
        ("nothing", " \n\n", ""),
        ("kubelet's reason", "OOMKilled", "OOMKilled"),
        (
            "NVIDIA's device plugin, cut within its configuration",
            "assDeviceSpecs\": false,\n      \"deviceListStrategy\": [\n        \"cdi-cri\"\n      ]\n    }\n  },\n  \"sharing\": {}\n}\nI1124 10:00:00.000000       1 main.go:395] Retrieving plugins.\nE1124 10:00:00.000000       1 main.go:184] error starting plugins: error getting plugins: nvml init failed: Unknown Error\n",
            "main.go:184] error starting plugins: error getting plugins: nvml init failed: Unknown Error",
        ),
        (
            "NVIDIA's device plugin without a platform: a notice after the error is no error",
            "I1124 10:00:00.000000       1 main.go:355] Running with config:\n{\n  \"version\": \"v1\",\n  \"flags\": {\n    \"failOnInitError\": true\n  }\n}\nE1124 10:00:00.000000       1 factory.go:112] Incompatible strategy detected auto\nI1124 10:00:00.000000       1 main.go:381] No devices found. Failed to find any; waiting indefinitely.\n",
            "factory.go:112] Incompatible strategy detected auto",
        ),
        (
            "a configuration and nothing else",
            "I1124 10:00:00.000000       1 main.go:355] Running with config:\n{\n  \"version\": \"v1\"\n}\n",
            "main.go:355] Running with config: { \"version\": \"v1\" }",
        ),
        (
            "GPU feature discovery",
            "I1124 10:00:00.000000       1 main.go:140] Starting\nE1124 10:00:00.000000       1 main.go:99] failed to create resource manager: unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND\nI1124 10:00:00.000000       1 main.go:205] Exiting\n",
            "main.go:99] failed to create resource manager: unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND",
        ),
        (
            "the MPS control daemon, by Go's own log",
            "2026/11/24 10:00:00 Starting\n2026/11/24 10:00:00 error starting MPS daemons: exit status 1\n",
            "error starting MPS daemons: exit status 1",
        ),
        (
            "the MPS control daemon",
            "I1124 10:00:00.000000      37 main.go:79] Starting NVIDIA MPS Control Daemon\nF1124 10:00:00.000000      37 main.go:84] error checking MPS support: device is in exclusive mode\n",
            "main.go:84] error checking MPS support: device is in exclusive mode",
        ),
        (
            "NVIDIA's driver script: cleanup follows",
            "Stopping NVIDIA persistence daemon...\nUnloading NVIDIA driver kernel modules...\nCould not unload NVIDIA driver kernel modules, driver is in use\nStopping NVIDIA persistence daemon...\nUnmounting NVIDIA driver rootfs...\n",
            "Could not unload NVIDIA driver kernel modules, driver is in use",
        ),
        (
            "NVIDIA's driver script: modprobe",
            "Loading NVIDIA driver kernel modules...\n+ modprobe nvidia\nmodprobe: ERROR: could not insert 'nvidia': No such device\n+ _shutdown\n+ _unload_driver\nStopping NVIDIA persistence daemon...\n",
            "modprobe: ERROR: could not insert 'nvidia': No such device",
        ),
        (
            "NVIDIA's installer: wrapped lines, and a reference to its log",
            "-> Building kernel modules\nERROR: Unable to find the kernel source tree for the currently running\n       kernel. Install the kernel's headers.\n\nERROR: Installation has failed. Please see the file '/var/log/nvidia-installer.log' for details.\n",
            "ERROR: Unable to find the kernel source tree for the currently running kernel. Install the kernel's headers.",
        ),
        (
            "NVIDIA's container toolkit",
            "time=\"2026-11-24T10:00:00Z\" level=info msg=\"Starting nvidia-toolkit\"\ntime=\"2026-11-24T10:00:00Z\" level=error msg=\"error running nvidia-toolkit: unable to setup runtime: permission denied\"\ntime=\"2026-11-24T10:00:00Z\" level=info msg=\"Shutting down; errors are fatal\"\n",
            "level=error msg=\"error running nvidia-toolkit: unable to setup runtime: permission denied\"",
        ),
        (
            "logrus, fatal",
            "time=\"2026-11-24T10:00:00Z\" level=warning msg=\"failed to read\"\ntime=\"2026-11-24T10:00:00Z\" level=fatal msg=\"no GPUs\"\n",
            "level=fatal msg=\"no GPUs\"",
        ),
        (
            "JSON",
            "{\"level\":\"error\",\"msg\":\"no library\"}\n{\"level\":\"info\",\"msg\":\"error handled\"}\n",
            "{\"level\":\"error\",\"msg\":\"no library\"}",
        ),
        (
            "tracing",
            "2026-11-24T10:00:00.000000Z ERROR nvml_probe::gates: the driver root has no library\n2026-11-24T10:00:00.000000Z  INFO nvml_probe: the error is retried\n",
            "ERROR nvml_probe::gates: the driver root has no library",
        ),
        (
            "anyhow",
            "Error: cannot write the configuration\n\nCaused by:\n    Read-only file system (os error 30)\n",
            "Error: cannot write the configuration",
        ),
        (
            "bash with set -e: the last line is that of the command that failed",
            "Installing\ncp: cannot stat '/host/lib/x.so': No such file or directory\n",
            "cp: cannot stat '/host/lib/x.so': No such file or directory",
        ),
        (
            "bash with set -x",
            "+ install -m 755 a b\ninstall: omitting directory 'a'\n+ exit 1\n++ date\n",
            "install: omitting directory 'a'",
        ),
        (
            "a Python traceback",
            "error: first attempt\nTraceback (most recent call last):\n  File \"/opt/partition.py\", line 10, in <module>\n    main()\n  File \"/opt/partition.py\", line 4, in main\n    raise KeyError(name)\nKeyError: 'no error in this name'\n",
            "KeyError: 'no error in this name'",
        ),
        (
            "a Go panic",
            "I1124 10:00:00.000000       1 main.go:1] Starting\npanic: runtime error: invalid memory address or nil pointer dereference\n[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x1]\n\ngoroutine 1 [running]:\nmain.(*Logger).Fatal(0x0)\n\t/src/main.go:12 +0x1d\nmain.main()\n\t/src/main.go:5 +0x11\nexit status 2\n",
            "panic: runtime error: invalid memory address or nil pointer dereference",
        ),
        (
            "Google's installer for COS, by glog",
            "I1124 10:00:00.000000       1 install.go:264] Installing GPU driver version 580.1.1\nE1124 10:00:00.000000       1 install.go:453] failed to verify GPU driver installation: failed to load GPU drivers\n",
            "install.go:453] failed to verify GPU driver installation: failed to load GPU drivers",
        ),
        (
            "Google's installer for Ubuntu",
            "+ main\nChecking cached version\nERROR: An NVIDIA kernel module 'nvidia' appears to already be loaded in your kernel.\n+ cleanup\n",
            "ERROR: An NVIDIA kernel module 'nvidia' appears to already be loaded in your kernel.",
        ),
        (
            "apt",
            "W: Some index files failed to download\nE: Unable to locate package linux-headers-6.8.0-60-generic\nW: failed\n",
            "E: Unable to locate package linux-headers-6.8.0-60-generic",
        ),
        (
            "a compilation: make repeats the error that is cut off",
            "make[3]: *** [scripts/Makefile.build:243: /usr/src/nvidia-535/kernel/nvidia/nv.o] Error 1\nmake[2]: *** [Makefile:1925: /usr/src/nvidia-535/kernel] Error 2\nmake[2]: *** Waiting for unfinished jobs....\nmake: *** [Makefile:82: modules] Error 2\nStopping NVIDIA persistence daemon...\n",
            "make[3]: *** [scripts/Makefile.build:243: /usr/src/nvidia-535/kernel/nvidia/nv.o] Error 1",
        ),
        (
            "a compilation: the linker of modules",
            "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_lock'\nmake[2]: *** [Makefile.modpost:145: Module.symvers] Error 1\nmake: *** [Makefile:82: modules] Error 2\n",
            "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_lock'",
        ),
        (
            "the installer of images/run-file: the kernel's message",
            "-> Kernel module compilation complete.\nERROR: Unable to load the kernel module 'nvidia.ko'.  This happens most frequently when this kernel module was built against the wrong or improperly configured kernel sources, or if another driver, such as nouveau, is present.\n-> Kernel module load error: No such device\n-> Kernel messages:\n[  201.000000] usb 1-1: device descriptor read/64, error -71\n[  201.910514] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80)\n[  201.910515] NVRM: installed in this system is not supported by the\n[  201.910516] NVRM: NVIDIA 595.91.07 driver release.\n[  201.913648] nvidia: probe of 0000:01:00.0 failed with error -1\n[  201.913649] NVRM: None of the NVIDIA devices were initialized.\nERROR: Installation has failed.  Please see the file '/usr/local/nvidia/nvidia-installer.log' for details.\nrun-file installer: the .run file could not install the driver\n",
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80) installed in this system is not supported by the NVIDIA 595.91.07 driver release.",
        ),
        (
            "the same without a message of the kernel's module",
            "ERROR: Unable to load the kernel module 'nvidia.ko'.\n\nPlease see the log entries 'Kernel module load error' and 'Kernel messages' at the end of the file '/var/log/nvidia-installer.log' for more information.\n-> Kernel module load error: No such device\n-> Kernel messages:\n[  201.000000] EXT4-fs error (device sda1): checksum invalid\nERROR: Installation has failed.  Please see the file '/var/log/nvidia-installer.log' for details.\nrun-file installer: the .run file could not install the driver: see the error above\n",
            "-> Kernel module load error: No such device",
        ),
        (
            "dkms: its log has the error",
            "ERROR: Failed to run `/usr/sbin/dkms build -m nvidia -v 535.309.01 -k 6.8.0`:\n'make' -j8 KERNEL_UNAME=6.8.0 modules...(bad exit status: 2)\nError! Bad return status for module build on kernel: 6.8.0 (x86_64)\nConsult /var/lib/dkms/nvidia/535.309.01/build/make.log for more information.\n",
            "Error! Bad return status for module build on kernel: 6.8.0 (x86_64)",
        ),
    ];

    #[test]
    fn the_line_that_reports_the_error_is_found_in_every_log() {
        for (name, log, line) in LOGS {
            assert_eq!(error_line(log), *line, "{name}");
        }
    }

    #[test]
    fn of_a_line_without_its_beginning_the_end_is_reported() {
        let dump = format!("{}: nvml init failed: Unknown Error", "x".repeat(2500));
        let line = error_line(&dump);
        assert!(line.starts_with('…') && line.ends_with("nvml init failed: Unknown Error"), "{line}");
        assert_eq!(line.chars().count(), MAX_LENGTH + 1);
    }

    #[test]
    fn a_long_record_ends_with_an_ellipsis() {
        let line = error_line(&format!("error: {}", "é".repeat(900)));
        assert!(line.starts_with("error: é") && line.ends_with('…'), "{line}");
        assert_eq!(line.chars().count(), MAX_LENGTH + 1);
    }

    #[test]
    fn a_stack_trace_without_a_panic_is_reported_by_its_place() {
        assert_eq!(error_line("main.main()\n\t/src/main.go:5 +0x11\n"), "/src/main.go:5 +0x11");
    }
}
