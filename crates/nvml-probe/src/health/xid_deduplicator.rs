//! Deduplicates XIDs, which have two sources: NVML, which returns them when queried, and the kernel log, where the
//! driver writes each before passing it to NVML. An XID reported by both counts once. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gpu_host::{
    nvml::inventory::NvmlXid,
    observe::xids::{XidCount, XidSource, XidsByGpu},
};

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
