use std::time::Duration;

use gpu_operator_crd::health::{
    Action::{self, CheckHardware, DrainAndReset, RebootNode, ReplaceGpu, ResetGpu},
    CauseKind::{self, *},
    HealthRules,
    Severity::{self, Fatal, Warning},
    Thresholds,
};

use super::*;
use crate::health::findings::{Baseline, Finding, findings};

/// One change of a reading and the expected finding.
type Case = (fn(&mut Readings), CauseKind, Severity, Action, &'static str);

const CASES: &[Case] = &[
    (|now| now.thermal.gpu = Some(87), Overheating, Warning, CheckHardware, "0 °C until the GPU slows down"),
    (|now| now.thermal.gpu = Some(90), Overheating, Fatal, CheckHardware, "2 °C until the GPU shuts down"),
    (|now| now.thermal.margin = Some(0), Overheating, Warning, CheckHardware, "0 °C until the GPU slows down"),
    (
        |now| (now.thermal.margin, now.thermal.shutdown_margin) = (Some(-6), Some(-8)),
        Overheating,
        Fatal,
        CheckHardware,
        "2 °C until the GPU shuts down",
    ),
    (|now| now.clock_reasons = Some(0x20), ThermalSlowdown, Warning, CheckHardware, "0x20"),
    (|now| now.clock_reasons = Some(0x48), ThermalSlowdown, Warning, CheckHardware, "0x48"),
    (|now| now.clock_reasons = Some(0x88), PowerBrake, Warning, CheckHardware, "0x88"),
    (|now| now.clock_reasons = Some(0x8), HardwareSlowdown, Warning, CheckHardware, "0x8"),
    (|now| now.inforom_corrupt = Some(true), InforomCorrupt, Fatal, ReplaceGpu, "infoROM"),
    (|now| now.ecc.volatile_uncorrected = Some(1), UncorrectableEcc, Fatal, ResetGpu, "uncorrectable"),
    (|now| now.ecc.sram_threshold_exceeded = Some(true), SramThresholdExceeded, Fatal, ReplaceGpu, "SRAM"),
    (|now| now.pages = pages(63, Some(false)), TooManyRetiredPages, Fatal, ReplaceGpu, "63"),
    (|now| now.pages = pages(1, Some(true)), PageRetirementPending, Warning, RebootNode, "next reboot"),
    (|now| now.rows = rows(1, true, false), RowRemapPending, Warning, DrainAndReset, "next reset"),
    (|now| now.rows = rows(1, false, true), RowRemapFailed, Fatal, ReplaceGpu, "could not"),
    (|now| now.rows = rows(512, false, false), TooManyRemappedRows, Warning, ReplaceGpu, "512"),
    (|now| now.nvlinks[3] = false, NvLinkDown, Fatal, ResetGpu, "17 of 18 NVLinks are active; not active: 3"),
    (|now| now.fabric = fabric(2, 0, None), FabricNotReady, Fatal, RebootNode, "nvidia-fabricmanager"),
    (|now| now.fabric = fabric(3, 0, Some(2)), FabricUnhealthy, Fatal, ResetGpu, "unhealthy"),
    (|now| now.fabric = fabric(3, 0, Some(3)), FabricUnhealthy, Warning, ResetGpu, "limited"),
    (|now| now.fabric = fabric(3, 999, None), FabricUnhealthy, Fatal, ResetGpu, "999"),
    (|now| now.pcie.width = Some(8), PcieLinkDegraded, Warning, CheckHardware, "8 of 16 lanes"),
    (|now| now.pcie.generation = Some(1), PcieLinkDegraded, Warning, CheckHardware, "generation 1 of 5"),
    (|now| now.pcie.replays = Some(1016), PcieReplays, Warning, CheckHardware, "32 packets a minute"),
    (|now| now.recovery_action = Some(1), RecoveryActionNeeded, Fatal, ResetGpu, "is 1"),
    (|now| now.recovery_action = Some(2), RecoveryActionNeeded, Fatal, RebootNode, "is 2"),
    (|now| now.recovery_action = Some(3), RecoveryActionNeeded, Warning, DrainAndReset, "is 3"),
    (|now| now.recovery_action = Some(4), RecoveryActionNeeded, Warning, DrainAndReset, "is 4"),
    (|now| now.recovery_action = Some(9), RecoveryActionNeeded, Warning, CheckHardware, "is 9"),
];

#[allow(clippy::unnecessary_wraps, reason = "the type of the field in a reading")]
fn pages(uncorrectable: u64, pending: Option<bool>) -> Option<RetiredPages> {
    Some(RetiredPages { correctable: 0, uncorrectable, pending })
}

#[allow(clippy::unnecessary_wraps, reason = "the type of the field in a reading")]
fn rows(uncorrectable: u64, pending: bool, failed: bool) -> Option<RemappedRows> {
    Some(RemappedRows { correctable: 0, uncorrectable, pending, failed })
}

#[allow(clippy::unnecessary_wraps, reason = "the type of the field in a reading")]
fn fabric(state: u32, status: u32, health: Option<u32>) -> Option<Fabric> {
    Some(Fabric { state, status, health })
}

/// One minute ago there were 984 replays fewer than in the case above, and all links were active.
const BEFORE: Baseline = Baseline { replays: Some((984, Duration::from_mins(1))), nvlinks: Some(18) };

fn found(rules: &Rules, now: &Readings) -> Vec<Finding> {
    findings(rules, now, &BEFORE).found
}

#[test]
fn each_abnormal_reading_is_one_finding() {
    let rules = Rules::default();
    for (change, kind, severity, action, evidence) in CASES {
        // The replay counter must not have decreased.
        let now = wrong(|now| {
            now.pcie.replays = Some(984);
            change(now);
        });
        let found = found(&rules, &now);
        let outline: Vec<_> = found.iter().map(|found| (found.kind, found.severity, found.action)).collect();
        assert_eq!(outline, [(*kind, *severity, *action)], "{found:?}");
        assert!(found[0].evidence.contains(evidence), "{found:?}");
    }
}

#[test]
fn a_healthy_gpu_is_clear_of_every_kind_that_readings_can_show() {
    let now = wrong(|now| now.pcie.replays = Some(984));
    let seen = findings(&Rules::default(), &now, &BEFORE);
    assert_eq!(seen.found, []);
    let shown: std::collections::BTreeSet<CauseKind> = CASES.iter().map(|case| case.1).collect();
    assert_eq!(seen.clear.iter().copied().collect::<std::collections::BTreeSet<_>>(), shown);
}

#[test]
fn a_value_that_a_card_lacks_is_neither_found_nor_clear() {
    let seen = findings(&Rules::default(), &Readings::default(), &Baseline::default());
    assert_eq!(seen, crate::health::findings::Findings::default());
}

#[test]
fn the_link_generation_of_an_idle_gpu_is_ignored() {
    for idle in [
        wrong(|now| (now.pcie.generation, now.performance_state) = (Some(1), Some(8))),
        wrong(|now| (now.pcie.generation, now.clock_reasons) = (Some(1), Some(1))),
        wrong(|now| (now.pcie.generation, now.gpu_utilization_percent) = (Some(1), Some(0))),
    ] {
        assert_eq!(findings(&Rules::default(), &idle, &Baseline::default()).found, []);
    }
}

#[test]
fn a_replay_counter_that_was_reset_gives_no_rate() {
    let seen = findings(&Rules::default(), &well(), &BEFORE);
    assert!(!seen.clear.contains(&PcieReplays) && seen.found.is_empty(), "{seen:?}");
}

#[test]
fn thresholds_change_what_is_found() {
    let rules = Rules::from(HealthRules {
        thresholds: Thresholds {
            below_slowdown_celsius: Some(10),
            below_shutdown_celsius: Some(0),
            uncorrectable_ecc_errors: Some(5),
            remapped_rows: Some(2),
            retired_pages: Some(3),
            pcie_replays_per_minute: Some(1),
        },
        ..HealthRules::default()
    });
    for (change, expected) in [
        ((|now| now.thermal.gpu = Some(77)) as fn(&mut Readings), Some((Overheating, Warning))),
        (|now| now.thermal.gpu = Some(91), Some((Overheating, Warning))),
        (|now| now.thermal.gpu = Some(92), Some((Overheating, Fatal))),
        (|now| now.ecc.volatile_uncorrected = Some(4), None),
        (|now| now.ecc.volatile_uncorrected = Some(5), Some((UncorrectableEcc, Fatal))),
        (|now| now.rows = rows(2, false, false), Some((TooManyRemappedRows, Warning))),
        (|now| now.pages = pages(3, None), Some((TooManyRetiredPages, Fatal))),
        (|now| now.pcie.replays = Some(986), Some((PcieReplays, Warning))),
    ] {
        let found = found(&rules, &wrong(change));
        let outline = found.first().map(|found| (found.kind, found.severity));
        assert_eq!(outline, expected, "{found:?}");
    }
}

#[test]
fn rules_change_the_severity_of_a_kind_or_ignore_it() {
    let classes = gpu_operator_crd::health::CauseClasses {
        ignore: vec![PowerBrake.into()],
        warn: vec![RowRemapFailed.into(), Overheating.into()],
        fatal: vec![RowRemapPending.into()],
    };
    let rules = Rules::from(HealthRules { causes: classes, ..HealthRules::default() });
    let severity = |change| found(&rules, &wrong(change)).first().map(|found| found.severity);
    assert_eq!(severity((|now| now.clock_reasons = Some(0x80)) as fn(&mut Readings)), None);
    assert_eq!(severity(|now| now.rows = rows(1, false, true)), Some(Warning));
    assert_eq!(severity(|now| now.rows = rows(1, true, false)), Some(Fatal));
    assert_eq!(severity(|now| now.thermal.gpu = Some(91)), Some(Warning));
}
