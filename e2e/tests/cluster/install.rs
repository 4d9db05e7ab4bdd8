//! From a bare GPU node to a schedulable one.

use anyhow::ensure;
use cluster::standin::DriverMode;
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::wait::eventually;

use crate::support::{GPUS, READY, everywhere, is_in_init, last_init_container_started, started, test};

#[test]
fn a_bare_node_becomes_schedulable_and_kubectl_can_wait_for_it() {
    everywhere(async |nodes| {
        let cluster = &nodes[0].cluster;
        cluster.kubectl(&["apply", "-f", &cluster.policy().display().to_string()])?;
        cluster.kubectl(&["wait", "--for=condition=Ready", "clustergpupolicy/fleet", "--timeout=5m"])?;
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
            let args = ["wait", &wait, "--timeout=5m"].into_iter().chain(all.iter().map(String::as_str));
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
fn a_ready_node_is_in_labels_report_and_metrics() {
    test(async |f| {
        let pool = "{name: all, nodeLabels: [{key: gpu/nividia, value: P630}]}";
        f.apply(&format!("{{nodeLabels: [{{key: accelerator}}], pools: [{pool}]}}")).await?;
        f.wait_until_ready().await?;
        let labels = f.operators_labels(&["accelerator", "gpu/nividia"]).await?;
        for (key, value) in
            [("accelerator", "nvidia-h100-80gb"), ("gpu/nividia", "P630"), (keys::MODEL, "nvidia-h100-80gb")]
        {
            ensure!(labels.get(key).is_some_and(|found| found == value), "{key}: {labels:?}");
        }
        f.wait_for_status("an inventory from NVML", |status| {
            let report = status.report.clone().unwrap_or_default();
            ensure!(report.gpus.len() == usize::try_from(GPUS)?, "{report:?}");
            for gpu in &report.gpus {
                ensure!(gpu.uuid.is_some() && gpu.memory_mib == Some(81_559), "{gpu:?}");
            }
            ensure!(report.driver.cuda_version.as_deref() == Some("13.1"), "{:?}", report.driver);
            Ok(())
        })
        .await?;
        // Any status other than 200 is an error.
        f.ask_operator("/livez").await?;
        f.ask_operator("/readyz").await?;
        eventually(READY, "the fleet in the metrics", || async {
            let metrics = f.ask_operator("/metrics").await?;
            let labels = format!(r#"{{policy="{}",pool="all",state="ready"}}"#, f.policy);
            ensure!(metrics.contains(&format!("gpu_operator_pool_nodes{labels} 1")), "{metrics}");
            let condition = format!(r#"{{policy="{}",condition="Ready",status="True","#, f.policy);
            ensure!(metrics.contains(&format!("gpu_operator_policy_condition{condition}")), "{metrics}");
            ensure!(!metrics.contains(&f.host.name()), "the metrics contain a node's name: {metrics}");
            Ok(())
        })
        .await
    });
}
