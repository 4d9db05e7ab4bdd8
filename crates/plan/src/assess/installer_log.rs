//! Classifies the end of an installing container's log: what failed, and how to fix it.

use gpu_operator_crd::reason::Reason;

/// Any of the lists of texts, in lower case, must match completely.
struct Complaint {
    reason: Reason,
    words: &'static [&'static [&'static str]],
    advice: &'static str,
}

/// The first match counts, so causes are listed before their consequences: a name that cannot be resolved also makes downloads
/// fail and kernel headers unavailable. The texts are those of curl, wget, apt, dnf and OpenSSL.
const COMPLAINTS: [Complaint; 11] = [
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
        advice: "the file was not executed because its checksum differs from driver.sha256: compare it with the one that the file's publisher states; if it is correct, the server or its cache delivers another file: replace it, or set driver.url",
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
        advice: "a host name cannot be resolved: check the node's DNS, or set a proxy in proxy, a mirror in driver.url or repositories in driver.configMaps",
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
        advice: "the server's certificate is not trusted: set its certificate authority in proxy.trustedCAConfigMap, or for package repositories in driver.configMaps.certificates",
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
        ],
        advice: "the repositories lack the headers of the node's kernel: set repositories that contain them in driver.configMaps.repositories, set precompiled: true, or boot a kernel whose headers are available",
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
        advice: "the file does not exist on the server: check driver.version and driver.url, or the repositories",
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
];

/// Returns reason and advice; `None` if the failure is unknown.
pub fn complaint(words: &str) -> Option<(Reason, &'static str)> {
    let said = words.to_lowercase();
    let told = |complaint: &&Complaint| complaint.words.iter().any(|all| all.iter().all(|word| said.contains(word)));
    COMPLAINTS.iter().find(told).map(|complaint| (complaint.reason, complaint.advice))
}

/// Whether a container runtime's error means that an image does not exist.
pub fn says_not_found(words: &str) -> bool {
    let said = words.to_lowercase();
    let none = ["not found", "manifest unknown", "name unknown", "does not exist"];
    // A host that is not found proves nothing about the image.
    let elsewhere = ["no such host", "lookup ", "not present with pull policy"];
    none.iter().any(|word| said.contains(word)) && !elsewhere.iter().any(|word| said.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_failures_have_a_reason_and_advice() {
        for (words, reason, advice) in [
            ("curl: (6) Could not resolve host: us.download.nvidia.com", Reason::DownloadFailed, "DNS"),
            (
                "run-file installer: checksum mismatch: https://m/a.run has 00, and 11 is wanted",
                Reason::ChecksumMismatch,
                "driver.sha256",
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
            ("curl: (22) The requested URL returned error: 404", Reason::DownloadFailed, "driver.url"),
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
            ("Failed to initialize NVML: Driver/library version mismatch", Reason::RebootNeeded, "reboot"),
            (
                "Unloading NVIDIA driver kernel modules...\nCould not unload NVIDIA driver kernel modules, driver is in use",
                Reason::DriverInUse,
                "stop the programs",
            ),
        ] {
            let (found, said) = complaint(words).unwrap_or_else(|| panic!("unknown: {words}"));
            assert_eq!(found, reason, "{words}");
            assert!(said.contains(advice), "{words}: {said}");
        }
    }

    #[test]
    fn unknown_failures_have_no_reason() {
        for words in ["", "no message", "ERROR: Failed to compile: cc1 crashed", "exit status 2", "Segmentation fault"]
        {
            assert_eq!(complaint(words), None, "{words}");
        }
    }

    #[test]
    fn a_missing_image_differs_from_other_pull_failures() {
        for (words, missing) in [
            ("failed to resolve reference \"nvcr.io/nvidia/driver:1-x\": nvcr.io/nvidia/driver:1-x: not found", true),
            ("rpc error: code = NotFound desc = manifest unknown", true),
            ("reading manifest 580-6.8.0-x-ubuntu24.04 in nvcr.io/nvidia/driver: manifest unknown", true),
            ("dial tcp: lookup nvcr.io on 10.0.0.2:53: no such host", false),
            ("failed to authorize: 401 Unauthorized", false),
            ("dial tcp 10.0.0.1:443: i/o timeout", false),
            ("tls: failed to verify certificate: x509: certificate signed by unknown authority", false),
        ] {
            assert_eq!(says_not_found(words), missing, "{words}");
        }
    }
}
