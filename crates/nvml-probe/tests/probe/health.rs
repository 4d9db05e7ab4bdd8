//! Faults of the stand-in NVML → the health in the report, through the whole probe except a real API server.

use std::time::Duration;

use gpu_host::{nvml::supervisor::Limits, observe::driver::CONTAINER_ROOT};
use gpu_operator_crd::{
    health::{
        Action::ResetGpu,
        Cause,
        CauseKind::{NotAnswering, Xid},
        HealthState::{Healthy, Unhealthy, Unknown},
    },
    report::NvmlState,
};
use serde_json::{Value, json};
use test_support::faults::{Fault, Faults};

use crate::running::{GPUS, VERSION, becomes, begin, first, forgetting, patient, serve, served};

#[tokio::test]
async fn each_fault_is_reported_on_its_gpu_until_it_is_gone() {
    let host = served();
    let agent = begin(&host, patient(), None);
    becomes(&agent, Healthy, None).await;
    let Faults { well, faults } = Faults::read();
    let well = Value::from(well);
    assert!(faults.len() > 20);
    serve(&host, &well);
    for Fault { what, device, state, action, kind } in faults {
        serve(&host, &device.into());
        let report = becomes(&agent, state, Some(kind)).await;
        assert_eq!(first(&report).action, action, "{what}");
        assert_eq!(report.gpus[1].health.state, Healthy, "{what}");
        assert_eq!(report.gpus[0].pci_address, GPUS[0].0, "{what}");
        serve(&host, &json!({}));
        // A value that is no longer provided does not end the cause: the GPU has to report a healthy value.
        serve(&host, &well);
        becomes(&agent, Healthy, None).await;
    }
    agent.end().await;
}

#[tokio::test]
async fn a_fatal_xid_stays_active_until_the_driver_is_reloaded() {
    let host = served();
    let agent = begin(&host, Limits { first_pause: Duration::from_millis(1), ..patient() }, None);
    becomes(&agent, Healthy, None).await;
    serve(&host, &json!({"xids": [{"xid": 48}]}));
    let unhealthy = first(&becomes(&agent, Unhealthy, Some(Xid)).await).clone();
    assert_eq!(
        (unhealthy.action, unhealthy.causes[0].xid, unhealthy.causes[0].count),
        (ResetGpu.into(), Some(48), Some(1))
    );

    host.serve_with(CONTAINER_ROOT, &GPUS, |machine| machine["crash"] = true.into());
    let crashed = agent.awaits(|report| report.nvml.state == NvmlState::Failing).await;
    assert_eq!(first(&crashed).causes[0], unhealthy.causes[0]);
    serve(&host, &json!({}));
    let back = agent.awaits(|report| report.nvml.state == NvmlState::Answering).await;
    assert_eq!(first(&back).causes[0], unhealthy.causes[0]);

    agent.releases(true);
    let released = agent.awaits(|report| report.nvml.state == NvmlState::Released).await;
    assert_eq!(first(&released).causes[0], unhealthy.causes[0]);
    assert!(!host.is_held(CONTAINER_ROOT));
    host.reload(VERSION);
    agent.releases(false);
    becomes(&agent, Healthy, None).await;
    agent.end().await;
}

#[tokio::test]
async fn a_flood_of_xids_causes_few_writes_application_errors_none() {
    let host = served();
    let agent = forgetting(1000, &host, patient(), None);
    becomes(&agent, Healthy, None).await;
    agent.server.take();
    let flood = |xid: u16, rate: u32| json!({"xid": xid, "perSecond": rate});
    serve(&host, &json!({"xids": [flood(63, 100), flood(31, 1000), flood(13, 1000)]}));
    let report = agent.awaits(|report| first(report).causes.iter().any(|cause| cause.count >= Some(100))).await;
    assert_eq!(first(&report).causes.len(), 1);
    // The reported counts are 1, 2, 5, 10, 20, 50 and 100.
    let writes = agent.server.take().len();
    assert!(writes <= 7, "{writes}");
    agent.end().await;
}

#[tokio::test]
async fn a_hanging_nvml_makes_its_gpus_unknown_with_the_reason() {
    let host = served();
    let agent = begin(&host, Limits { answer: Duration::from_millis(300), ..patient() }, None);
    becomes(&agent, Healthy, None).await;
    host.serve(CONTAINER_ROOT, &GPUS, true);
    let report = becomes(&agent, Unknown, Some(NotAnswering)).await;
    let Cause { evidence, .. } = &first(&report).causes[0];
    assert!(evidence.contains("no answer within"), "{evidence}");
    agent.end().await;
}
