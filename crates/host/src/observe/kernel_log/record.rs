//! Records of the kernel log in the format of /dev/kmsg:
//!
//! ```text
//! priority,sequence,microseconds,flags[,more];message
//!  KEY=value
//! ```

use std::time::Duration;

use crate::observe::pci;

/// The facility of the kernel's own messages; programs cannot write it.
const KERNEL: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was logged, since the boot.
    pub at: Duration,
    pub message: &'a str,
}

impl<'a> Record<'a> {
    /// Parses the first line of a record. Returns `None` if the line continues another record, was written by a
    /// program, or is not a record.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let (head, message) = str::from_utf8(line).ok()?.split_once(';')?;
        let mut head = head.split(',');
        let priority: u32 = head.next()?.parse().ok()?;
        let _sequence = head.next()?;
        let at = Duration::from_micros(head.next()?.parse().ok()?);
        (priority >> 3 == KERNEL).then_some(Self { at, message })
    }
}

/// The prefix of every line of the driver.
const DRIVER: &str = "NVRM: ";
/// The prefix of every line about an `NVSwitch`, before its number.
const SWITCH: &str = "nvidia-nvswitch";
/// The first word of an `SXid`'s text if the error is fatal to the fabric; others are `Non-fatal`, `Correctable`, and the details of an
/// error that has its own line.
const FATAL: &str = "Fatal";
/// Both flavours of the module log this once they are loaded.
const LOADED: &str = "loading NVIDIA UNIX";
/// Both flavours of the module log this before all else when they are loaded.
const STARTING: &str = "nvidia-nvlink: Nvlink Core is being initialized";
const MAX_TEXT: usize = 200;
/// For a sentence of several lines, which the driver logs as one record.
const MAX_SENTENCE: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The driver is being loaded: earlier messages are about an earlier attempt.
    Starting,
    /// The driver was loaded: earlier messages are about an earlier start.
    Loaded,
    Xid {
        /// As sysfs writes it.
        address: String,
        xid: u16,
        /// The driver's message, without control characters.
        text: String,
    },
    /// A fatal error of an `NVSwitch` (`SXid`).
    SwitchError {
        /// Of the switch, as sysfs writes it.
        address: String,
        sxid: u16,
        text: String,
    },
    /// Anything else of the driver: a sentence on one line. While no driver is loaded, it is about a driver that cannot be.
    OfDriver(String),
    /// A module, which may be the driver, or a driver for a GPU that the kernel rejects.
    Rejected(String),
}

impl Message {
    /// `None` if it is not relevant.
    pub fn parse(message: &str) -> Option<Self> {
        if let Some(text) = message.strip_prefix(SWITCH) {
            let (address, _, sxid, text) =
                error(text.trim_start_matches(|digit: char| digit.is_ascii_digit()), ": SXid (")?;
            let is_fatal = text.split([',', ' ']).next() == Some(FATAL);
            return is_fatal.then_some(Self::SwitchError { address, sxid, text });
        }
        if message.starts_with(STARTING) {
            return Some(Self::Starting);
        }
        let Some(text) = message.strip_prefix(DRIVER) else {
            return is_rejection(message).then(|| Self::Rejected(sentence(message)));
        };
        if text.starts_with(LOADED) {
            return Some(Self::Loaded);
        }
        let Some((address, instance, xid, text)) = error(text, "Xid (") else {
            return Some(Self::OfDriver(sentence(message)));
        };
        let text = if instance.is_empty() { text } else { plain(&format!("{instance}, {text}"), MAX_TEXT) };
        Some(Self::Xid { address, xid, text })
    }
}

/// Of an unsigned module, the kernel does not log the name. A module that taints the kernel is loaded.
fn is_rejection(message: &str) -> bool {
    let of_any = message.starts_with("Loading of ") && message.ends_with(" is rejected")
        || message.starts_with("Lockdown: ") && message.contains("module loading is restricted");
    let of_module = message.starts_with("nvidia: ") && !message.contains("taint");
    let of_device = message.starts_with("nvidia ") && message.contains("probe with driver nvidia failed");
    of_any || of_module || of_device
}

/// Joins the lines of a record, in which /dev/kmsg escapes control characters. The driver prefixes each line.
fn sentence(message: &str) -> String {
    let text = message.replace("\\x09", " ").replace("\\x0a", "\n");
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches(DRIVER.trim_end()).trim());
    let words = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let prefix = if message.starts_with(DRIVER) { DRIVER } else { "" };
    plain(&format!("{prefix}{words}"), MAX_SENTENCE)
}

/// Parses `BEGIN PLACE[ MIG INSTANCE]): NUMBER[, TEXT]`. Returns the address, the MIG instance, the number and the text.
fn error<'a>(text: &'a str, begin: &str) -> Option<(String, &'a str, u16, String)> {
    let (place, rest) = text.strip_prefix(begin)?.split_once("): ")?;
    // GPU-I:05, or GPU-I:05 GPU-CI:01.
    let (place, instance) = place.split_once(' ').unwrap_or((place, ""));
    let number = rest.split(|character: char| !character.is_ascii_digit()).next()?;
    let text = plain(rest[number.len()..].trim_start_matches([',', ' ']), MAX_TEXT);
    Some((address(place.strip_prefix("PCI:").unwrap_or(place))?, instance, number.parse().ok()?, text))
}

/// Returns the address of a GPU, which the driver writes with or without the function; without it, that is the first.
fn address(place: &str) -> Option<String> {
    if place.contains('.') { pci::normalise(place) } else { pci::normalise(&format!("{place}.0")) }
}

fn plain(text: &str, characters: usize) -> String {
    text.chars().filter(|character| !character.is_control()).take(characters).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_of_the_kernel_has_a_time_and_a_message() {
        for (line, at, message) in [
            ("6,339,5140900,-;NVRM: loaded", 5_140_900, "NVRM: loaded"),
            ("3,1,0,c;a; b", 0, "a; b"),
            ("4,12345678901,98765432109,-,caller=T123;x", 98_765_432_109, "x"),
            ("0,1,2;", 2, ""),
        ] {
            let record = Record { at: Duration::from_micros(at), message };
            assert_eq!(Record::parse(line.as_bytes()), Some(record), "{line}");
        }
    }

    #[test]
    fn records_of_programs_and_other_lines_are_ignored() {
        for line in [
            // Facilities of a user's program and of a daemon.
            "12,339,5140900,-;NVRM: Xid (PCI:0000:01:00): 79, forged",
            "30,339,5140900,-;systemd[1]: hello",
            " SUBSYSTEM=pci",
            " DEVICE=+pci:0000:01:00.0;x",
            "6,339,5140900,-",
            "6,339,later,-;x",
            "6,339;x",
            "-6,339,1,-;x",
            ";",
            "",
        ] {
            assert_eq!(Record::parse(line.as_bytes()), None, "{line}");
        }
        assert_eq!(Record::parse(b"6,339,1,-;\xff"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_line_can_be_parsed(line: Vec<u8>, head in "[0-9,;-]{0,40}", message: String) {
            let _ = Record::parse(&line);
            let _ = Record::parse(format!("{head};{message}").as_bytes());
        }
    }

    fn xid(message: &str) -> Option<(String, u16, String)> {
        match Message::parse(message)? {
            Message::Xid { address, xid, text } => Some((address, xid, text)),
            _ => None,
        }
    }

    #[test]
    fn a_fatal_error_of_a_switch_is_parsed_and_others_are_ignored() {
        let fatal = |address: &str, sxid, text: &str| {
            Some(Message::SwitchError { address: address.into(), sxid, text: text.into() })
        };
        for (message, expected) in [
            (
                "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 23001, Fatal, Link 12 Always Fatal",
                fatal("0000:c3:00.0", 23001, "Fatal, Link 12 Always Fatal"),
            ),
            (
                "nvidia-nvswitch11: SXid (PCI:0001:07:00.0): 12021, Fatal, Link 45 ingress invalid command (First)",
                fatal("0001:07:00.0", 12021, "Fatal, Link 45 ingress invalid command (First)"),
            ),
            (
                "nvidia-nvswitch2: SXid (PCI:0000:c5:00.0): 10004, Fatal, unhandled interrupt in function(12)",
                fatal("0000:c5:00.0", 10004, "Fatal, unhandled interrupt in function(12)"),
            ),
            (
                "nvidia-nvswitch2: SXid (PCI:0000:c5:00.0): 00003, Fatal, Unexpected PRI error",
                fatal("0000:c5:00.0", 3, "Fatal, Unexpected PRI error"),
            ),
            ("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate", None),
            ("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 22003, Correctable, Link 03 Fatal-looking text", None),
            // The details of an error, which has a line of its own.
            (
                "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 23001, Severity 1 Engine instance 12 Sub-engine instance 00",
                None,
            ),
            ("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 23001, Data {0x00000001, 0x00000000}", None),
            (
                "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 10006, NVSWITCH Temperature 85C | TSENSE WARN Threshold 80C",
                None,
            ),
            ("nvidia-nvswitch0: open (major=237)", None),
            ("nvidia-nvswitch: Probing device 0000:c3:00.0", None),
            ("usb 1-1: nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 23001, Fatal, written by a device", None),
            ("nvidia-nvswitch0: SXid (PCI:somewhere): 23001, Fatal, x", None),
        ] {
            assert_eq!(Message::parse(message), expected, "{message}");
        }
    }

    #[test]
    fn an_xid_is_parsed_with_every_spelling_of_its_gpu() {
        for (message, address, number, text) in [
            (
                "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                "0000:01:00.0",
                79,
                "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ),
            (
                "NVRM: Xid (PCI:0000:c1:00.0): 119, pid=12, name=python3, Timeout after 6s of waiting for RPC response",
                "0000:c1:00.0",
                119,
                "pid=12, name=python3, Timeout after 6s of waiting for RPC response",
            ),
            (
                "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
                "0000:dc:00.0",
                45,
                "pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
            ),
            ("NVRM: Xid (PCI:00000000:AF:1F): 62, 2c3f(1e0c) 0", "0000:af:1f.0", 62, "2c3f(1e0c) 0"),
            ("NVRM: Xid (PCI:10000:01:00): 31, Ch 8", "10000:01:00.0", 31, "Ch 8"),
            ("NVRM: Xid (0000:03:00): 8, Channel 00000012", "0000:03:00.0", 8, "Channel 00000012"),
            ("NVRM: Xid (PCI:0000:01:00): 43", "0000:01:00.0", 43, ""),
            (
                "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=python3, Contained: CE User Channel (0x9). RST: No",
                "0000:01:00.0",
                94,
                "GPU-I:05, pid=7194, name=python3, Contained: CE User Channel (0x9). RST: No",
            ),
            (
                "NVRM: Xid (PCI:0000:41:00 GPU-I:01 GPU-CI:00): 13, Graphics Exception: ChID 000a",
                "0000:41:00.0",
                13,
                "GPU-I:01 GPU-CI:00, Graphics Exception: ChID 000a",
            ),
            ("NVRM: Xid (PCI:0000:01:00): 13,\ta\u{1b}[31mb\r\n", "0000:01:00.0", 13, "a[31mb"),
        ] {
            let expected = (address.to_owned(), number, text.to_owned());
            assert_eq!(xid(message), Some(expected), "{message}");
        }
    }

    #[test]
    fn other_messages_are_ignored() {
        for message in [
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
            "usb 1-1: NVRM: Xid (PCI:0000:01:00): 79, written by a device",
            "nvidia: loading out-of-tree module taints kernel.",
            "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
            "nvidia 0000:01:00.0: enabling device (0000 -> 0003)",
            "nvidia-uvm: Loaded the UVM driver, major device number 510.",
            "Loading iSCSI transport class v2.0-870.",
            "",
        ] {
            assert_eq!(Message::parse(message), None, "{message}");
        }
    }

    #[test]
    fn what_resembles_an_xid_is_none() {
        for message in [
            "NVRM: GPU at PCI:0000:01:00: GPU-0d1e",
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:01:00) 79",
            "NVRM: Xid (PCI:0000:01:00): seventy-nine",
            "NVRM: Xid (PCI:0000:01:00): 70000, too large",
            "NVRM: Xid (PCI:somewhere): 79, x",
            "NVRM: Xid (PCI:0000:01:00): ",
            "NVRM: Xid (",
            "NVRM: ",
        ] {
            assert!(matches!(Message::parse(message), Some(Message::OfDriver(_))), "{message}");
        }
    }

    #[test]
    fn an_xid_is_parsed_in_every_shape_of_the_driver() {
        for place in ["", " GPU-I:05", " GPU-I:05 GPU-CI:01"] {
            for process in ["", "pid=7194, name=python3, ", "pid='<unknown>', name=<unknown>, ", "pid=1, name=a): 1, "]
            {
                for root_cause in ["", " caused by previous Xid 149"] {
                    let rest = format!("{process}Ch 00000001{root_cause}");
                    let text = if place.is_empty() { rest.clone() } else { format!("{}, {rest}", place.trim()) };
                    let message = format!("NVRM: Xid (PCI:0000:dc:00{place}): 45, {rest}");
                    assert_eq!(xid(&message), Some(("0000:dc:00.0".to_owned(), 45, text)), "{message}");
                }
            }
        }
    }

    #[test]
    fn a_driver_that_is_not_loaded_has_sentences_on_one_line() {
        for (message, sentence) in [
            ("NVRM: GPU 0000:01:00.0 is already bound to NovaCore.", ""),
            (
                "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85)\\x0aNVRM: installed in this system requires use of the NVIDIA open kernel modules.",
                "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85) installed in this system requires use of the NVIDIA open kernel modules.",
            ),
            (
                "NVRM: The NVIDIA Tesla V100-SXM2-32GB GPU installed in this system is\\x0aNVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please\\x0aNVRM:  visit http://www.nvidia.com/object/unix.html for more\\x0aNVRM:  information.  The 595.91.07 NVIDIA driver will ignore\\x0aNVRM:  this GPU.  Continuing probe...",
                "NVRM: The NVIDIA Tesla V100-SXM2-32GB GPU installed in this system is supported through the NVIDIA 580.xx Legacy drivers. Please visit http://www.nvidia.com/object/unix.html for more information.  The 595.91.07 NVIDIA driver will ignore this GPU.  Continuing probe...",
            ),
            (
                "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\\x0aNVRM: BAR0 is 0M @ 0x0 (PCI:0000:01:00.0)",
                "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR0 is 0M @ 0x0 (PCI:0000:01:00.0)",
            ),
            (
                "NVRM: This can occur when another driver was loaded and \\x0aNVRM: obtained",
                "NVRM: This can occur when another driver was loaded and obtained",
            ),
        ] {
            let sentence = if sentence.is_empty() { message } else { sentence };
            assert_eq!(Message::parse(message), Some(Message::OfDriver(sentence.to_owned())));
        }
        for message in [
            "Loading of unsigned module is rejected",
            "Loading of module with unavailable key is rejected",
            "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
            "nvidia: disagrees about version of symbol module_layout",
            "nvidia: probe of 0000:01:00.0 failed with error -1",
            "nvidia 0000:01:00.0: probe with driver nvidia failed with error -1",
        ] {
            assert_eq!(Message::parse(message), Some(Message::Rejected(message.to_owned())));
        }
        assert_eq!(
            Message::parse("nvidia-nvlink: Nvlink Core is being initialized, major device number 237"),
            Some(Message::Starting)
        );
    }

    #[test]
    fn both_flavours_log_that_they_were_loaded() {
        for message in [
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.173.02  Release Build  (builder@host)",
        ] {
            assert_eq!(Message::parse(message), Some(Message::Loaded), "{message}");
        }
        let other = "nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  580.173.02";
        assert_eq!(Message::parse(other), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_message_can_be_parsed_and_the_result_is_bounded(any: String, place in ".{0,20}", rest in ".{0,400}") {
            let _ = Message::parse(&any);
            let _ = Message::parse(&format!("NVRM: Xid ({place}): {rest}"));
            let _ = Message::parse(&format!("nvidia-nvswitch0: SXid ({place}): {rest}"));
            let (_, number, text) = xid(&format!("NVRM: Xid (PCI:0000:01:00): 79, {rest}")).unwrap();
            prop_assert_eq!(number, 79);
            prop_assert!(text.chars().count() <= 200 && !text.chars().any(char::is_control), "{}", text);
            if let Some(Message::OfDriver(text)) = Message::parse(&format!("NVRM: {rest}\\x0a{any}")) {
                prop_assert!(text.chars().count() <= 300 && !text.chars().any(char::is_control), "{}", text);
            }
        }
    }
}
