//! The part of a container's log that reports what is wrong.
//!
//! Kubelet keeps the last 2 KiB of a log as termination message. They can begin in the middle of a line, and the error is rarely the last
//! line: cleanup, a configuration dump or a stack trace follows.

/// The size from which the beginning of a message may be missing: 2048 bytes without surrounding whitespace.
const CUT_FROM: usize = 2000;
/// In characters, of the 1,024 of a node's whole message.
const MAX_LENGTH: usize = 600;

/// What programs without log levels print about errors, in lower case.
const ERRORS: [&str; 18] = [
    "error",
    "fatal",
    "failed",
    "failure",
    "panic",
    "cannot",
    "can't",
    "could not",
    "couldn't",
    "unable to",
    "not found",
    "no such",
    "denied",
    "refused",
    "mismatch",
    "timed out",
    "no space left",
    "segmentation fault",
];

/// Log levels, and whether they are those of errors. Apt prints the first letter.
const LEVELS: [(&str, bool); 14] = [
    ("trace", false),
    ("debug", false),
    ("info", false),
    ("notice", false),
    ("warn", false),
    ("warning", false),
    ("i", false),
    ("w", false),
    ("error", true),
    ("fatal", true),
    ("critical", true),
    ("panic", true),
    ("e", true),
    ("f", true),
];

/// What a line contains that only refers to the error, in lower case.
const REFERENCE: &str = "see the file";

/// A line of a log, with the lines that continue it.
struct Record<'l> {
    head: &'l str,
    continued: Vec<&'l str>,
    is_cut: bool,
}

/// Returns the last record that reports an error, or else the last one, on one line and without its time, so that a container that fails
/// repeatedly reports the same error each time.
pub fn error_line(log: &str) -> String {
    let records = records(log);
    let errors = || records.iter().rev().filter(|record| record.reports_an_error());
    let found = errors().find(|record| !record.head.to_lowercase().contains(REFERENCE));
    let found = found.or_else(|| errors().next()).or(records.last());
    found.map_or_else(|| last_line(log).to_owned(), Record::text)
}

fn last_line(log: &str) -> &str {
    log.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default()
}

/// Leaves out stack traces of Go's goroutines, and commands that shells print before executing them.
fn records(log: &str) -> Vec<Record<'_>> {
    let lines: Vec<_> = log.split(['\n', '\r']).map(str::trim_end).collect();
    let mut records: Vec<Record<'_>> = Vec::new();
    let mut continues = false;
    for (index, line) in lines.iter().copied().enumerate() {
        let next = lines.get(index + 1).copied().unwrap_or_default();
        let is_continuation = line.starts_with(char::is_whitespace) || !line.contains(char::is_alphanumeric);
        if is_continuation {
            if let Some(record) = records.last_mut().filter(|_| continues && !line.is_empty()) {
                record.continued.push(line.trim_start());
            }
        } else {
            continues = !is_of_stack(line, next) && !is_command(line);
            let is_cut = records.is_empty() && index == 0 && log.len() >= CUT_FROM;
            records.extend(continues.then(|| Record { head: line, continued: Vec::new(), is_cut }));
        }
        continues &= !line.is_empty();
    }
    records
}

/// In a stack trace of Go, an indented line with the place follows each function.
fn is_of_stack(line: &str, next: &str) -> bool {
    line.starts_with("goroutine ") || next.starts_with('\t') && next.contains(".go:")
}

fn is_command(line: &str) -> bool {
    line.trim_start_matches('+').len() < line.len() && line.trim_start_matches('+').starts_with(' ')
}

impl Record<'_> {
    /// By the record's level if it has one, otherwise by its text.
    fn reports_an_error(&self) -> bool {
        let words = self.head.to_lowercase();
        let by_words =
            || ERRORS.iter().any(|error| contains_word(&words, error)) || begins_with_an_exception(self.head);
        level_is_error(self.head).unwrap_or_else(by_words)
    }

    fn text(&self) -> String {
        let head = if self.is_cut { self.head } else { without_time(self.head) };
        let words = [head].into_iter().chain(self.continued.iter().copied());
        let text = words.collect::<Vec<_>>().join(" ");
        let surplus = text.chars().count().saturating_sub(MAX_LENGTH);
        match (self.is_cut, surplus) {
            (true, surplus) => format!("…{}", text.chars().skip(surplus).collect::<String>()),
            (false, 0) => text,
            (false, _) => text.chars().take(MAX_LENGTH).chain(['…']).collect(),
        }
    }
}

/// Whether a text contains words that are not part of longer ones.
fn contains_word(text: &str, words: &str) -> bool {
    let borders = |c: Option<char>| !c.is_some_and(char::is_alphanumeric);
    text.match_indices(words)
        .any(|(at, found)| borders(text[..at].chars().next_back()) && borders(text[at + found.len()..].chars().next()))
}

/// The last line of Python's tracebacks begins with the name of an exception.
fn begins_with_an_exception(line: &str) -> bool {
    let name = line.split_once(':').map_or(line, |(name, _)| name);
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '.' || c == '_');
    is_name && (name.contains("Error") || name.contains("Exception"))
}

/// A level is a field of logrus or JSON, the letter before the date in klog's lines, the first word with a colon, or one of the first words
/// in upper case.
fn level_is_error(line: &str) -> Option<bool> {
    let of_name =
        |name: &str| LEVELS.iter().find(|(level, _)| level.eq_ignore_ascii_case(name)).map(|(_, is_error)| *is_error);
    let field = ["level=", "\"level\":\""].iter().find_map(|field| line.split_once(field)).map(|(_, value)| value);
    if let Some(value) = field {
        return of_name(value.trim_start_matches('"').split(|c: char| !c.is_alphabetic()).next()?);
    }
    let first = line.split_whitespace().next()?;
    let first = if klog_message(line).is_some() { &first[..1] } else { first.strip_suffix(':').unwrap_or_default() };
    let upper = || {
        let names = line.split_whitespace().take(4).map(|word| word.trim_matches(|c: char| !c.is_alphabetic()));
        let mut names = names.filter(|name| name.len() > 1 && name.chars().all(char::is_uppercase));
        names.find_map(of_name)
    };
    of_name(first).or_else(upper)
}

/// Returns the message of a line by klog, with its place in the source: `E1124 10:00:00.000000 1 main.go:1] message`.
fn klog_message(line: &str) -> Option<&str> {
    let rest = line.strip_prefix(['I', 'W', 'E', 'F'])?;
    let (date, rest) = rest.split_at_checked(4)?;
    let is_header = date.bytes().all(|byte| byte.is_ascii_digit()) && rest.starts_with(' ');
    // Time and thread.
    is_header.then(|| rest.trim_start().splitn(3, char::is_whitespace).last()).flatten()
}

fn without_time(line: &str) -> &str {
    if let Some(message) = klog_message(line) {
        return message.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    }
    let mut rest = line;
    while let Some((word, after)) = rest.split_once(' ') {
        let word = word.trim_start_matches("time=").trim_matches(['"', '[', ']', ',']);
        let is_time = word.starts_with(|c: char| c.is_ascii_digit())
            && word.contains(['-', '/', ':'])
            && !word.contains(char::is_lowercase);
        if !is_time {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

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
