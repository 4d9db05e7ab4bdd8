//! A GPU's health: from NVML to the GpuNode, the policy, the Node, Events and metrics, and back. The faults come from
//! the stand-in library; everything else is real.

mod faulty_gpu;

use anyhow::{Context, Result, ensure};
use cluster::standin::Gpu;
use gpu_operator_crd::{
    Phase,
    health::{CauseKind, HealthState},
    policy::Stage,
    reason::Reason,
    report::NvmlState,
};
use harness::wait::eventually;
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use test_support::faults::{Fault, Faults};

pub use self::faulty_gpu::FAST;
use self::faulty_gpu::reason;
use crate::support::{Fixture, GPUS, READY, SHOWN, alone, long_test, test, test_beside_the_operator};

#[test]
fn each_fault_of_a_gpu_is_reported_everywhere_until_it_is_gone() {
    long_test(async |f| {
        let Faults { well, faults } = Faults::read();
        f.set_faults(&well)?;
        f.apply(FAST).await?;
        f.wait_until_ready().await?;
        for Fault { what, device, state, action, kind } in faults {
            // For an XID the plugin withholds the GPU. If kubelet is faster than the probe, that is reported instead.
            let withheld = (kind == CauseKind::Xid).then_some(Reason::WaitingForAllocatable);
            let reasons: Vec<Reason> = [reason(state)].into_iter().chain(withheld).collect();
            let events = f.count_events(&reasons).await?;
            f.set_faults(&device)?;
            if kind == CauseKind::Xid {
                // Later it might be attributed to the next fault, or a new plugin might offer the GPU again.
                f.wait_for_allocatable(GPUS - 1, SHOWN).await.with_context(|| what.clone())?;
            }
            let health = f
                .wait_for_health(&format!("a GPU that {what}"), |health| {
                    health.state == state && health.causes.first().is_some_and(|cause| cause.kind == kind)
                })
                .await?;
            ensure!(health.action == action, "{what}: {health:?}");
            f.wait_until_reported(state, 1).await.with_context(|| what.clone())?;
            f.wait_for_another_event(&reasons, events).await.with_context(|| what.clone())?;
            if kind == CauseKind::Xid {
                // The XID may have been reported with the reading before it, which does not show that the GPU is reset.
                f.wait_for_energy(device["readings"]["energyMillijoules"].as_f64().context("no counter")? / 1e3)
                    .await?;
            }
            // A plugin withholds a GPU for an XID, which affects the node's readiness: see the tests below.
            let ready = f.status().await?.phase == Phase::Ready;
            ensure!(ready || kind == CauseKind::Xid, "{what}: not ready, although seven of eight GPUs are enough");

            f.set_faults(&well)?;
            f.wait_for_health(&format!("the end of: {what}"), |health| health.state == HealthState::Healthy).await?;
            f.wait_until_reported(HealthState::Healthy, 0).await.with_context(|| format!("after: {what}"))?;
            f.wait_for_allocatable(GPUS, SHOWN).await.with_context(|| format!("after: {what}"))?;
        }
        Ok(())
    });
}

#[test]
fn gpus_are_unknown_while_the_library_crashes_fails_or_hangs() {
    test(async |f| {
        f.apply(FAST).await?;
        f.wait_until_ready().await?;
        // The child exits, then cannot start again, and finally hangs.
        for (fault, value, words) in [
            ("crash", json!(true), "signal"),
            ("initError", json!(9), "driver"),
            ("hang", json!(true), "no answer within"),
        ] {
            f.host.standin().set_nvml(&Gpu::h100(GPUS), &Map::from_iter([(fault.to_owned(), value)]))?;
            eventually(READY, &format!("unknown GPUs because of {fault}"), || async {
                let report = f.report().await?;
                ensure!(report.nvml.state == NvmlState::Failing, "{:?}", report.nvml);
                let message = report.nvml.message.as_deref().unwrap_or_default();
                ensure!(message.contains(words), "{message}");
                for gpu in &report.gpus {
                    let cause = gpu.health.causes.first().context("no cause")?;
                    ensure!(gpu.health.state == HealthState::Unknown, "{:?}", gpu.health);
                    ensure!(cause.kind == CauseKind::NotAnswering && !cause.evidence.is_empty(), "{cause:?}");
                }
                Ok(())
            })
            .await?;
            f.wait_until_reported(HealthState::Unknown, GPUS).await.context(fault)?;
        }
        f.host.standin().set_gpus(&Gpu::h100(GPUS))?;
        f.wait_until_reported(HealthState::Healthy, 0).await
    });
}

#[test]
fn xid_79_leaves_seven_gpus_and_a_reboot_restores_the_eighth() {
    test_beside_the_operator(async |f| {
        f.apply("{health: {interval: 1s, cleanIntervals: 1}}").await?;
        f.wait_until_ready().await?;
        f.set_faults(&Map::from_iter([("xids".to_owned(), json!([{"xid": 79}]))]))?;
        let message = f.wait_for_reason(Reason::GpuUnhealthy).await?;
        ensure!(message.contains("0000:09:00.0") && message.contains("Xid 79"), "{message}");
        ensure!(message.contains("reboot the node"), "{message}");
        f.wait_for_condition("Ready", "False").await?;
        f.wait_for_allocatable(7, SHOWN).await?;
        f.run_gpu_pod("on-one-of-seven").await?;
        // The policy defines whether seven are enough.
        f.apply("{health: {interval: 1s, cleanIntervals: 1, minHealthyGPUs: 7}}").await?;
        f.wait_for_condition("Ready", "True").await?;
        f.wait_for_condition("Degraded", "True").await?;

        f.cluster.kubectl(&["delete", "pods", "--all", "-n", &f.users(), "--force", "--grace-period=0"])?;
        f.set_faults(&Map::new())?;
        f.reboot()?;
        f.wait_for_allocatable(GPUS, READY).await?;
        f.wait_for_health("a healthy GPU after the reboot", |health| health.state == HealthState::Healthy).await?;
        f.wait_until_ready().await?;
        f.wait_until_reported(HealthState::Healthy, 0).await
    });
}

#[test]
fn a_gpu_that_the_plugin_withholds_is_restored() {
    test(async |f| {
        let faults = Faults::read();
        f.set_faults(&faults.well)?;
        f.apply(
            "{health: {interval: 1s, confirmIntervals: 1, cleanIntervals: 1, minHealthyGPUs: 7, onUnhealthy: {taint: {}}}}",
        )
        .await?;
        f.wait_until_ready().await?;
        let plugin = f.operand(Stage::DevicePlugin).await?.name_any();
        let fault = faults.named("reports XID 48");
        f.set_faults(&fault.device)?;
        f.wait_for_allocatable(7, SHOWN).await?;
        ensure!(f.capacity().await? == GPUS, "the withheld GPU is no longer registered with kubelet");
        f.wait_for_health("an unhealthy GPU", |health| health.state == HealthState::Unhealthy).await?;
        f.wait_for_taint(true).await?;
        // The GPU was reset. The taint does not keep the new plugin's pod away.
        f.set_faults(&faults.well)?;
        f.wait_for_allocatable(GPUS, SHOWN).await?;
        f.wait_until_ready().await?;
        f.wait_for_taint(false).await?;
        ensure!(f.operand(Stage::DevicePlugin).await?.name_any() != plugin, "the plugin was not restarted");
        ensure!(
            f.count_events(&[Reason::DevicePluginRestarted]).await? >= 1,
            "no Event reports the restart of the plugin"
        );
        Ok(())
    });
}

/// Ends the operator, waits until a fault is reported without it, and starts it again.
pub async fn a_fault_is_reported_without_an_operator(f: &Fixture) -> Result<()> {
    let scale = |replicas: u32| {
        let replicas = format!("--replicas={replicas}");
        f.cluster.kubectl(&["scale", "deployment/nodestack-gpu-operator", "-n", f.cluster.namespace(), &replicas])
    };
    scale(0)?;
    let outcome = async {
        let gone =
            ["wait", "--for=delete", "pods", "-l", "app.kubernetes.io/name=nodestack-gpu-operator", "--timeout=5m"];
        f.cluster.kubectl(&[&gone[..], &["-n", f.cluster.namespace()]].concat())?;
        f.set_faults(&Faults::read().named("has bad SRAM").device)?;
        f.wait_for_health("an unhealthy GPU", |health| health.state == HealthState::Unhealthy).await?;
        f.wait_for_probe_metrics(HealthState::Unhealthy).await
    }
    .await;
    scale(1)?;
    outcome?;
    f.wait_until_reported(HealthState::Unhealthy, 1).await
}

#[test]
fn gpus_are_unknown_if_the_probe_is_missing() {
    alone(async |f| {
        f.apply(FAST).await?;
        f.wait_until_ready().await?;
        let place = |selector: &Value| {
            let patch = json!({"spec": {"template": {"spec": {"nodeSelector": selector}}}}).to_string();
            f.cluster.kubectl(&["patch", "daemonset/nodestack-nvml-probe", "-n", f.cluster.namespace(), "-p", &patch])
        };
        place(&json!({"nowhere": "true"}))?;
        let outcome = async {
            eventually(SHOWN, "the probe's absence", || async {
                let message = f.status().await?.message;
                ensure!(message.contains("no probe pod runs on the node"), "{message}");
                Ok(())
            })
            .await?;
            f.wait_until_reported(HealthState::Unknown, GPUS).await
        }
        .await;
        place(&json!({"nowhere": null}))?;
        outcome?;
        f.wait_until_reported(HealthState::Healthy, 0).await
    });
}

#[test]
fn gpus_are_unknown_while_the_probe_hangs_until_it_is_restarted() {
    long_test(async |f| {
        f.apply(FAST).await?;
        f.wait_until_ready().await?;
        // Only the probe has both arguments: its NVML child and the plugin's init container serve nothing, the operator has no
        // host root. This shell, whose arguments also match, has another name.
        let script = r#"for process in /proc/[0-9]*; do
            if [ "$(cat "$process/comm" 2>/dev/null)" = entrypoint ] &&
                grep -q -- --host-root "$process/cmdline" && grep -q -- --listen "$process/cmdline"; then
                kill -STOP "${process#/proc/}"
                exit 0
            fi
        done; echo "no probe runs" >&2; exit 1"#;
        f.host.exec(&["/bin/sh", "-c", script])?;
        let message = eventually(READY, "a probe that does not answer", || async {
            let status = f.status().await?;
            ensure!(status.reason() == Some(Reason::HealthUnknown), "{:?}: {}", status.reason(), status.message);
            Ok(status.message)
        })
        .await?;
        ensure!(message.contains("does not answer"), "{message}");
        f.wait_for_condition("Degraded", "True").await?;
        // Kubelet restarts it, because its liveness probe fails.
        eventually(READY, "GPUs whose health is known again", || async {
            let health = f.status().await?.health;
            ensure!(health == Some(HealthState::Healthy), "{health:?}");
            Ok(())
        })
        .await?;
        f.wait_until_reported(HealthState::Healthy, 0).await
    });
}

#[test]
fn application_errors_at_any_rate_are_no_fault_of_the_gpu() {
    test(async |f| {
        f.apply(FAST).await?;
        f.wait_until_ready().await?;
        let flood: Vec<Value> =
            [13, 31, 43, 45, 68, 109].iter().map(|xid| json!({"xid": xid, "perSecond": 200})).collect();
        let xids = |more: &[Value]| Map::from_iter([("xids".to_owned(), json!([flood.as_slice(), more].concat()))]);
        // An XID that affects the health shows that the other XIDs were received as well. The GPU recovers from it by
        // itself, so it is repeated.
        f.set_faults(&xids(&[json!({"xid": 63, "perSecond": 5})]))?;
        let health = f.wait_for_health("a GPU with a warning", |health| health.state == HealthState::Degraded).await?;
        ensure!(health.causes.iter().all(|cause| cause.xid == Some(63)), "{health:?}");
        // The warning ends, and the pods keep running.
        f.set_faults(&xids(&[]))?;
        f.wait_for_health("healthy GPUs", |health| health.state == HealthState::Healthy).await?;
        Ok(())
    });
}
