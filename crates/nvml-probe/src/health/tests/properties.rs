use gpu_operator_crd::health::{CauseKind, HealthRules, Severity};
use proptest::{collection::vec, prelude::*};

use super::*;

/// What can happen to a GPU at one look.
#[derive(Clone, Debug)]
enum Look {
    Well,
    Hot,
    RowFailed,
    RowPending,
    RowsUnread,
    ResetAsked,
    Lost,
    Hung,
    Released,
    Xid(u16),
    XidBetweenLooks(u16),
    Restarted,
    ProbeRestarted,
}

fn looks() -> impl Strategy<Value = Look> {
    prop_oneof![
        8 => Just(Look::Well),
        2 => Just(Look::Hot),
        1 => Just(Look::RowFailed),
        1 => Just(Look::RowPending),
        1 => Just(Look::RowsUnread),
        1 => Just(Look::ResetAsked),
        1 => Just(Look::Lost),
        1 => Just(Look::Hung),
        1 => Just(Look::Released),
        2 => some_xid().prop_map(Look::Xid),
        2 => some_xid().prop_map(Look::XidBetweenLooks),
        1 => Just(Look::Restarted),
        1 => Just(Look::ProbeRestarted),
    ]
}

/// Returns whether the GPU was opened.
fn is_read(look: &Look) -> bool {
    use Look::{Hung, Lost, ProbeRestarted, Released, XidBetweenLooks};
    !matches!(look, Lost | Hung | Released | ProbeRestarted | XidBetweenLooks(_))
}

fn some_xid() -> impl Strategy<Value = u16> {
    prop_oneof![Just(48), Just(79), Just(119), Just(63), Just(94), Just(31)]
}

fn happens(gpu: &mut Watched, look: &Look) -> GpuHealth {
    match look {
        Look::Well => gpu.read(&well()),
        Look::Hot => gpu.read(&wrong(|now| now.thermal.gpu = Some(87))),
        Look::RowFailed => gpu.read(&wrong(|now| now.rows.as_mut().unwrap().failed = true)),
        Look::RowPending => gpu.read(&wrong(|now| now.rows.as_mut().unwrap().pending = true)),
        Look::RowsUnread => gpu.read(&wrong(|now| now.rows = None)),
        Look::ResetAsked => gpu.read(&wrong(|now| now.recovery_action = Some(1))),
        Look::Lost => gpu.observe(&GpuObservation::NotOpened(CauseKind::GpuLost, "lost"), &[]),
        Look::Hung => gpu.observe(&GpuObservation::NotAnswering(Some("hung")), &[]),
        Look::Released => gpu.observe(&GpuObservation::NotAnswering(None), &[]),
        Look::Xid(xid) => gpu.read_with_xids(&[(*xid, 1)]),
        Look::XidBetweenLooks(xid) => gpu.observe(&GpuObservation::NotQueried, &[event(*xid, 1)]),
        Look::Restarted => {
            gpu.gpu.restarted(gpu.now);
            gpu.read(&well())
        }
        Look::ProbeRestarted => {
            gpu.restored();
            gpu.gpu.health()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_state_follows_from_the_causes(looks in vec(looks(), 1..200)) {
        let mut gpu = Watched::new();
        for look in looks {
            let health = happens(&mut gpu, &look);
            let any = |severity, recovering| {
                health.causes.iter().any(|cause| cause.severity == severity && cause.recovering == recovering)
            };
            match health.state {
                HealthState::Healthy => prop_assert!(health.causes.is_empty()),
                HealthState::Unhealthy => prop_assert!(any(Severity::Fatal, false)),
                HealthState::Degraded => prop_assert!(any(Severity::Warning, false)),
                HealthState::Recovering => prop_assert!(health.causes.iter().any(|cause| cause.recovering)),
                HealthState::Unknown => {}
            }
            prop_assert!(health.state == HealthState::Unhealthy || !any(Severity::Fatal, false), "{:?}", health);
        }
    }

    #[test]
    fn a_fatal_error_ends_only_by_a_restart(looks in vec(looks(), 1..200)) {
        let mut gpu = Watched::new();
        let (mut stands, mut lost) = (false, false);
        for look in looks {
            let health = happens(&mut gpu, &look);
            match look {
                Look::Xid(48 | 79 | 119) | Look::XidBetweenLooks(48 | 79 | 119) => stands = true,
                Look::Restarted => stands = false,
                _ => {}
            }
            // The end of these proves a restart.
            let opens = is_read(&look);
            let asked = matches!(look, Look::Lost | Look::ResetAsked);
            if lost && opens && !asked && !matches!(look, Look::Xid(48 | 79 | 119)) {
                stands = false;
            }
            lost = asked || (lost && !opens);
            prop_assert!(!stands || health.state == HealthState::Unhealthy, "{:?}", health);
        }
    }

    #[test]
    fn a_gpu_is_healthy_again_only_after_clean_readings_in_a_row(
        looks in vec(looks(), 1..200),
        confirm in 1_u32..4,
        clean in 1_u32..6,
    ) {
        let rules = HealthRules { confirm_intervals: Some(confirm), clean_intervals: Some(clean), ..HealthRules::default() };
        let mut gpu = Watched::with(Rules::from(rules));
        let calm = gpu.rules.calm_intervals();
        let (mut in_a_row, mut before) = (0, HealthState::Healthy);
        for look in looks {
            let GpuHealth { state, causes, .. } = happens(&mut gpu, &look);
            if causes.iter().any(|cause| !cause.recovering) {
                in_a_row = 0;
            } else if is_read(&look) {
                in_a_row += 1;
            }
            let was_sick = !matches!(before, HealthState::Healthy | HealthState::Unknown);
            if was_sick && state == HealthState::Healthy {
                // The readings that showed it dealt with were clean as well.
                prop_assert!(in_a_row + calm > clean, "after {} clean readings", in_a_row);
            }
            before = state;
        }
    }

    #[test]
    fn an_intermittent_condition_changes_states_only_when_confirmed(
        hot in vec(any::<bool>(), 1..300),
        confirm in 2_u32..5,
    ) {
        let rules = HealthRules { confirm_intervals: Some(confirm), ..HealthRules::default() };
        let mut gpu = Watched::with(Rules::from(rules));
        happens(&mut gpu, &Look::Well);
        let (mut state, mut looks) = (HealthState::Healthy, confirm);
        for hot in hot {
            looks += 1;
            let now = happens(&mut gpu, if hot { &Look::Hot } else { &Look::Well }).state;
            if now != state {
                prop_assert!(looks >= confirm, "{:?} after {} looks", now, looks);
                (state, looks) = (now, 0);
            }
        }
    }

    #[test]
    fn the_report_is_always_bounded(looks in vec(looks(), 1..100), xids in vec(any::<u16>(), 0..300)) {
        let mut gpu = Watched::new();
        for look in &looks {
            happens(&mut gpu, look);
        }
        for xid in xids {
            let health = gpu.read_with_xids(&[(xid, u64::MAX)]);
            prop_assert!(health.causes.len() <= 8);
        }
    }
}
