//! NVIDIA's XIDs: the numbers of the errors that the driver reports, and what each means for a GPU.
//!
//! Meanings and actions follow NVIDIA's XID catalogue (as of October 2025). The ignored numbers are those that NVIDIA's device
//! plugin (0.20) ignores, and 69, which the catalogue treats alike. Where tools differ (GKE, EKS, DCGM, GPUd), the default is the
//! more lenient one: taking a GPU out of service wrongly costs more than a warning.
//!
//! XIDs have two sources: NVML, which returns them when queried, and the kernel log, where the driver writes each before passing
//! it to NVML. An XID reported by both counts once.

use std::collections::{BTreeMap, BTreeSet};

use gpu_host::{
    nvml::protocol::NvmlXid,
    observe::kernel_log::{XidCount, XidSource, XidsByGpu},
};
use gpu_operator_crd::health::Action;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// An error of an application. The GPU is not affected.
    Ignore,
    /// The GPU continues to work.
    Warn,
    /// The GPU must not be used until it is restarted.
    Fatal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    pub class: Class,
    pub action: Action,
    pub text: &'static str,
}

/// Returns the meaning of an XID. Unknown ones are warnings.
pub fn meaning(xid: u16) -> Meaning {
    use Action::{CheckHardware, None, RebootNode, ReplaceGpu, ResetGpu, RestartApplication};
    use Class::{Fatal, Ignore, Warn};

    let (class, action, text) = match xid {
        13 => (Ignore, RestartApplication, "exception in a program's kernel"),
        31 => (Ignore, RestartApplication, "a program's access to memory that is not its own"),
        32 => (Warn, RestartApplication, "corrupt commands from the host"),
        37 | 38 => (Warn, None, "error of the GPU's firmware"),
        39..=41 | 70..=72 | 75..=77 | 85 | 126..=135 => (Warn, RestartApplication, "error of a copy engine"),
        43 => (Ignore, RestartApplication, "a program's channel was reset"),
        44 => (Warn, None, "error of a context switch"),
        45 => (Ignore, RestartApplication, "a program's work was taken off the GPU"),
        46 => (Fatal, ResetGpu, "the GPU stopped processing"),
        48 => (Fatal, ResetGpu, "uncorrectable memory error"),
        54 => (Fatal, CheckHardware, "auxiliary power is not connected"),
        62 => (Fatal, ResetGpu, "a micro-controller of the GPU halted"),
        63 => (Warn, ResetGpu, "a memory row or page will be replaced at the next reset"),
        64 => (Fatal, ResetGpu, "a memory row or page could not be marked for replacement"),
        68 => (Ignore, RestartApplication, "exception of the video decoder"),
        69 => (Ignore, RestartApplication, "error of a program's graphics commands"),
        74 => (Fatal, ResetGpu, "error of an NVLink"),
        78 => (Warn, None, "a virtual GPU could not be started"),
        79 => (Fatal, RebootNode, "the GPU fell off the bus"),
        92 => (Warn, CheckHardware, "many correctable memory errors"),
        93 => (Warn, None, "the board's configuration memory wears out"),
        94 => (Warn, RestartApplication, "uncorrectable memory error that hit one program only"),
        95 => (Fatal, ResetGpu, "uncorrectable memory error that may have hit several programs"),
        109 => (Ignore, RestartApplication, "a program's context could not be switched in time"),
        110 => (Fatal, ResetGpu, "security fault"),
        119 => (Fatal, ResetGpu, "the GPU's system processor did not answer in time"),
        120 => (Fatal, ResetGpu, "error of the GPU's system processor"),
        121 => (Warn, None, "error of the link between chips"),
        122 | 123 => (Warn, None, "the power controller's memory cannot be reached"),
        136 => (Fatal, ResetGpu, "an NVLink could not be trained"),
        137 => (Warn, None, "privilege error of an NVLink"),
        140 => (Fatal, ResetGpu, "memory errors that were not recovered from"),
        141 => (Warn, None, "error of a fast path of CUDA"),
        142 => (Warn, None, "error of a video encoder"),
        143 => (Fatal, ResetGpu, "the GPU could not be initialised"),
        // Whether such an error is fatal depends on a sub-code, which NVML's event lacks; the recovery action that the
        // same drivers report includes it, and is evaluated separately.
        144..=150 => (Warn, None, "error of the fifth NVLink generation"),
        151 => (Fatal, RebootNode, "keys of confidential computing could not be changed"),
        // Refers to another XID; the action that it announces is read from NVML.
        154 => (Ignore, None, "the recovery action changed"),
        155 => (Fatal, ResetGpu, "software-defined error of an NVLink"),
        156 => (Fatal, ResetGpu, "a resource of the GPU is retired"),
        157 => (Warn, ReplaceGpu, "a resource of the GPU could not be retired"),
        158 => (Fatal, ResetGpu, "fatal timeout of the GPU"),
        152 | 153 | 159 => (Warn, None, "error of the host interface"),
        160 | 161 => (Warn, None, "a memory channel is retired"),
        162..=165 => (Warn, None, "event of the power smoothing circuit"),
        166 | 170 => (Warn, None, "encryption error of an NVLink"),
        167 => (Fatal, RebootNode, "fatal timeout of PCIe"),
        168 => (Warn, None, "the GPU has less memory, because of errors"),
        169 => (Fatal, ResetGpu, "the GPU's security processor halted"),
        171 | 172 => (Fatal, ResetGpu, "details of an uncorrectable memory error"),
        _ => (Warn, None, "not in this probe's catalogue"),
    };
    Meaning { class, action, text }
}

type Key = (String, u16);

/// What one source has reported and the other has not yet.
#[derive(Clone, Debug, Default)]
pub struct XidDeduplicator {
    leads: BTreeMap<Key, Lead>,
}

/// How far the log is ahead of NVML; negative if it is behind.
#[derive(Clone, Copy, Debug, Default)]
struct Lead {
    of_log: i64,
    /// How many the log has reported since NVML was last queried.
    logged: i64,
}

impl XidDeduplicator {
    /// Takes the XIDs from the log and returns those that NVML had not reported. NVML does not know those from before
    /// this process started.
    pub fn from_log(&mut self, mut xids: XidsByGpu) -> XidsByGpu {
        for (address, seen) in &mut xids {
            seen.retain_mut(|seen| match seen.source {
                XidSource::EarlierKernelLog(_) => true,
                XidSource::Nvml | XidSource::KernelLog(_) => {
                    let lead = self.leads.entry((address.clone(), seen.xid)).or_default();
                    lead.logged = lead.logged.saturating_add(signed(seen.count));
                    seen.count = advance(&mut lead.of_log, seen.count);
                    seen.count > 0
                }
            });
        }
        xids.retain(|_, seen| !seen.is_empty());
        xids
    }

    /// Takes the XIDs that NVML has reported since it was last queried and returns those that the log had not.
    pub fn from_nvml(&mut self, reported: &[NvmlXid]) -> XidsByGpu {
        let mut xids = XidsByGpu::new();
        let counts: BTreeMap<Key, u64> =
            reported.iter().map(|it| ((it.pci_address.clone(), it.xid), it.count)).collect();
        let keys: BTreeSet<Key> = counts.keys().chain(self.leads.keys()).cloned().collect();
        for key in keys {
            let count = counts.get(&key).copied().unwrap_or_default();
            let Lead { of_log, logged } = self.leads.remove(&key).unwrap_or_default();
            let mut of_nvml = of_log.saturating_neg();
            let more = advance(&mut of_nvml, count);
            // What a source has not reported by the next query, it never will.
            let of_log = of_nvml.saturating_neg().clamp(-signed(count), logged);
            let (address, xid) = key.clone();
            if of_log != 0 {
                self.leads.insert(key, Lead { of_log, logged: 0 });
            }
            if more > 0 {
                let seen = XidCount { xid, count: more, source: XidSource::Nvml, message: String::new() };
                xids.entry(address).or_default().push(seen);
            }
        }
        xids
    }
}

/// Advances one source by a count. Returns how many of them are new.
fn advance(lead: &mut i64, count: u64) -> u64 {
    let before = *lead;
    *lead = before.saturating_add(signed(count));
    u64::try_from(lead.max(&mut 0).saturating_sub(before.max(0))).unwrap_or_default()
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn application_errors_are_ignored() {
        for xid in [13, 31, 43, 45, 68, 69, 109, 154] {
            assert_eq!(meaning(xid).class, Class::Ignore, "{xid}");
        }
    }

    #[test]
    fn every_fatal_xid_has_an_action() {
        for xid in 0..=1023 {
            let meaning = meaning(xid);
            assert!(meaning.class != Class::Fatal || meaning.action > Action::RestartApplication, "{xid}");
        }
    }

    #[test]
    fn xids_that_several_tools_consider_fatal_are_fatal() {
        for xid in [46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158] {
            assert_eq!(meaning(xid).class, Class::Fatal, "{xid}");
        }
    }

    const GPU: &str = "0000:06:00.0";

    fn log(source: XidSource, count: u64) -> XidsByGpu {
        XidsByGpu::from([(GPU.to_owned(), vec![XidCount { xid: 79, count, source, message: "said".to_owned() }])])
    }

    fn live(count: u64) -> XidsByGpu {
        log(XidSource::KernelLog(Timestamp::UNIX_EPOCH), count)
    }

    fn event(count: u64) -> Vec<NvmlXid> {
        vec![NvmlXid { pci_address: GPU.to_owned(), xid: 79, count }]
    }

    fn total(xids: &XidsByGpu) -> u64 {
        xids.values().flatten().map(|seen| seen.count).sum()
    }

    #[test]
    fn an_xid_reported_by_both_counts_once_in_any_order() {
        let mut deduplicator = XidDeduplicator::default();
        assert_eq!(total(&deduplicator.from_log(live(2))), 2);
        assert_eq!(total(&deduplicator.from_nvml(&event(3))), 1);
        assert_eq!(total(&deduplicator.from_log(live(1))), 0);
        assert_eq!(total(&deduplicator.from_log(live(1))), 1);
        // Written to the log just before NVML was queried, and returned by NVML the next time.
        assert_eq!(total(&deduplicator.from_nvml(&[])), 0);
        assert_eq!(total(&deduplicator.from_nvml(&event(1))), 0);
        assert_eq!(total(&deduplicator.from_nvml(&event(1))), 1);
    }

    #[test]
    fn one_sources_silence_does_not_hide_later_xids_of_the_other() {
        let mut deduplicator = XidDeduplicator::default();
        let _ = deduplicator.from_log(live(5));
        let _ = deduplicator.from_nvml(&[]);
        let _ = deduplicator.from_nvml(&[]);
        assert_eq!(total(&deduplicator.from_nvml(&event(1))), 1);
        let _ = deduplicator.from_nvml(&[]);
        assert_eq!(total(&deduplicator.from_log(live(1))), 1);
    }

    #[test]
    fn earlier_log_entries_have_no_second_source() {
        let mut deduplicator = XidDeduplicator::default();
        assert_eq!(total(&deduplicator.from_log(log(XidSource::EarlierKernelLog(Timestamp::UNIX_EPOCH), 2))), 2);
        assert_eq!(total(&deduplicator.from_nvml(&event(2))), 2);
    }

    #[test]
    fn gpus_and_numbers_are_counted_separately() {
        let mut deduplicator = XidDeduplicator::default();
        let _ = deduplicator.from_log(live(1));
        let other = |address: &str, xid| vec![NvmlXid { pci_address: address.to_owned(), xid, count: 1 }];
        assert_eq!(total(&deduplicator.from_nvml(&other("0000:07:00.0", 79))), 1);
        let _ = deduplicator.from_log(live(1));
        assert_eq!(total(&deduplicator.from_nvml(&other(GPU, 48))), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The driver's errors between looks, each read from the log before or after that look.
        #[test]
        fn each_error_counts_once_if_both_sources_report_everything(looks in vec((0_u64..5, 0_u64..5), 1..50)) {
            let mut deduplicator = XidDeduplicator::default();
            let (mut happened, mut counted, mut late) = (0, 0, 0);
            for (before, after) in looks {
                counted += total(&deduplicator.from_log(live(late + before)));
                counted += total(&deduplicator.from_nvml(&event(before + after)));
                happened += before + after;
                late = after;
            }
            counted += total(&deduplicator.from_log(live(late)));
            prop_assert_eq!(counted, happened);
        }

        #[test]
        fn huge_counts_do_not_overflow(counts in vec((any::<u64>(), any::<u64>()), 1..20)) {
            let mut deduplicator = XidDeduplicator::default();
            for (logged, told) in counts {
                let _ = deduplicator.from_log(live(logged));
                let _ = deduplicator.from_nvml(&event(told));
            }
        }
    }
}
