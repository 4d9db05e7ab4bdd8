use gpu_operator_crd::health::{
    Action::{CheckHardware, DrainAndReset, RebootNode, ReplaceGpu, ResetGpu},
    CauseKind::{self, *},
    HealthRules,
    HealthState::{Degraded, Healthy, Recovering, Unhealthy, Unknown},
    Severity, XidClasses,
};

use super::*;

const NO_ACTION: Action = Action::None;

#[test]
fn a_gpu_is_unknown_until_it_is_read() {
    let mut gpu = Watched::new();
    assert_eq!(gpu.gpu.health(), GpuHealth::default());
    assert_eq!(outline(&gpu.observe(&GpuObservation::NotAnswering(None), &[])), (Unknown, NO_ACTION, vec![]));
    assert_eq!(outline(&gpu.read(&well())), (Healthy, NO_ACTION, vec![]));
}

#[test]
fn a_gpu_that_reports_only_its_name_is_healthy() {
    assert_eq!(Watched::new().read(&Readings::default()).state, Healthy);
}

#[test]
fn heat_is_a_cause_once_it_lasts_and_ends_after_clean_intervals() {
    let hot = wrong(|now| now.thermal.gpu = Some(87));
    let mut gpu = Watched::new();
    gpu.read(&well());
    assert_eq!(outline(&gpu.read(&hot)), (Healthy, NO_ACTION, vec![]));
    let degraded = gpu.read(&hot);
    assert_eq!(outline(&degraded), (Degraded, CheckHardware, vec![(Overheating, false)]));
    // Another temperature does not change the report.
    assert_eq!(gpu.read(&wrong(|now| now.thermal.gpu = Some(86 + 1))), degraded);
    for _ in 1..5 {
        assert_eq!(gpu.read(&well()), degraded);
    }
    for _ in 5..10 {
        assert_eq!(outline(&gpu.read(&well())), (Recovering, NO_ACTION, vec![(Overheating, true)]));
    }
    // One hot reading delays the end, and has no other effect.
    assert_eq!(gpu.read(&hot).state, Recovering);
    for _ in 0..9 {
        assert_eq!(gpu.read(&well()).state, Recovering);
    }
    assert_eq!(outline(&gpu.read(&well())), (Healthy, NO_ACTION, vec![]));
}

#[test]
fn a_cause_keeps_its_highest_severity_until_it_is_over() {
    let mut gpu = Watched::new();
    let [warm, hot] = [87, 90].map(|temperature| wrong(|now| now.thermal.gpu = Some(temperature)));
    gpu.read(&warm);
    assert_eq!(gpu.read(&warm).state, Degraded);
    assert_eq!(gpu.read(&hot).state, Unhealthy);
    assert_eq!(gpu.read(&warm).state, Unhealthy);
}

#[test]
fn a_cause_that_can_no_longer_be_read_stays() {
    // Rows cannot be read while MIG is enabled.
    let (failed, silent) = (wrong(|now| now.rows.as_mut().unwrap().failed = true), wrong(|now| now.rows = None));
    let mut gpu = Watched::new();
    let unhealthy = gpu.read(&failed);
    assert_eq!(outline(&unhealthy), (Unhealthy, ReplaceGpu, vec![(RowRemapFailed, false)]));
    for _ in 0..50 {
        assert_eq!(gpu.read(&silent), unhealthy);
    }
    // Neither a reset nor a reboot resolves it; another GPU at the same address does.
    gpu.gpu.restarted(gpu.now);
    assert_eq!(gpu.read(&silent).state, Unhealthy);
    let told = GpuObservation::Read { readings: &well(), uuid: Some("GPU-b"), peer_nvlinks: None };
    assert_eq!(outline(&gpu.observe(&told, &[])), (Healthy, NO_ACTION, vec![]));
}

#[test]
fn a_pending_row_is_dealt_with_when_it_is_no_longer_pending() {
    let pending = wrong(|now| now.rows.as_mut().unwrap().pending = true);
    let mut gpu = Watched::new();
    assert_eq!(outline(&gpu.read(&pending)), (Degraded, DrainAndReset, vec![(RowRemapPending, false)]));
    assert_eq!(outline(&gpu.read(&well())), (Recovering, NO_ACTION, vec![(RowRemapPending, true)]));
    assert_eq!(gpu.read(&pending).state, Degraded);
}

#[test]
fn a_warning_passes_and_a_growing_count_seldom_changes_reports() {
    let mut gpu = Watched::new();
    let mut reports = vec![gpu.read_with_xids(&[(63, 1)])];
    assert_eq!(outline(&reports[0]), (Degraded, ResetGpu, vec![(Xid, false)]));
    for _ in 0..999 {
        reports.push(gpu.read_with_xids(&[(63, 1)]));
    }
    reports.dedup();
    let counts: Vec<_> = reports.iter().map(|health| health.causes[0].count.unwrap()).collect();
    assert_eq!(counts, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]);
    let states: Vec<_> = (0..10).map(|_| gpu.read(&well()).state).collect();
    assert_eq!(states[..4], [Degraded; 4]);
    assert_eq!(states[4..9], [Recovering; 5]);
    assert_eq!(states[9], Healthy);
}

#[test]
fn a_fatal_xid_stays_active_until_the_gpu_is_restarted() {
    for (restart, name) in [
        ((|gpu| gpu.gpu.restarted(gpu.now)) as fn(&mut Watched), "reload or reboot"),
        (|gpu| drop(gpu.read(&wrong(|now| now.energy_millijoules = Some(5)))), "energy counter"),
    ] {
        let mut gpu = Watched::new();
        gpu.read(&well());
        let unhealthy = gpu.read_with_xids(&[(48, 1)]);
        assert_eq!(outline(&unhealthy), (Unhealthy, ResetGpu, vec![(Xid, false)]), "{name}");
        assert_eq!((unhealthy.energy_mark, unhealthy.causes[0].xid), (Some(1_000_000), Some(48)), "{name}");
        for _ in 0..50 {
            assert_eq!(gpu.read(&well()), unhealthy, "{name}");
        }
        restart(&mut gpu);
        let recovering = gpu.gpu.health();
        gpu.observe(&GpuObservation::NotAnswering(None), &[]);
        assert_eq!((recovering.causes[0].recovering, recovering.restarted_at.is_some()), (true, true), "{name}");
        for _ in 0..8 {
            assert_eq!(gpu.read(&well()).state, Recovering, "{name}");
        }
        gpu.read(&well());
        assert_eq!(gpu.read(&well()).state, Healthy, "{name}");
    }
}

#[test]
fn without_persistence_mode_the_energy_counter_proves_nothing() {
    let mut gpu = Watched::new();
    gpu.read(&well());
    gpu.read_with_xids(&[(48, 1)]);
    let reading = wrong(|now| (now.energy_millijoules, now.persistence) = (Some(5), Some(false)));
    assert_eq!(gpu.read(&reading).state, Unhealthy);
}

#[test]
fn the_end_of_a_recovery_action_ends_its_cause() {
    let needed = wrong(|now| now.recovery_action = Some(1));
    let mut gpu = Watched::new();
    gpu.read_with_xids(&[(119, 3)]);
    assert_eq!(outline(&gpu.read(&needed)).2, [(Xid, false), (RecoveryActionNeeded, false)]);
    assert_eq!(outline(&gpu.read(&well())).2, [(Xid, true), (RecoveryActionNeeded, true)]);
}

#[test]
fn a_lost_gpu_is_reported_and_earlier_causes_stay() {
    let mut gpu = Watched::new();
    gpu.read(&wrong(|now| now.rows.as_mut().unwrap().failed = true));
    let lost = gpu.observe(&GpuObservation::NotOpened(GpuLost, "fell off the bus"), &[event(79, 1)]);
    assert_eq!(outline(&lost), (Unhealthy, ReplaceGpu, vec![(RowRemapFailed, false), (Xid, false), (GpuLost, false)]));
    for _ in 0..50 {
        assert_eq!(gpu.observe(&GpuObservation::NotOpened(GpuLost, "fell off the bus"), &[]), lost);
    }
    // The GPU can be opened again, which proves a restart.
    let back = gpu.read(&well());
    assert!(back.causes.iter().all(|cause| cause.recovering), "{back:?}");
    assert_eq!(back.state, Recovering);
}

#[test]
fn each_failure_to_open_has_its_kind_and_action() {
    for (kind, state, action, looks) in [
        (GpuLost, Unhealthy, RebootNode, 1),
        (ResetRequired, Unhealthy, ResetGpu, 1),
        (InsufficientPower, Unhealthy, CheckHardware, 1),
        (CannotOpen, Unhealthy, RebootNode, 2),
        (NotListed, Unhealthy, RebootNode, 2),
        (NoPermission, Unknown, NO_ACTION, 2),
    ] {
        let mut gpu = Watched::new();
        gpu.read(&well());
        for _ in 1..looks {
            assert_eq!(gpu.observe(&GpuObservation::NotOpened(kind, "why"), &[]).state, Healthy, "{kind:?}");
        }
        let health = gpu.observe(&GpuObservation::NotOpened(kind, "why"), &[]);
        assert_eq!(outline(&health), (state, action, vec![(kind, false)]));
    }
}

#[test]
fn a_silent_gpu_is_unknown_but_an_unhealthy_one_stays_unhealthy() {
    let mut gpu = Watched::new();
    gpu.read(&well());
    assert_eq!(gpu.observe(&GpuObservation::NotAnswering(Some("hung")), &[]).state, Healthy);
    assert_eq!(
        outline(&gpu.observe(&GpuObservation::NotAnswering(Some("hung")), &[])),
        (Unknown, RebootNode, vec![(NotAnswering, false)])
    );
    assert_eq!(outline(&gpu.read(&well())), (Recovering, NO_ACTION, vec![(NotAnswering, true)]));

    let mut released = Watched::new();
    released.read(&well());
    released.observe(&GpuObservation::NotAnswering(None), &[]);
    assert_eq!(outline(&released.observe(&GpuObservation::NotAnswering(None), &[])), (Unknown, NO_ACTION, vec![]));
    assert_eq!(released.read(&well()).state, Healthy);

    let mut unhealthy = Watched::new();
    let before = unhealthy.read_with_xids(&[(48, 1)]);
    for _ in 0..5 {
        assert_eq!(unhealthy.observe(&GpuObservation::NotAnswering(None), &[]), before);
    }
}

#[test]
fn a_restart_of_the_probe_changes_nothing() {
    let mut gpu = Watched::new();
    gpu.read(&well());
    gpu.read_with_xids(&[(48, 3), (63, 1)]);
    let before = gpu.read(&wrong(|now| now.rows.as_mut().unwrap().pending = true));
    assert_eq!(before.causes.len(), 3);
    gpu.restored();
    assert_eq!(gpu.gpu.health(), before);
    gpu.observe(&GpuObservation::NotAnswering(None), &[]);
    assert_eq!(gpu.gpu.health(), before);
    // Restarts during recovery only delay the end.
    gpu.gpu.restarted(gpu.now);
    gpu.read(&well());
    gpu.restored();
    assert_eq!(gpu.gpu.health().state, Recovering);
    for _ in 0..10 {
        gpu.read(&well());
    }
    assert_eq!(gpu.gpu.health().state, Healthy);
}

/// The counter was read before it rose, the XID arrived after: the mark is too low to prove a reset.
#[test]
fn a_reset_is_detected_by_an_energy_mark_older_than_the_xid() {
    let mut gpu = Watched::new();
    gpu.read(&wrong(|now| now.energy_millijoules = Some(5)));
    let marked = gpu.observe(&GpuObservation::NotQueried, &[event(48, 1)]);
    assert_eq!((marked.state, marked.energy_mark), (Unhealthy, Some(5)));
    assert_eq!(gpu.read(&well()), marked, "a rising counter changes nothing that is reported");
    assert_eq!(gpu.read(&wrong(|now| now.energy_millijoules = Some(5))).state, Recovering);
}

#[test]
fn a_reset_without_the_probe_is_detected_by_the_energy_counter() {
    let mut gpu = Watched::new();
    gpu.read(&well());
    gpu.read_with_xids(&[(48, 1)]);
    gpu.restored();
    assert_eq!(gpu.read(&wrong(|now| now.energy_millijoules = Some(5))).state, Recovering);
}

#[test]
fn only_unknown_and_unresolved_entries_of_the_kernel_log_count() {
    let logged = |xid, at, old| XidCount {
        xid,
        count: 3,
        source: if old { XidSource::EarlierKernelLog(at) } else { XidSource::KernelLog(at) },
        message: String::new(),
    };
    let mut gpu = Watched::new();
    let (long_ago, lately) = (gpu.now - Duration::from_hours(1), gpu.now);
    let told = GpuObservation::NotAnswering(None);
    // An old warning has passed; an old fatal error has not.
    assert_eq!(gpu.observe(&told, &[logged(63, long_ago, true)]).causes, []);
    let causes = gpu.observe(&told, &[logged(48, long_ago, true), logged(63, lately, true)]).causes;
    let outline: Vec<_> = causes.iter().map(|cause| (cause.xid, cause.count, cause.since.0)).collect();
    assert_eq!(outline, [(Some(48), Some(2), long_ago), (Some(63), Some(2), lately)]);
    // Known entries are not counted again, new ones are.
    gpu.restored();
    gpu.observe(&told, &[logged(48, long_ago, true)]);
    assert_eq!(gpu.gpu.health().causes, causes);
    assert_eq!(gpu.observe(&told, &[logged(48, lately, false)]).causes[0].count, Some(5));
    // Entries from before a restart do not count.
    gpu.gpu.restarted(gpu.now);
    gpu.restored();
    for old in [true, false] {
        let causes = gpu.observe(&told, &[logged(48, lately, old)]).causes;
        assert!(causes.iter().any(|cause| cause.xid == Some(48) && cause.recovering), "{causes:?}");
    }
}

#[test]
fn xids_between_readings_count_at_once_and_as_no_reading() {
    let rules = HealthRules { confirm_intervals: Some(1), clean_intervals: Some(1), ..HealthRules::default() };
    let mut gpu = Watched::with(Rules::from(rules));
    gpu.read(&well());
    assert_eq!(gpu.observe(&GpuObservation::NotQueried, &[event(63, 1)]).state, Degraded);
    // The next reading does not prove that the problem is gone; the one after it does.
    assert_eq!(gpu.read(&well()).state, Degraded);
    assert_eq!(gpu.read(&well()).state, Recovering);
    for _ in 0..100 {
        assert_eq!(gpu.observe(&GpuObservation::NotQueried, &[event(31, 1)]).state, Recovering);
    }
    assert_eq!(gpu.read(&well()).state, Healthy);
}

#[test]
fn nvlinks_are_compared_with_earlier_readings_and_with_peers() {
    let links = |active: usize| wrong(|now| now.nvlinks = (0..18).map(|link| link < active).collect());
    for (before, now, neighbours, down) in [
        (18, 17, None, true),
        (18, 0, None, true),
        (17, 17, Some(18), true),
        (17, 17, None, false),
        // Without a bridge.
        (0, 0, Some(12), false),
    ] {
        let mut gpu = Watched::new();
        gpu.read(&links(before));
        let readings = links(now);
        for _ in 0..2 {
            gpu.observe(&GpuObservation::Read { readings: &readings, uuid: None, peer_nvlinks: neighbours }, &[]);
        }
        assert_eq!(gpu.gpu.health().state == Unhealthy, down, "{before} {now} {neighbours:?}");
    }
}

#[test]
fn changed_rules_apply_to_known_causes() {
    let mut gpu = Watched::new();
    gpu.read_with_xids(&[(48, 1)]);
    let classes = |ignore: &[u16], warn: &[u16]| {
        let xids = XidClasses { ignore: ignore.to_vec(), warn: warn.to_vec(), fatal: vec![] };
        Rules::from(HealthRules { xids, ..HealthRules::default() })
    };
    gpu.rules = classes(&[], &[48]);
    assert_eq!(gpu.read(&well()).state, Degraded);
    gpu.rules = classes(&[48], &[]);
    assert_eq!(outline(&gpu.read(&well())), (Healthy, NO_ACTION, vec![]));
}

#[test]
fn the_report_is_bounded_and_contains_the_most_severe_causes() {
    let mut gpu = Watched::new();
    let said = "ü".repeat(5000);
    let warnings: Vec<XidCount> =
        (200..400).map(|xid| XidCount { xid, count: 1, source: XidSource::Nvml, message: said.clone() }).collect();
    gpu.observe(&GpuObservation::NotAnswering(None), &warnings);
    let health = gpu.observe(&GpuObservation::NotAnswering(None), &[event(79, 1)]);
    assert_eq!(health.causes.len(), 8);
    assert_eq!((health.causes[0].xid, health.causes[0].severity), (Some(79), Severity::Fatal));
    assert!(health.causes.iter().all(|cause| cause.evidence.chars().count() <= 256));
}

/// Every kind has a test in this module; a new kind must be added to the tests.
#[test]
fn every_kind_has_defaults() {
    use strum::IntoEnumIterator;
    for kind in CauseKind::iter() {
        let defaults = crate::health::rules::defaults(kind);
        assert!(defaults.severity == Severity::Warning || defaults.action != NO_ACTION, "{kind:?}");
    }
}
