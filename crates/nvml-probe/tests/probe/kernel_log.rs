//! XIDs in the kernel log → the health in the report, through the whole probe except a real API server.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::PathBuf,
    time::Duration,
};

use gpu_host::{
    nvml::supervisor::{Supervisor, child_command},
    observe::driver::CONTAINER_ROOT,
};
use gpu_operator_crd::{
    health::{
        Action::RebootNode,
        CauseKind::Xid,
        GpuHealth, HealthRules,
        HealthState::{Healthy, Unhealthy},
    },
    report::Report,
};
use nix::{sys::stat::Mode, unistd::mkfifo};
use nvml_probe::report::gpu_node::{GpuNodeFields, GpuNodeView};
use serde_json::json;
use test_support::host::Host;

use crate::{
    PROBE,
    running::{
        GPUS, INTERVAL, KERNEL_LOG, Running, VERSION, becomes, begin, first, forgetting, patient, serve, served,
    },
};

const LOADED: &str = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.173.02  Release Build";

fn xid(number: u16) -> String {
    format!("NVRM: Xid (PCI:0000:06:00): {number}, pid=7, name=python3, details of {number}")
}

/// Returns log records of these messages, one second apart.
fn records(messages: &[&str]) -> String {
    let records = (1..).zip(messages).map(|(second, message)| format!("4,{second},{second}000000,-;{message}\n"));
    records.collect::<Vec<_>>().concat()
}

/// Replaces the log by these messages.
fn write_log(host: &Host, messages: &[&str]) {
    host.write(KERNEL_LOG, &records(messages));
}

fn append(host: &Host, messages: &[&str]) {
    let mut log = OpenOptions::new().append(true).open(host.path(KERNEL_LOG)).unwrap();
    log.write_all(records(messages).as_bytes()).unwrap();
}

/// Creates a log that can be waited for, and returns its writer.
fn pipe(host: &Host) -> File {
    let path = host.path(KERNEL_LOG);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Starts an agent whose next look is hours away, so that no cause expires before the test ends.
fn begin_seldom(host: &Host) -> Running {
    let hours = Duration::from_hours(5);
    let rules = HealthRules { interval: Some(hours.into()), ..HealthRules::default() };
    let seen = GpuNodeView::Present(Box::new(GpuNodeFields { rules, ..GpuNodeFields::default() }));
    Running::looking_every(hours, host, seen, Supervisor::new(child_command(PathBuf::from(PROBE)), patient()))
}

/// Changes the second GPU and waits until that is reported: any change of the first one has been reported by then.
async fn settles(host: &Host, agent: &Running) -> Report {
    host.serve_with(CONTAINER_ROOT, &GPUS, |machine| {
        machine["devices"][1]["readings"] = json!({"rows": {"failed": true}});
    });
    agent.awaits(|report| report.gpus[1].health.state == Unhealthy).await
}

/// The number, the count and whether it is recovering, of each cause.
fn outline(health: &GpuHealth) -> Vec<(u16, u64, bool)> {
    health.causes.iter().map(|cause| (cause.xid.unwrap(), cause.count.unwrap(), cause.recovering)).collect()
}

#[tokio::test]
async fn an_xid_from_before_the_start_counts_once_across_restarts() {
    let host = served();
    write_log(&host, &[LOADED, &xid(79), &xid(31)]);
    let agent = begin(&host, patient(), None);
    let unhealthy = becomes(&agent, Unhealthy, Some(Xid)).await;
    agent.end().await;
    assert_eq!(
        (first(&unhealthy).action.known(), outline(first(&unhealthy))),
        (Some(RebootNode), vec![(79, 1, false)])
    );
    let evidence = &first(&unhealthy).causes[0].evidence;
    assert!(evidence.contains("driver message: pid=7, name=python3, details of 79"), "{evidence}");
    assert_eq!(unhealthy.gpus[1].health.state, Healthy);

    let agent = begin(&host, patient(), Some(unhealthy.clone()));
    assert_eq!(first(&settles(&host, &agent).await), first(&unhealthy));
    // Another occurrence is counted.
    append(&host, &[&xid(79)]);
    agent.awaits(|report| outline(first(report)) == [(79, 2, false)]).await;
    agent.end().await;
}

#[tokio::test]
async fn while_no_driver_is_loaded_its_sentences_are_reported() {
    const STARTING: &str = "nvidia-nvlink: Nvlink Core is being initialized, major device number 237";
    let sentences = ["NVRM: GPU 0000:06:00.0 is already bound to NovaCore.", "NVRM: No NVIDIA devices probed."];
    let host = served();
    fs::remove_dir_all(host.path("sys/module/nvidia")).unwrap();
    write_log(&host, &[STARTING, sentences[0], sentences[1]]);
    let agent = begin(&host, patient(), None);
    let report = agent.awaits(|report| !report.driver.load_errors.is_empty()).await;
    assert_eq!((report.driver.loaded, &report.driver.load_errors[..]), (None, &sentences.map(str::to_owned)[..]));
    // Other sentences of a driver that is loaded are not reported.
    host.load(VERSION);
    append(&host, &[STARTING, LOADED, "NVRM: Persistence mode is deprecated."]);
    let report = agent.awaits(|report| report.driver.loaded.is_some()).await;
    assert_eq!(report.driver.load_errors, [""; 0]);
    agent.end().await;
}

#[tokio::test]
async fn xids_from_before_the_last_driver_load_are_over() {
    type Change = fn(&Host);
    let reload: Change = |host| host.reload(VERSION);
    let reboot: Change = |host| host.write("proc/sys/kernel/random/boot_id", "another");
    let (old, new) = (xid(48), xid(79));
    let (old, new) = (old.as_str(), new.as_str());
    for (name, change, log, expected) in [
        ("reloaded", reload, &[LOADED, old, LOADED][..], vec![(48, 1, true)]),
        ("reloaded, and unhealthy again", reload, &[LOADED, old, LOADED, new], vec![(79, 1, false), (48, 1, true)]),
        ("reloaded, without a log entry", reload, &[old], vec![(48, 1, true)]),
        ("rebooted", reboot, &[LOADED], vec![(48, 1, true)]),
        ("rebooted, and unhealthy again", reboot, &[LOADED, old], vec![(48, 2, false)]),
    ] {
        let host = served();
        write_log(&host, &[LOADED, old]);
        let agent = forgetting(1_000_000, &host, patient(), None);
        let unhealthy = becomes(&agent, Unhealthy, Some(Xid)).await;
        agent.end().await;
        change(&host);
        write_log(&host, log);
        // Regardless of how often the probe starts after that.
        let mut before = unhealthy;
        for _ in 0..2 {
            let agent = forgetting(1_000_000, &host, patient(), Some(before));
            before = settles(&host, &agent).await;
            agent.end().await;
            host.serve(CONTAINER_ROOT, &GPUS, false);
            assert_eq!(outline(first(&before)), expected, "{name}");
        }
    }
}

#[tokio::test]
async fn a_driver_load_and_xids_right_after_it_are_noticed_at_once() {
    let host = served();
    let mut log = pipe(&host);
    let agent = begin_seldom(&host);
    becomes(&agent, Healthy, None).await;
    log.write_all(records(&[&xid(79)]).as_bytes()).unwrap();
    becomes(&agent, Unhealthy, Some(Xid)).await;
    host.reload(VERSION);
    log.write_all(records(&[&xid(62), LOADED, &xid(119)]).as_bytes()).unwrap();
    agent.awaits(|report| outline(first(report)) == [(119, 1, false), (79, 1, true)]).await;
    agent.end().await;
}

#[tokio::test]
async fn an_xid_reported_by_nvml_and_the_log_counts_once() {
    // NVML is queried once a second, so it returns the XID at the next look or the one after. The log is read then as
    // well, or at looks at the host in between.
    let second = Duration::from_secs(1);
    for between_looks in [INTERVAL, second] {
        let host = served();
        write_log(&host, &[LOADED]);
        let rules = HealthRules { interval: Some(second.into()), ..HealthRules::default() };
        let seen = GpuNodeView::Present(Box::new(GpuNodeFields { rules, ..GpuNodeFields::default() }));
        let supervisor = Supervisor::new(child_command(PathBuf::from(PROBE)), patient());
        let agent = Running::looking_every(between_looks, &host, seen, supervisor);
        becomes(&agent, Healthy, None).await;
        append(&host, &[&xid(48)]);
        becomes(&agent, Unhealthy, Some(Xid)).await;
        // The stand-in returns the XIDs of the first GPU first.
        host.serve_with(CONTAINER_ROOT, &GPUS, |machine| {
            for device in 0..2 {
                machine["devices"][device]["xids"] = json!([{"xid": 48}]);
            }
        });
        let both = agent.awaits(|report| report.gpus[1].health.state == Unhealthy).await;
        assert_eq!(outline(first(&both)), [(48, 1, false)]);
        assert!(first(&both).causes[0].evidence.contains("details of 48"));
        serve(&host, &json!({"xids": [{"xid": 48, "id": 2}]}));
        agent.awaits(|report| outline(first(report)) == [(48, 2, false)]).await;
        agent.end().await;
    }
}
