//! Faults in the stand-in NVML → the health in the report, through the whole probe but for a real API server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

#[path = "support/api.rs"]
mod api;
#[path = "support/agent.rs"]
mod running;
mod support;

use std::time::Duration;

use gpu_operator_crd::{
    health::{
        Action::{self, CheckHardware, DrainAndReset, RebootNode, ReplaceGpu, ResetGpu},
        Cause,
        CauseKind::{self, *},
        HealthState::{self, Degraded, Healthy, Unhealthy, Unknown},
    },
    report::NvmlState,
};
use nvml_probe::{child::Limits, driver::CONTAINER_ROOT};
use running::{GPUS, VERSION, becomes, begin, first, forgetting, patient, serve, served};
use serde_json::{Value, json};

/// What goes wrong with the first GPU, and what is said of it.
type Case = (&'static str, fn() -> Value, HealthState, Action, CauseKind);

const CASES: &[Case] = &[
    ("fell off the bus", || json!({"error": 15}), Unhealthy, RebootNode, GpuLost),
    ("asks for a reset", || json!({"error": 16}), Unhealthy, ResetGpu, ResetRequired),
    ("lacks power", || json!({"error": 8}), Unhealthy, CheckHardware, InsufficientPower),
    ("gets no interrupts", || json!({"error": 11}), Unhealthy, RebootNode, CannotOpen),
    ("may not be opened", || json!({"error": 4}), Unknown, Action::None, NoPermission),
    ("is not listed", || json!({"error": 28}), Unhealthy, RebootNode, NotListed),
    (
        "has an uncorrectable error",
        || readings("ecc", json!({"volatileUncorrected": 1})),
        Unhealthy,
        ResetGpu,
        UncorrectableEcc,
    ),
    (
        "has bad SRAM",
        || readings("ecc", json!({"sramThresholdExceeded": true})),
        Unhealthy,
        ReplaceGpu,
        SramThresholdExceeded,
    ),
    ("has a row to remap", || readings("rows", json!({"pending": true})), Degraded, DrainAndReset, RowRemapPending),
    ("could not remap a row", || readings("rows", json!({"failed": true})), Unhealthy, ReplaceGpu, RowRemapFailed),
    (
        "has remapped many rows",
        || readings("rows", json!({"uncorrectable": 512})),
        Degraded,
        ReplaceGpu,
        TooManyRemappedRows,
    ),
    (
        "has a page to retire",
        || readings("pages", json!({"pending": true})),
        Degraded,
        RebootNode,
        PageRetirementPending,
    ),
    (
        "has retired many pages",
        || readings("pages", json!({"correctable": 63})),
        Unhealthy,
        ReplaceGpu,
        TooManyRetiredPages,
    ),
    ("is hot", || readings("thermal", json!({"gpu": 87, "slowdownAt": 87})), Degraded, CheckHardware, Overheating),
    (
        "is about to shut down",
        || readings("thermal", json!({"gpu": 91, "shutdownAt": 92})),
        Unhealthy,
        CheckHardware,
        Overheating,
    ),
    ("slows down for heat", || readings("clockReasons", json!(0x40)), Degraded, CheckHardware, ThermalSlowdown),
    ("slows down", || readings("clockReasons", json!(0x8)), Degraded, CheckHardware, HardwareSlowdown),
    ("is braked", || readings("clockReasons", json!(0x80)), Degraded, CheckHardware, PowerBrake),
    ("has not joined the fabric", || readings("fabric", json!({"state": 2})), Unhealthy, RebootNode, FabricNotReady),
    (
        "has an unhealthy fabric",
        || readings("fabric", json!({"state": 3, "health": 2})),
        Unhealthy,
        ResetGpu,
        FabricUnhealthy,
    ),
    (
        "has lost lanes",
        || readings("pcie", json!({"width": 8, "maxWidth": 16})),
        Degraded,
        CheckHardware,
        PcieLinkDegraded,
    ),
    ("needs recovery", || readings("recoveryAction", json!(1)), Unhealthy, ResetGpu, RecoveryActionNeeded),
];

#[allow(clippy::needless_pass_by_value, reason = "json! makes values")]
fn readings(name: &str, value: Value) -> Value {
    json!({"readings": {name: value}})
}

#[tokio::test]
async fn each_fault_shows_on_its_gpu_and_is_over_when_it_is_gone() {
    let host = served();
    let agent = begin(&host, patient(), None);
    becomes(&agent, Healthy, None).await;
    for (name, fault, state, action, kind) in CASES {
        serve(&host, &fault());
        let report = becomes(&agent, *state, Some(*kind)).await;
        assert_eq!(first(&report).action, *action, "{name}");
        assert_eq!(report.gpus[1].health.state, Healthy, "{name}");
        assert_eq!(report.gpus[0].pci_address, GPUS[0].0, "{name}");
        serve(&host, &json!({}));
        // What a card does not tell any more is not over: it has to tell that it is well.
        serve(&host, &well());
        becomes(&agent, Healthy, None).await;
    }
    agent.end().await;
}

fn well() -> Value {
    json!({"readings": {
        "thermal": {"gpu": 40, "slowdownAt": 87, "shutdownAt": 92},
        "clockReasons": 0,
        "ecc": {"volatileUncorrected": 0, "sramThresholdExceeded": false},
        "rows": {},
        "pages": {"pending": false},
        "fabric": {"state": 3, "health": 1},
        "pcie": {"width": 16, "maxWidth": 16},
        "recoveryAction": 0,
    }})
}

#[tokio::test]
async fn an_xid_that_is_fatal_stands_over_a_crash_and_a_release_until_the_driver_is_loaded_anew() {
    let host = served();
    let agent = begin(&host, Limits { first_pause: Duration::from_millis(1), ..patient() }, None);
    becomes(&agent, Healthy, None).await;
    serve(&host, &json!({"xids": [{"xid": 48}]}));
    let sick = first(&becomes(&agent, Unhealthy, Some(Xid)).await).clone();
    assert_eq!((sick.action, sick.causes[0].xid, sick.causes[0].count), (ResetGpu, Some(48), Some(1)));

    host.serve_with(CONTAINER_ROOT, &GPUS, |machine| machine["crash"] = true.into());
    let crashed = agent.awaits(|report| report.nvml.state == NvmlState::Failing).await;
    assert_eq!(first(&crashed).causes[0], sick.causes[0]);
    serve(&host, &json!({}));
    let back = agent.awaits(|report| report.nvml.state == NvmlState::Answering).await;
    assert_eq!(first(&back).causes[0], sick.causes[0]);

    agent.releases(true);
    let released = agent.awaits(|report| report.nvml.state == NvmlState::Released).await;
    assert_eq!(first(&released).causes[0], sick.causes[0]);
    assert!(!host.is_held(CONTAINER_ROOT));
    host.reload(VERSION);
    agent.releases(false);
    becomes(&agent, Healthy, None).await;
    agent.end().await;
}

#[tokio::test]
async fn a_probe_that_starts_goes_on_from_what_was_reported() {
    let host = served();
    let agent = begin(&host, patient(), None);
    becomes(&agent, Healthy, None).await;
    serve(&host, &json!({"xids": [{"xid": 79}]}));
    let sick = becomes(&agent, Unhealthy, Some(Xid)).await;
    agent.end().await;
    serve(&host, &json!({}));

    let agent = begin(&host, patient(), Some(sick.clone()));
    // A change of the other GPU is written; the sick one is as it was.
    host.serve_with(CONTAINER_ROOT, &GPUS, |machine| {
        machine["devices"][1]["readings"] = json!({"rows": {"failed": true}});
    });
    let report = agent.awaits(|report| report.gpus[1].health.state == Unhealthy).await;
    assert_eq!(first(&report), first(&sick));
    agent.end().await;
}

#[tokio::test]
async fn a_flood_of_xids_is_a_few_writes_and_errors_of_programs_are_none() {
    let host = served();
    let agent = forgetting(1000, &host, patient(), None);
    becomes(&agent, Healthy, None).await;
    agent.server.asked();
    let flood = |xid: u16, rate: u32| json!({"xid": xid, "perSecond": rate});
    serve(&host, &json!({"xids": [flood(63, 100), flood(31, 1000), flood(13, 1000)]}));
    let report = agent.awaits(|report| first(report).causes.iter().any(|cause| cause.count >= Some(100))).await;
    assert_eq!(first(&report).causes.len(), 1);
    // 1, 2, 5, 10, 20, 50, 100.
    let writes = agent.server.asked().len();
    assert!(writes <= 7, "{writes}");
    agent.end().await;
}

#[tokio::test]
async fn nvml_that_hangs_makes_its_gpus_unknown_and_says_why() {
    let host = served();
    let agent = begin(&host, Limits { answer: Duration::from_millis(300), ..patient() }, None);
    becomes(&agent, Healthy, None).await;
    host.serve(CONTAINER_ROOT, &GPUS, true);
    let report = becomes(&agent, Unknown, Some(NotAnswering)).await;
    let Cause { evidence, .. } = &first(&report).causes[0];
    assert!(evidence.contains("no answer within"), "{evidence}");
    agent.end().await;
}
