//! What a replica knows of the Lease, and what it writes to it. Pure: times are arguments.

use std::time::Duration;

use gpu_operator_crd::keys;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::api::ObjectMeta;
use tokio::time::Instant;

/// How long a Lease is valid after it was last renewed.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long its holder writes after it last renewed it. The rest of [`LEASE_DURATION`] is for requests in progress.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The Lease as it was last seen.
#[derive(Debug)]
struct Seen {
    lease: Lease,
    /// When its spec was first seen as it is. Times that are written in it are those of other machines.
    since: Instant,
}

#[derive(Debug)]
pub struct Candidate {
    lease: String,
    identity: String,
    seen: Option<Seen>,
    /// The time of its last successful claim, unless another replica has held the Lease since.
    claimed: Option<Instant>,
    /// Whether what was seen is its own last write.
    is_certain: bool,
}

impl Candidate {
    /// Creates a candidate that knows nothing of the Lease of this name.
    pub fn new(lease: &str, identity: &str) -> Self {
        Self { lease: lease.to_owned(), identity: identity.to_owned(), seen: None, claimed: None, is_certain: false }
    }

    pub fn lease(&self) -> &str {
        &self.lease
    }

    /// Records what was read, `None` if the Lease does not exist.
    pub fn observe(&mut self, found: Option<Lease>, now: Instant) {
        let before = self.seen.take();
        self.seen = found.map(|lease| {
            let unchanged = before.filter(|seen| seen.lease.spec == lease.spec);
            Seen { lease, since: unchanged.map_or(now, |seen| seen.since) }
        });
        if !self.is_holder() {
            self.claimed = None;
        }
    }

    /// Records that a request failed: the Lease has to be read before it is claimed again.
    pub const fn doubt(&mut self) {
        self.is_certain = false;
    }

    /// Ends its term at once. The Lease is not released but expires, so that requests in progress end before another term.
    pub const fn resign(&mut self) {
        self.claimed = None;
    }

    /// Whether the known Lease is its own last write, so that it need not be read.
    pub const fn is_certain(&self) -> bool {
        self.is_certain
    }

    fn is_holder(&self) -> bool {
        self.spec().is_some_and(|spec| spec.holder_identity.as_deref() == Some(&self.identity))
    }

    fn spec(&self) -> Option<&LeaseSpec> {
        self.seen.as_ref()?.lease.spec.as_ref()
    }

    /// Returns until when it may write.
    pub fn leads_until(&self) -> Option<Instant> {
        self.claimed.map(|claimed| claimed + RENEW_DEADLINE)
    }

    /// Returns the Lease with which it holds or renews it, or `None` as long as another replica holds it.
    ///
    /// A Lease with its own identity is of an earlier process in the same pod, which has ended.
    pub fn claim(&self, now: Instant, clock: Timestamp) -> Option<Lease> {
        if !self.is_holder() && self.is_taken(now) {
            return None;
        }
        let before = self.spec().cloned().unwrap_or_default();
        let mut spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            renew_time: Some(MicroTime(clock)),
            ..before
        };
        if !self.is_holder() {
            spec.acquire_time = Some(MicroTime(clock));
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |before| before.saturating_add(1)));
        }
        Some(self.with(spec))
    }

    fn is_taken(&self, now: Instant) -> bool {
        let Some(seen) = &self.seen else { return false };
        let Some(spec) = &seen.lease.spec else { return false };
        let is_held = spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty());
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let valid = seconds.map_or(LEASE_DURATION, Duration::from_secs);
        is_held && now.saturating_duration_since(seen.since) < valid
    }

    /// Records that its claim, which it asked for at this time, succeeded.
    pub fn claimed(&mut self, lease: Lease, asked: Instant) {
        self.observe(Some(lease), asked);
        self.claimed = Some(asked);
        self.is_certain = true;
    }

    /// Returns the Lease without a holder, if this replica holds it, and holds it no longer.
    pub fn release(&mut self, clock: Timestamp) -> Option<Lease> {
        self.claimed.take()?;
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(clock)),
            ..self.spec().cloned().unwrap_or_default()
        };
        Some(self.with(spec))
    }

    /// Returns the Lease with another spec. The write fails if the Lease has changed since it was seen.
    fn with(&self, spec: LeaseSpec) -> Lease {
        let metadata = self.seen.as_ref().map(|seen| seen.lease.metadata.clone());
        // By the label it is found when the operator is removed.
        let labels = Some([(keys::NAME.to_owned(), keys::OPERATOR_NAME.to_owned())].into());
        let new = || ObjectMeta { name: Some(self.lease.clone()), labels, ..ObjectMeta::default() };
        Lease { metadata: metadata.unwrap_or_else(new), spec: Some(spec) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    /// Two candidates around one Lease, whose versions are counted.
    struct Sim {
        began: Instant,
        stored: Option<Lease>,
        version: u32,
    }

    impl Sim {
        fn at(&self, seconds: u64) -> Instant {
            self.began + Duration::from_secs(seconds)
        }

        /// Stores a Lease as the API server does. Returns whether it was written for the current version.
        fn store(&mut self, mut lease: Lease) -> Option<Lease> {
            let version = |lease: &Lease| lease.metadata.resource_version.clone();
            if version(&lease) != self.stored.as_ref().and_then(version) {
                return None;
            }
            self.version += 1;
            lease.metadata.resource_version = Some(self.version.to_string());
            self.stored = Some(lease.clone());
            Some(lease)
        }

        /// Lets a candidate attempt to get or renew the Lease. Returns whether it leads.
        fn attempt(&mut self, candidate: &mut Candidate, seconds: u64) -> bool {
            let now = self.at(seconds);
            if !candidate.is_certain() {
                candidate.observe(self.stored.clone(), now);
            }
            let clock = START + Duration::from_secs(seconds);
            if let Some(claim) = candidate.claim(now, clock) {
                match self.store(claim) {
                    Some(written) => candidate.claimed(written, now),
                    None => candidate.doubt(),
                }
            }
            self.leads(candidate, seconds)
        }

        fn leads(&self, candidate: &Candidate, seconds: u64) -> bool {
            candidate.leads_until().is_some_and(|until| self.at(seconds) < until)
        }

        fn spec(&self) -> LeaseSpec {
            self.stored.clone().unwrap().spec.unwrap()
        }
    }

    fn two() -> (Sim, Candidate, Candidate) {
        let sim = Sim { began: Instant::now(), stored: None, version: 0 };
        (sim, Candidate::new("operator", "a"), Candidate::new("operator", "b"))
    }

    #[test]
    fn a_lease_that_is_not_renewed_is_free_after_its_duration() {
        let (mut sim, mut a, mut b) = two();
        assert!(sim.attempt(&mut a, 0));
        assert!(!sim.attempt(&mut b, 1));
        assert!(sim.attempt(&mut a, 2));
        // `b` sees the renewal for the first time at 3.
        assert!(!sim.attempt(&mut b, 3) && !sim.attempt(&mut b, 17));
        assert!(sim.leads(&a, 11) && !sim.leads(&a, 12), "its holder stops writing before that");
        assert!(sim.attempt(&mut b, 18));
        assert_eq!((sim.spec().holder_identity.as_deref(), sim.spec().lease_transitions), (Some("b"), Some(1)));
        // `a` does not know that yet, and cannot renew it.
        assert!(!sim.attempt(&mut a, 19) && !sim.attempt(&mut a, 20));
        assert_eq!(a.leads_until(), None);
    }

    #[test]
    fn the_clock_of_another_machine_decides_nothing() {
        for hours in [-100, 100] {
            let (mut sim, mut a, mut b) = two();
            assert!(sim.attempt(&mut a, 0));
            let mut seconds = 0;
            while seconds < 100 {
                seconds += 2;
                assert!(sim.attempt(&mut a, seconds));
                let renewed = sim.spec().renew_time.unwrap().0 + k8s_openapi::jiff::SignedDuration::from_hours(hours);
                sim.stored.as_mut().unwrap().spec.as_mut().unwrap().renew_time = Some(MicroTime(renewed));
                assert!(!sim.attempt(&mut b, seconds));
            }
        }
    }

    #[test]
    fn a_released_lease_is_free_at_once() {
        let (mut sim, mut a, mut b) = two();
        assert!(sim.attempt(&mut a, 0));
        assert!(!sim.attempt(&mut b, 1));
        let released = a.release(START).unwrap();
        assert!(sim.store(released).is_some() && a.leads_until().is_none());
        assert!(b.release(START).is_none(), "it holds nothing");
        assert!(sim.attempt(&mut b, 1));
        assert_eq!(sim.spec().lease_transitions, Some(1));
    }

    #[test]
    fn a_restarted_container_goes_on_with_the_lease_of_its_pod() {
        let (mut sim, mut a, mut b) = two();
        assert!(sim.attempt(&mut a, 0) && !sim.attempt(&mut b, 1));
        let mut a = Candidate::new("operator", "a");
        assert!(sim.attempt(&mut a, 2) && !sim.attempt(&mut b, 17));
        assert_eq!(sim.spec().lease_transitions, Some(0));
    }

    #[test]
    fn of_two_that_claim_a_lease_at_once_one_gets_it() {
        let (mut sim, mut a, mut b) = two();
        for candidate in [&mut a, &mut b] {
            candidate.observe(None, sim.at(0));
        }
        let (of_a, of_b) = (a.claim(sim.at(0), START).unwrap(), b.claim(sim.at(0), START).unwrap());
        assert!(sim.store(of_a).is_some() && sim.store(of_b).is_none());
    }

    #[test]
    fn fields_of_other_writers_are_kept() {
        let (mut sim, mut a, _) = two();
        assert!(sim.attempt(&mut a, 0));
        let lease = sim.stored.as_mut().unwrap();
        lease.metadata.labels = Some([("team".to_owned(), "ml".to_owned())].into());
        lease.spec.as_mut().unwrap().strategy = Some("OldestEmulationVersion".to_owned());
        sim.version += 1;
        sim.stored.as_mut().unwrap().metadata.resource_version = Some(sim.version.to_string());
        // The renewal fails, because another user has written.
        assert!(sim.attempt(&mut a, 2) && a.leads_until() == Some(sim.at(10)));
        assert!(sim.attempt(&mut a, 4) && a.leads_until() == Some(sim.at(14)));
        assert!(sim.spec().strategy.is_some() && sim.stored.unwrap().metadata.labels.is_some());
    }
}
