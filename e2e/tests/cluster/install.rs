//! From a bare GPU node to a schedulable one.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster::standin::DriverMode;
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use kube::api::ListParams;

use crate::support::{Fixture, GPUS, READY, alone, everywhere, is_in_init, last_init_container_started, started, test};

#[test]
fn a_bare_node_becomes_schedulable_and_kubectl_can_wait_for_it() {
    everywhere(async |nodes| {
        let cluster = &nodes[0].cluster;
        cluster.kubectl(&["apply", "-f", &cluster.policy().display().to_string()])?;
        cluster.kubectl(&["wait", "--for=condition=Ready", "clustergpupolicy/fleet", "--timeout=120s"])?;
        let columns = r"-o=custom-columns=NAME:.metadata.name,GPU:.status.allocatable.nvidia\.com/gpu";
        let names: Vec<String> = nodes.iter().map(|f| f.host.name()).collect();
        let args: Vec<&str> = names.iter().map(String::as_str).chain(["--no-headers", columns]).collect();
        let table = cluster.kubectl(&[&["get", "nodes"], &args[..]].concat())?;
        let lines: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let wanted: Vec<Vec<_>> = names.iter().map(|name| vec![name.as_str(), "8"]).collect();
        ensure!(lines == wanted, "{table}");
        let table = cluster.kubectl(&["get", "clustergpupolicy", "fleet", "--no-headers"])?;
        let (count, gpus) = (names.len(), names.len() * usize::try_from(GPUS)?);
        let counts = [format!("{count}/{count}"), format!("{gpus}/{gpus}")];
        let columns: Vec<&str> = table.split_whitespace().collect();
        let shown = ["fleet", "Ready", &counts[0], &counts[0], &counts[1], "0", "AllGpusAllocatable"];
        ensure!(columns.starts_with(&shown), "{table}");
        let gpu_nodes = cluster.kubectl(&["get", "gpunodes", "--no-headers"])?;
        let ready = gpu_nodes.lines().filter(|line| line.contains("nvidia-h100-80gb") && line.contains("Ready"));
        ensure!(ready.count() == count, "{gpu_nodes}");
        let all: Vec<String> = names.iter().map(|name| format!("gpunode/{name}")).collect();
        for condition in ["Ready", "DriverReady", "ToolkitReady", "DevicePluginReady"] {
            let wait = format!("--for=condition={condition}");
            let args = ["wait", &wait, "--timeout=60s"].into_iter().chain(all.iter().map(String::as_str));
            cluster.kubectl(&args.collect::<Vec<_>>())?;
        }
        for selector in ["status.reason=AllGpusAllocatable", "status.phase=Ready", "spec.pool=nvidia-h100-80gb"] {
            let selected = cluster.kubectl(&["get", "gn", "--no-headers", "--field-selector", selector])?;
            ensure!(selected.lines().count() == count, "{selector}: {selected}");
        }
        Ok(())
    });
}

#[test]
fn later_stages_wait_for_the_driver_and_start_in_order() {
    test(async |f| {
        f.host.standin().set_driver_mode(&DriverMode::Hold)?;
        f.apply("{}").await?;
        let driver = f.operand(Stage::Driver).await?;
        f.wait_for_reason(Reason::DriverInstalling).await?;
        for stage in [Stage::Toolkit, Stage::DevicePlugin] {
            eventually(READY, "a running gate", || async {
                let pod = f.operand(stage).await?;
                ensure!(is_in_init(&pod) && started(&pod).is_none(), "{:?}", pod.status);
                Ok(())
            })
            .await?;
        }
        ensure!(f.allocatable().await? == 0);
        f.host.standin().set_driver_mode(&DriverMode::Ok)?;
        f.wait_until_ready().await?;
        let again = f.operand(Stage::Driver).await?;
        ensure!(again.metadata.uid == driver.metadata.uid, "the driver's pod was recreated");
        // The gate of the device plugin passes once the toolkit is installed, while its main container may still be starting.
        let order = [
            started(&f.operand(Stage::Driver).await?),
            last_init_container_started(&f.operand(Stage::Toolkit).await?),
            started(&f.operand(Stage::DevicePlugin).await?),
        ];
        ensure!(order.iter().all(Option::is_some) && order.is_sorted(), "{order:?}");
        Ok(())
    });
}

#[test]
fn a_pod_that_requests_one_gpu_sees_exactly_one() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("isolated").await?;
        f.sees_one_gpu("isolated")
    });
}

#[test]
fn the_report_lists_every_gpu_with_uuid_and_memory() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.wait_for_status("an inventory from NVML", |status| {
            let report = status.report.clone().unwrap_or_default();
            ensure!(report.gpus.len() == usize::try_from(GPUS)?, "{report:?}");
            for gpu in &report.gpus {
                ensure!(gpu.uuid.is_some() && gpu.memory_mib == Some(81_559), "{gpu:?}");
            }
            ensure!(report.driver.cuda_version.as_deref() == Some("13.1"), "{:?}", report.driver);
            Ok(())
        })
        .await
    });
}

#[test]
fn the_node_has_every_label_key_in_the_policy() {
    test(async |f| {
        f.apply(
            "{nodeLabels: [{key: accelerator}], pools: [{name: all, nodeLabels: [{key: gpu/nividia, value: P630}]}]}",
        )
        .await?;
        f.wait_until_ready().await?;
        let labels = f.operators_labels(&["accelerator", "gpu/nividia"]).await?;
        ensure!(labels.get("accelerator").is_some_and(|value| value == "nvidia-h100-80gb"), "{labels:?}");
        ensure!(labels.get("gpu/nividia").is_some_and(|value| value == "P630"), "{labels:?}");
        ensure!(labels.get(keys::MODEL).is_some_and(|value| value == "nvidia-h100-80gb"), "{labels:?}");
        Ok(())
    });
}

#[test]
fn the_operator_serves_health_endpoints_and_fleet_metrics() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        // Any status other than 200 is an error.
        f.ask_operator("/livez").await?;
        f.ask_operator("/readyz").await?;
        eventually(READY, "the fleet in the metrics", || async {
            let metrics = f.ask_operator("/metrics").await?;
            let labels = format!(r#"{{policy="{}",pool="nvidia-h100-80gb",state="ready"}}"#, f.policy);
            ensure!(metrics.contains(&format!("gpu_operator_pool_nodes{labels} 1")), "{metrics}");
            let condition = format!(r#"{{policy="{}",condition="Ready",status="True","#, f.policy);
            ensure!(metrics.contains(&format!("gpu_operator_policy_condition{condition}")), "{metrics}");
            ensure!(!metrics.contains(&f.host.name()), "the metrics contain a node's name: {metrics}");
            Ok(())
        })
        .await
    });
}

#[test]
fn a_settled_operator_writes_nothing() {
    alone(async |f| {
        // Earlier tests may have restarted operator and probe.
        let before = restarts(&f).await?;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        // The report follows allocatable shortly after; from then on nothing may change.
        f.wait_until_settled(Duration::from_secs(10)).await?;
        let after = restarts(&f).await?;
        ensure!(after == before, "{before} restarts before, {after} after");
        Ok(())
    });
}

/// Returns the number of restarts of all containers in the operator's namespace.
async fn restarts(f: &Fixture) -> Result<i32> {
    let pods = f.pods(f.cluster.namespace()).list(&ListParams::default()).await?;
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()).flatten();
    Ok(statuses.map(|container| container.restart_count).sum())
}
