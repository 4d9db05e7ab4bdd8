//! Detector and probe follow the GPUs of a node: the first one, the last one, and those that are given to virtual machines.

use anyhow::{Context, Result, ensure};
use cluster::{clients::DETECTOR, standin::Gpu};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};

use crate::support::{DETECTOR_PODS, Fixture, GPUS, PROBE_PODS, test};

/// Returns UID and restarts of each pod.
fn lives(pods: &[Pod]) -> Vec<(String, i32)> {
    let restarts = |pod: &Pod| {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        containers.map(|container| container.restart_count).sum()
    };
    pods.iter().map(|pod| (pod.uid().unwrap_or_default(), restarts(pod))).collect()
}

/// Waits until the node's probe reports this number of GPUs, beside this number of GPUs for virtual machines.
async fn reported(f: &Fixture, gpus: usize, passed_through: u32) -> Result<()> {
    f.wait_for_status(&format!("a report of {gpus} GPUs"), |status| {
        let report = status.report.as_ref().context("no report")?;
        ensure!(report.gpus.len() == gpus && report.passed_through == passed_through, "{report:?}");
        Ok(())
    })
    .await
}

#[test]
fn detector_and_probe_follow_the_gpus() {
    test(async |f| {
        let standin = f.host.standin();
        let gpus = Gpu::h100(GPUS);
        let last = &gpus.last().context("a GPU")?.pci_address;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("user").await?;
        let user = ListParams::default();
        let users = || async { Ok::<_, anyhow::Error>(lives(&f.pods(&f.users()).list(&user).await?.items)) };
        let before =
            (lives(&f.pods_here(DETECTOR_PODS).await?), lives(&f.pods_here(PROBE_PODS).await?), users().await?);
        ensure!(before.0.len() == 1 && before.1.len() == 1, "{before:?}");

        // One GPU of several is given to a virtual machine, and comes back.
        standin.bind(last, Some("vfio-pci"))?;
        reported(&f, 7, 1).await?;
        standin.bind(last, None)?;
        reported(&f, 8, 0).await?;
        let after = (lives(&f.pods_here(DETECTOR_PODS).await?), lives(&f.pods_here(PROBE_PODS).await?), users().await?);
        ensure!(before == after, "{before:?} {after:?}");

        // All GPUs are removed. With the GpuNode, an administrator deletes the memory of the GPUs that the node had under the policy: without
        // that they would be missing, and the probe would stay.
        f.cluster.kubectl(&["delete", "pods", "--all", "-n", &f.users(), "--grace-period=1"])?;
        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=5m"])?;
        let mark = f.cluster.audit().mark()?;
        standin.plug(&[])?;
        f.cluster.kubectl(&["delete", "gpunode", &f.host.name(), "--ignore-not-found"])?;
        f.wait_until_forgotten().await?;
        ensure!(lives(&f.pods_here(DETECTOR_PODS).await?) == before.0, "the detector was restarted");

        // The first GPU of a node, without a policy and without a reboot.
        standin.plug(&gpus[..1])?;
        reported(&f, 1, 0).await?;
        let requests = f.cluster.audit().requests(DETECTOR, mark)?;
        let of_node = requests.by_name().get(&f.host.name()).copied().unwrap_or_default();
        // Less and less often: seven in two minutes.
        ensure!((1..=7).contains(&of_node), "{requests}");

        // The only GPU is given to a virtual machine, and comes back.
        standin.bind(&gpus[0].pci_address, Some("vfio-pci"))?;
        f.wait_until_forgotten().await?;
        standin.bind(&gpus[0].pci_address, None)?;
        reported(&f, 1, 0).await?;
        ensure!(lives(&f.pods_here(DETECTOR_PODS).await?) == before.0, "the detector was restarted");
        f.plug(&gpus).await
    });
}
