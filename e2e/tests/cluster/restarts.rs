//! Whatever restarts, the node ends ready with no hand.

use anyhow::{Result, ensure};
use e2e::eventually;
use gpu_operator_crd::policy::Stage;

use crate::support::{DEFAULT_DRIVER, Fixture, READY, test};

async fn wait_for_a_working_gpu_pod(f: &Fixture, name: &str) -> Result<()> {
    f.wait_until_ready().await?;
    f.run_gpu_pod(name).await
}

#[test]
fn the_operands_pods() {
    test(|f| async move {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        for stage in Stage::ALL {
            let before = f.operand(stage).await?.metadata.uid;
            let selector = format!("gpu.nodestack.dev/stage={}", stage.as_str());
            f.cluster.kubectl(&["delete", "pods", "-n", f.cluster.namespace(), "-l", &selector])?;
            eventually(READY, "a new pod that runs", || async {
                let pod = f.operand(stage).await?;
                ensure!(pod.metadata.uid != before, "the old one is still there");
                ensure!(crate::support::started(&pod).is_some(), "{:?}", pod.status);
                Ok(())
            })
            .await?;
            f.wait_until_ready().await?;
        }
        wait_for_a_working_gpu_pod(&f, "after-restarts").await
    });
}

#[test]
fn kubelet_and_containerd() {
    test(|f| async move {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.cluster.restart_containerd()?;
        f.cluster.restart_kubelet()?;
        // Kubelet forgets its plugins when it restarts; they have to find it again.
        f.cluster.kubectl(&["wait", "--for=condition=Ready", "node", f.cluster.node_name(), "--timeout=60s"])?;
        wait_for_a_working_gpu_pod(&f, "after-kubelet").await
    });
}

#[test]
fn the_whole_node() {
    test(|f| async move {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let boot = f.status().await?.report.map(|report| report.driver.loaded);
        ensure!(boot == Some(Some(DEFAULT_DRIVER.to_owned())), "{boot:?}");
        f.cluster.reboot()?;
        f.cluster.kubectl(&["wait", "--for=condition=Ready", "node", f.cluster.node_name(), "--timeout=60s"])?;
        // Loaded anew by the same DaemonSet's pod, because the reboot unloaded it.
        eventually(READY, "a driver that is loaded again", || async {
            ensure!(f.cluster.standin().loaded_driver().as_deref() == Some(DEFAULT_DRIVER));
            Ok(())
        })
        .await?;
        wait_for_a_working_gpu_pod(&f, "after-reboot").await
    });
}

#[test]
fn the_operator_itself_needs_no_idle_gpu_and_moves_nothing() {
    test(|f| async move {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("busy").await?;
        let pods = || async {
            let mut uids = Vec::new();
            for stage in Stage::ALL {
                uids.push(f.operand(stage).await?.metadata.uid);
            }
            anyhow::Ok(uids)
        };
        let before = pods().await?;
        f.cluster.kubectl(&["rollout", "restart", "deployment/gpu-operator", "-n", f.cluster.namespace()])?;
        f.cluster.kubectl(&[
            "rollout",
            "status",
            "deployment/gpu-operator",
            "-n",
            f.cluster.namespace(),
            "--timeout=60s",
        ])?;
        f.wait_until_ready().await?;
        ensure!(pods().await? == before, "pods were made anew");
        Ok(())
    });
}
