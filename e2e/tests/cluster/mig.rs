//! GPUs in MIG mode, with the real probe's program in the plugin's pod and the stand-in NVML.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use cluster::standin::Gpu;
use gpu_operator_crd::{policy::Stage, reason::Reason};
use serde_json::{Value, json};

use crate::support::{Fixture, GPUS, READY, test};

/// One MIG device that uses the whole GPU, so that the stand-in for the plugin offers as many devices as GPUs.
const WHOLE: &str =
    "{defaults: {devicePlugin: {mig: {strategy: Single, layout: [{profiles: [{profile: 7g.80gb, count: 1}]}]}}}}";
const HALVES: &str =
    "{defaults: {devicePlugin: {mig: {strategy: Single, layout: [{profiles: [{profile: 3g.40gb, count: 2}]}]}}}}";

/// Returns GPUs that support MIG; the first has these clients.
fn divisible(clients: &Value) -> Vec<Gpu> {
    let mut gpus = Gpu::h100(GPUS);
    for (number, gpu) in gpus.iter_mut().enumerate() {
        let clients = if number == 0 { clients.clone() } else { json!([]) };
        gpu.state.insert("mig".to_owned(), json!({"clients": clients}));
    }
    gpus
}

/// Resets the GPUs to a state without MIG instances.
fn whole(f: &Fixture) -> Result<()> {
    let file = divisions_file(f);
    if file.exists() {
        fs::remove_file(file)?;
    }
    f.host.standin().set_gpus(&divisible(&json!([])))
}

async fn wait_for_devices(f: &Fixture, profile: &str, count: u32) -> Result<()> {
    f.wait_for_status("GPUs with the wanted MIG devices", |status| {
        let report = status.report.as_ref().context("no report")?;
        let is_so = |devices: &Vec<gpu_operator_crd::report::MigDevices>| {
            devices.len() == 1 && devices[0].profile == profile && devices[0].count == count
        };
        let all = report.gpus.iter().all(|gpu| gpu.mig_devices.as_ref().is_some_and(is_so));
        ensure!(all, "{:?}: {} {report:?}", status.reason, status.message);
        Ok(())
    })
    .await
}

#[test]
fn mig_devices_precede_the_plugin_and_outlive_its_pod() {
    test(async |f| {
        whole(&f)?;
        f.apply(WHOLE).await?;
        wait_for_devices(&f, "7g.80gb", 1).await?;
        f.wait_until_ready().await?;
        let before = divisions(&f)?;
        // For a short time the node is still ready with the GPUs of the deleted pod.
        f.remake(Stage::DevicePlugin).await?;
        f.wait_for_allocatable(GPUS, READY).await?;
        f.wait_until_ready().await?;
        ensure!(divisions(&f)? == before);
        Ok(())
    });
}

#[test]
fn each_gpu_has_its_layout_and_an_impossible_one_is_explained() {
    test(async |f| {
        whole(&f)?;
        f.apply_example("mig").await?;
        f.wait_until_ready_with("nvidia.com/mig-1g.10gb", 14).await?;
        f.wait_until_ready_with("nvidia.com/mig-3g.40gb", 2 * (GPUS - 2)).await?;
        let status = f.status().await?;
        let units = 14 + 2 * (GPUS - 2);
        ensure!(status.gpus.summary == format!("{units}/{units}"), "{}", status.gpus.summary);
        for (index, gpu) in status.report.context("no report")?.gpus.iter().enumerate() {
            let devices = gpu.mig_devices.iter().flatten().map(|devices| (devices.profile.as_str(), devices.count));
            let wanted = if index < 2 { ("1g.10gb", 7) } else { ("3g.40gb", 2) };
            ensure!(devices.eq([wanted]), "GPU {index}: {:?}", gpu.mig_devices);
        }

        // The same pool, so that nothing else changes.
        let mig = "{strategy: Mixed, layout: [{devices: [1], profiles: [{profile: 4g.20gb, count: 1}]}]}";
        let pool = format!("{{name: h100, match: {{models: [nvidia-h100-80gb]}}, devicePlugin: {{mig: {mig}}}}}");
        f.apply(&format!("{{pools: [{pool}]}}")).await?;
        let message = f.wait_for_reason(Reason::MigLayoutRefused).await?;
        ensure!(
            message.contains("4g.20gb") && message.contains("4g.40gb"),
            "the message does not list the profiles: {message}"
        );
        Ok(())
    });
}

#[test]
fn a_process_that_blocks_a_mig_layout_is_named() {
    test(async |f| {
        whole(&f)?;
        f.apply(WHOLE).await?;
        f.wait_until_ready().await?;
        // The node's first process, which always exists.
        f.host.standin().set_gpus(&divisible(&json!([{"pid": 1, "instance": 1}])))?;
        f.apply(HALVES).await?;
        let message = f.wait_for_reason(Reason::MigBlocked).await?;
        ensure!(message.contains("(1)"), "{message}");
        f.host.standin().set_gpus(&divisible(&json!([])))?;
        wait_for_devices(&f, "3g.40gb", 2).await
    });
}

fn divisions(f: &Fixture) -> Result<String> {
    fs::read_to_string(divisions_file(f)).context("reading the MIG instances")
}

/// Returns the file in which the stand-in NVML stores the MIG instances.
fn divisions_file(f: &Fixture) -> PathBuf {
    f.host.standin().dir().join("mig.json")
}
