//! Validation pods whose logs could not be read. They are read again after some time instead of in every pass.

use std::collections::{BTreeMap, BTreeSet};

use crate::{settings::ASK_AGAIN, time::Uptime, world::LogTails};

/// The last failed attempts, by pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unread {
    failed: BTreeMap<String, Failed>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Failed {
    at: Uptime,
    error: String,
}

impl Unread {
    /// Returns the cached read errors of pods that are still in back-off.
    pub fn errors(&self, pods: &BTreeSet<String>, now: Uptime) -> LogTails {
        let recent = |failed: &&Failed| now.saturating_sub(failed.at) < ASK_AGAIN;
        let error = |pod: &String| Some((pod.clone(), Err(self.failed.get(pod).filter(recent)?.error.clone())));
        pods.iter().filter_map(error).collect()
    }

    /// Records the results of attempts.
    pub fn read(&mut self, tails: &LogTails, now: Uptime) {
        self.failed.retain(|_, failed| now.saturating_sub(failed.at) < ASK_AGAIN);
        for (pod, tail) in tails {
            if let Err(error) = tail {
                self.failed.insert(pod.clone(), Failed { at: now, error: error.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_could_not_be_read_is_read_again_after_some_time() {
        let (mut unread, pods) = (Unread::default(), ["a".to_owned(), "b".to_owned()].into());
        assert!(unread.errors(&pods, Uptime::ZERO).is_empty());
        let tails = [("a".to_owned(), Err("no answer".to_owned())), ("b".to_owned(), Ok(String::new()))].into();
        unread.read(&tails, Uptime::ZERO);
        let soon = ASK_AGAIN.saturating_sub(Uptime::from_secs(1));
        assert_eq!(unread.errors(&pods, soon), [("a".to_owned(), Err("no answer".to_owned()))].into());
        assert!(unread.errors(&pods, ASK_AGAIN).is_empty());
        unread.read(&LogTails::new(), ASK_AGAIN);
        assert_eq!(unread, Unread::default());
    }
}
