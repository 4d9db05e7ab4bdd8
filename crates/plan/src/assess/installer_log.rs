//! Classifies the end of an installing container's log: what failed, and how to fix it.

use gpu_operator_crd::reason::Reason;

use crate::assess::log_records::{Record, records};

/// One record of the log must match any of the lists of texts, in lower case, completely.
struct Complaint {
    reason: Reason,
    words: &'static [&'static [&'static str]],
    advice: &'static str,
}

/// The first match counts, so causes are listed before their consequences: a name that cannot be resolved also makes downloads
/// fail and kernel headers unavailable. The texts are those of curl, wget, apt, dnf, OpenSSL, make, compilers, modprobe, dkms, the kernel,
/// and NVIDIA's installer.
const COMPLAINTS: [Complaint; 21] = [
    Complaint {
        reason: Reason::RebootNeeded,
        words: &[&["driver/library version mismatch"]],
        advice: "the installed driver differs from the loaded one; reboot the node",
    },
    Complaint {
        reason: Reason::DriverInUse,
        words: &[
            &["driver is in use"],
            &["module nvidia", "is in use"],
            &["an nvidia kernel module", "appears to already be loaded"],
        ],
        advice: "the loaded driver is in use; stop the programs that use the GPUs, or reboot the node",
    },
    // An installer ends with it: whatever is in the log before it is not the cause.
    Complaint {
        reason: Reason::ChecksumMismatch,
        words: &[&["checksum mismatch"]],
        advice: "the file was not executed because its checksum differs from driver.runFile.sha256: compare it with the one that the file's publisher states; if it is correct, the server or its cache delivers another file: replace it, or set driver.runFile.url",
    },
    Complaint {
        reason: Reason::SecureBootRejectsModule,
        words: &[
            &["key was rejected by service"],
            &["required key not available"],
            &["key has been revoked"],
            // Not of "unable to determine if secure boot is enabled", nor of the question whether a module should be signed.
            &["secure boot is enabled on this system"],
            &["not signed by a key that is trusted by the kernel"],
            &["loading of ", "module", " is rejected"],
            // Not of "module verification failed: … tainting kernel": that module was loaded.
            &["lockdown", "unsigned module loading is restricted"],
        ],
        advice: "Secure Boot rejects the kernel modules, which are not signed with a key that the node trusts: use precompiled modules that are signed (source Container with driver.container.precompiled: true), enrol the key that signs the modules (mokutil --import), or switch Secure Boot off in the node's firmware",
    },
    Complaint {
        reason: Reason::DriverUnsupported,
        words: &[&["requires use of the", "open kernel modules"]],
        advice: "the GPU runs with NVIDIA's open kernel modules only: set driver.container.kernelModule: Open, or install a driver with the open kernel modules on the host",
    },
    Complaint {
        reason: Reason::DriverUnsupported,
        words: &[&["is not supported by open", "nvidia.ko"], &["open nvidia.ko is only ready for use on"]],
        advice: "the GPU does not run with these open kernel modules: set driver.container.kernelModule: Proprietary, or install a driver with the proprietary kernel modules on the host",
    },
    Complaint {
        reason: Reason::DriverUnsupported,
        words: &[&["supported through the nvidia", "legacy driver"]],
        advice: "the GPU needs an older driver branch, which the driver names: set driver.version to a version of that branch, or install it on the host",
    },
    Complaint {
        reason: Reason::DriverUnsupported,
        words: &[&["is not supported by the", "driver release"]],
        advice: "the driver does not support the GPU, which may need a later branch: set driver.version to a version of it, or install it on the host",
    },
    Complaint {
        reason: Reason::ContainerCrashed,
        words: &[&["i/o region assigned to your nvidia device is invalid"], &["nvrm: bar", " is 0m @ 0x0 "]],
        advice: "the machine has assigned no memory to the GPU: enable Above 4G Decoding (and Resizable BAR) in the firmware, or for a virtual machine give it more 64-bit MMIO space in the hypervisor, and reboot the node",
    },
    Complaint {
        reason: Reason::ContainerCrashed,
        words: &[&["fallen off the bus and is not responding"]],
        advice: "the GPU does not respond: power-cycle the machine, or for a virtual machine its host; if that does not help, have the GPU, its slot and its power supply checked",
    },
    Complaint {
        reason: Reason::GpuBoundToOtherDriver,
        words: &[
            &["is already bound to"],
            &["probe routine was not called"],
            &["nouveau kernel driver is currently in use"],
        ],
        advice: "another kernel driver holds the GPUs: find it (lspci -k -d 10de:), blacklist its module on the node, rebuild the initramfs and reboot the node",
    },
    Complaint {
        reason: Reason::DownloadFailed,
        words: &[
            &["certificate is not yet valid"],
            &["certificate has expired"],
            &["is not valid yet (invalid for another"],
            &["release file", "is expired"],
            &["not yet activated"],
        ],
        advice: "a certificate or repository is expired or not yet valid: check the node's clock (timedatectl); if it is correct, renew the server's certificate or update the mirror",
    },
    Complaint {
        reason: Reason::DownloadFailed,
        words: &[
            &["could not resolve proxy"],
            &["proxy authentication required"],
            &["407", "from proxy"],
            &["proxy connect aborted"],
            &["proxyconnect"],
            &["connect tunnel failed"],
        ],
        advice: "the proxy rejects the connection or cannot be reached: check proxy.httpProxy, proxy.httpsProxy and proxy.noProxy",
    },
    Complaint {
        reason: Reason::DownloadFailed,
        words: &[
            &["could not resolve host"],
            &["temporary failure resolving"],
            &["temporary failure in name resolution"],
            &["name or service not known"],
            &["unable to resolve host address"],
            &["no such host"],
            &["could not resolve '"],
        ],
        advice: "a host name cannot be resolved: check the node's DNS, or set a proxy in proxy, a mirror in driver.runFile.url or repositories in driver.container.configMaps",
    },
    Complaint {
        reason: Reason::DownloadFailed,
        words: &[
            &["unknown authority"],
            &["unable to get local issuer certificate"],
            &["self-signed certificate"],
            &["self signed certificate"],
            &["certificate verification failed"],
            &["certificate verify failed"],
            &["peer's certificate issuer"],
            &["ssl certificate problem"],
        ],
        advice: "the server's certificate is not trusted: set its certificate authority in proxy.trustedCAConfigMap, or for package repositories in driver.container.configMaps.certificates",
    },
    Complaint {
        reason: Reason::KernelHeadersUnavailable,
        words: &[
            &["unable to locate package linux-headers"],
            &["could not resolve linux kernel version"],
            &["no match for argument: kernel-devel"],
            &["no match for argument: kernel-headers"],
            &["unable to find a match: kernel-"],
            &["no package kernel-devel"],
            &["unable to find the kernel source tree"],
            &["unable to find the development tool", "linux-headers"],
            &["package 'linux-headers", "has no installation candidate"],
            &["no provider of 'kernel-"],
            &["/lib/modules/", "/build: no such file"],
            &["/lib/modules/", "/build': no such file"],
            &["/lib/modules/", "/source: no such file"],
            &["*** /usr/src/", ": no such file"],
            &["no rule to make target 'modules'"],
            &["generated/autoconf.h", "no such file"],
            &["kernel configuration is invalid"],
            &["kernel header", "cannot be found"],
            &["kernel header", "could not be found"],
            &["kernel header", "not found"],
            &["kernel header", "do not seem to be installed"],
            &["kernel header", "not installed"],
            &["kernel header", "does not exist"],
            &["could not find kernel headers"],
            &["unable to locate the kernel"],
            &["kernel source", "cannot be found"],
            &["kernel source", "could not be found"],
            &["kernel source", "not found"],
            &["kernel source path", "invalid"],
            &["kernel source path", "incorrect"],
            &["kernel source path", "does not exist"],
        ],
        advice: "the headers of the node's kernel are missing: set repositories that contain them in driver.container.configMaps.repositories, set driver.container.precompiled: true, or boot a kernel whose headers are available",
    },
    Complaint {
        reason: Reason::ContainerCrashed,
        words: &[
            &[".c:", ": error: "],
            &[".c:", ": fatal error: "],
            &[".h:", ": error: "],
            &[".h:", ": fatal error: "],
            &["cc: error: "],
            &["cc: fatal error: "],
            &["cc1: "],
            &["gcc-", ": error: "],
            &["gcc-", ": fatal error: "],
            &["clang", ": error: "],
            &["internal compiler error"],
            &["compiler version check failed"],
            &["cc version check"],
            &["cc sanity check"],
            &["error: modpost: "],
            &["fatal: modpost: "],
            &["undefined reference to "],
            &["cc: not found"],
            &["cc: command not found"],
            &["cc: no such file"],
            &["gcc-", "not found"],
            &["gcc-", ": no such file"],
            &["unable to find the development tool"],
        ],
        advice: NOT_COMPILED,
    },
    Complaint {
        reason: Reason::DownloadFailed,
        words: &[
            &["connection refused"],
            &["connection timed out"],
            &["network is unreachable"],
            &["no route to host"],
            &["operation timed out"],
            &["connection reset by peer"],
        ],
        advice: "the server cannot be reached: check firewalls and routes, or set a proxy in proxy",
    },
    Complaint {
        reason: Reason::DownloadFailed,
        words: &[
            &["returned error: 404"],
            &["error 404"],
            &["404 not found"],
            &["404  not found"],
            &["status code: 404"],
        ],
        advice: "the file does not exist on the server: check driver.version and driver.runFile.url, or the repositories",
    },
    Complaint {
        reason: Reason::DownloadFailed,
        words: &[
            &["returned error: 401"],
            &["returned error: 403"],
            &["error 403"],
            &["403 forbidden"],
            &["403  forbidden"],
            &["401 unauthorized"],
        ],
        advice: "the server denies the request: check the credentials and permissions that the mirror requires",
    },
    // Of an error that is cut off, the first repetition.
    Complaint { reason: Reason::ContainerCrashed, words: &[&["make", ": *** [", "] error "]], advice: NOT_COMPILED },
];

const NOT_COMPILED: &str = "the kernel modules do not compile for the node's kernel: set another driver.version, use precompiled modules (driver.container.precompiled: true), or set an image with the compiler of the kernel in driver.image";

/// What failed, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub reason: Reason,
    pub advice: &'static str,
    /// The line of the log that reports it.
    pub line: String,
}

/// Returns `None` if the failure is unknown.
pub fn cause(log: &str) -> Option<Cause> {
    let records = records(log);
    let said: Vec<(String, &Record<'_>)> = records.iter().map(|record| (record.to_lowercase(), record)).collect();
    COMPLAINTS.iter().find_map(|complaint| {
        let is_met = |said: &str| complaint.words.iter().any(|all| all.iter().all(|word| said.contains(word)));
        let (_, record) = said.iter().find(|(said, _)| is_met(said))?;
        Some(Cause { reason: complaint.reason, advice: complaint.advice, line: record.text() })
    })
}

/// Returns whether NVIDIA's module has found no GPU that it can bind to.
pub fn says_no_device(log: &str) -> bool {
    let said = log.to_lowercase();
    ["no such device", "is already bound to", "no nvidia devices probed", "probe routine was not called"]
        .iter()
        .any(|word| said.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[(&str, Reason, &str)] = &[
        ("curl: (6) Could not resolve host: us.download.nvidia.com", Reason::DownloadFailed, "DNS"),
        (
            "run-file installer: checksum mismatch: https://m/a.run has 00, and 11 is wanted",
            Reason::ChecksumMismatch,
            "driver.runFile.sha256",
        ),
        (
            "Err:1 http://archive.ubuntu.com/ubuntu jammy InRelease\n  Temporary failure resolving 'archive.ubuntu.com'\nE: Unable to locate package linux-headers-5.15.0-91-generic",
            Reason::DownloadFailed,
            "DNS",
        ),
        (
            "curl: (60) SSL certificate problem: unable to get local issuer certificate",
            Reason::DownloadFailed,
            "trustedCAConfigMap",
        ),
        (
            "Get \"https://mirror.example.com/x.run\": x509: certificate signed by unknown authority",
            Reason::DownloadFailed,
            "trustedCAConfigMap",
        ),
        ("curl: (60) SSL certificate problem: certificate is not yet valid", Reason::DownloadFailed, "clock"),
        (
            "E: Release file for http://archive.ubuntu.com/ubuntu/dists/jammy-updates/InRelease is not valid yet (invalid for another 3h 12min 4s). Updates for this repository will not be applied.",
            Reason::DownloadFailed,
            "clock",
        ),
        (
            "x509: certificate has expired or is not yet valid: current time 2019-01-01T00:00:00Z is before 2026-01-01T00:00:00Z",
            Reason::DownloadFailed,
            "clock",
        ),
        ("curl: (5) Could not resolve proxy: proxy.example.com", Reason::DownloadFailed, "proxy.httpsProxy"),
        ("curl: (56) CONNECT tunnel failed, response 407", Reason::DownloadFailed, "proxy.httpsProxy"),
        ("curl: (56) Received HTTP code 407 from proxy after CONNECT", Reason::DownloadFailed, "proxy.httpsProxy"),
        ("curl: (22) The requested URL returned error: 404", Reason::DownloadFailed, "driver.runFile.url"),
        (
            "E: Failed to fetch http://m/linux.deb  404  Not Found [IP: 10.0.0.1 80]",
            Reason::DownloadFailed,
            "does not exist on the server",
        ),
        ("curl: (22) The requested URL returned error: 403 Forbidden", Reason::DownloadFailed, "denies"),
        (
            "curl: (7) Failed to connect to us.download.nvidia.com port 443 after 12 ms: Connection refused",
            Reason::DownloadFailed,
            "firewalls",
        ),
        ("curl: (28) Connection timed out after 300001 milliseconds", Reason::DownloadFailed, "firewalls"),
        (
            "Resolving Linux kernel version...\nCould not resolve Linux kernel version",
            Reason::KernelHeadersUnavailable,
            "precompiled",
        ),
        (
            "E: Unable to locate package linux-headers-6.8.0-60-generic",
            Reason::KernelHeadersUnavailable,
            "repositories",
        ),
        (
            "Error: Unable to find a match: kernel-headers-4.18.0-305.el8.x86_64 kernel-devel-4.18.0-305.el8.x86_64",
            Reason::KernelHeadersUnavailable,
            "repositories",
        ),
        (
            "ERROR: Unable to find the kernel source tree for the currently running\n       kernel. Install the kernel's headers.",
            Reason::KernelHeadersUnavailable,
            "precompiled",
        ),
        ("ERROR: Kernel configuration is invalid.", Reason::KernelHeadersUnavailable, "precompiled"),
        ("ERROR: modpost: \"screen_info\" [nvidia.ko] undefined!", Reason::ContainerCrashed, "compile"),
        ("/bin/sh: 1: gcc-12: not found", Reason::ContainerCrashed, "compiler"),
        ("can't insert 'nvidia.ko': Required key not available", Reason::SecureBootRejectsModule, "mokutil"),
        (
            "[ 8.1] Lockdown: insmod: unsigned module loading is restricted; see man kernel_lockdown.7",
            Reason::SecureBootRejectsModule,
            "mokutil",
        ),
        (
            "ERROR: The Nouveau kernel driver is currently in use by your system.",
            Reason::GpuBoundToOtherDriver,
            "blacklist",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", Reason::RebootNeeded, "reboot"),
        (
            "Unloading NVIDIA driver kernel modules...\nCould not unload NVIDIA driver kernel modules, driver is in use",
            Reason::DriverInUse,
            "stop the programs",
        ),
    ];

    #[test]
    fn known_failures_have_a_reason_and_advice() {
        for (words, reason, advice) in KNOWN {
            let found = cause(words).unwrap_or_else(|| panic!("unknown: {words}"));
            assert_eq!(found.reason, *reason, "{words}");
            assert!(found.advice.contains(advice), "{words}: {found:?}");
        }
    }

    #[test]
    fn unknown_failures_have_no_reason() {
        for words in [
            "",
            "no message",
            "ERROR: Failed to compile: cc1 crashed",
            "exit status 2",
            "Segmentation fault",
            "-> Unable to determine if Secure Boot is enabled: No such file or directory",
            "[ 8.1] nvidia: module verification failed: signature and/or required key missing - tainting kernel",
            "modprobe: ERROR: could not insert 'nvidia': No such device",
            "depmod: WARNING: could not open modules.order at /lib/modules/6.8.0: No such file or directory",
        ] {
            assert_eq!(cause(words), None, "{words}");
        }
    }
}
