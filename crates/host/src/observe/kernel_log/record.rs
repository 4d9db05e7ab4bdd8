//! Records of the kernel log in the format of /dev/kmsg:
//!
//! ```text
//! priority,sequence,microseconds,flags[,more];message
//!  KEY=value
//! ```

use std::time::Duration;

/// The facility of the kernel's own messages; programs cannot write it.
const KERNEL: u32 = 0;

/// The relevant parts of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was logged, since the boot.
    pub at: Duration,
    /// Its text.
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
}
