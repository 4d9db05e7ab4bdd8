//! Pods: the operator's, and those of the test that use GPUs.

use anyhow::{Result, bail, ensure};
use gpu_operator_crd::{keys, policy::Stage};
use harness::wait::eventually;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{Api, ResourceExt, api::ListParams};

use super::{Fixture, HOSTNAME, READY};

impl Fixture {
    pub fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), namespace)
    }

    /// Returns the node's pods of a stage.
    pub async fn operands(&self, stage: Stage) -> Result<Vec<Pod>> {
        self.pods_here(&format!("{}={}", keys::STAGE, stage.as_str())).await
    }

    /// Returns the node's pods in the operator's namespace with this label.
    pub async fn pods_here(&self, label: &str) -> Result<Vec<Pod>> {
        let here = ListParams::default().labels(label).fields(&format!("spec.nodeName={}", self.host.name()));
        Ok(self.pods(self.cluster.namespace()).list(&here).await?.items)
    }

    /// Waits for the single pod of a stage.
    pub async fn operand(&self, stage: Stage) -> Result<Pod> {
        eventually(READY, &format!("one {} pod", stage.as_str()), || async move {
            let pods = self.operands(stage).await?;
            let [pod] = pods.as_slice() else { bail!("{} pods", pods.len()) };
            Ok(pod.clone())
        })
        .await
    }

    /// Deletes the single pod of a stage, and waits until a new one is running.
    pub async fn remake(&self, stage: Stage) -> Result<Pod> {
        let before = self.operand(stage).await?;
        self.cluster.kubectl(&["delete", "pod", &before.name_any(), "-n", self.cluster.namespace()])?;
        eventually(READY, &format!("another {} pod that runs", stage.as_str()), || async {
            let pod = self.operand(stage).await?;
            ensure!(pod.uid() != before.uid(), "the old pod still exists");
            ensure!(started(&pod).is_some(), "{:?}", pod.status);
            Ok(pod)
        })
        .await
    }

    /// Runs a pod that holds one GPU and does nothing.
    pub async fn run_gpu_pod(&self, name: &str) -> Result<()> {
        self.run_on_gpu(name, &["/usr/bin/entrypoint", "hold"]).await.map(drop)
    }

    /// Creates a pod with one GPU and this command, and waits until it is running.
    pub async fn run_on_gpu(&self, name: &str, command: &[&str]) -> Result<Pod> {
        self.create_on_gpu(name, command).await?;
        self.runs(name).await
    }

    /// Creates a pod with one GPU and this command. The variable `MARK` in its environment identifies its processes.
    pub async fn create_on_gpu(&self, name: &str, command: &[&str]) -> Result<()> {
        self.create(self.gpu_pod(name, command)).await
    }

    /// Creates a pod of the test's own.
    pub async fn create(&self, pod: serde_json::Value) -> Result<()> {
        let pod = serde_json::from_value(pod)?;
        self.pods(&self.users()).create(&kube::api::PostParams::default(), &pod).await?;
        Ok(())
    }

    /// Returns a pod of the test's own on the node, as created by [`Fixture::create_on_gpu`].
    pub fn gpu_pod(&self, name: &str, command: &[&str]) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeSelector": {HOSTNAME: self.host.name()},
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": "localhost:5999/nvml-probe:dev",
                    "command": command,
                    "env": [{"name": "MARK", "value": name}],
                    "resources": {"limits": {keys::GPU_RESOURCE: "1"}},
                }],
            },
        })
    }

    /// Waits until one of the test's own pods is running.
    pub async fn runs(&self, name: &str) -> Result<Pod> {
        eventually(READY, "a running GPU pod", || async move {
            let pod = self.pods(&self.users()).get(name).await?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            ensure!(phase == "Running", "{phase}");
            Ok(pod)
        })
        .await
    }

    /// Checks that a marked pod sees exactly one GPU.
    pub fn sees_one_gpu(&self, name: &str) -> Result<()> {
        self.sees_gpus(name, 1)
    }

    /// Checks that a marked pod sees this number of GPUs.
    pub fn sees_gpus(&self, name: &str, count: u32) -> Result<()> {
        let mut devices = self.lists(name, "/dev")?;
        devices.retain(|device| device.starts_with("nvidia"));
        let is_gpu = |device: &&String| device.trim_start_matches("nvidia").parse::<u32>().is_ok();
        let gpus = u32::try_from(devices.iter().filter(is_gpu).count())?;
        ensure!(gpus == count && devices.contains(&"nvidiactl".to_owned()), "{name} sees {devices:?}");
        Ok(())
    }

    /// Returns the files in a folder that a marked pod sees.
    pub fn lists(&self, name: &str, folder: &str) -> Result<Vec<String>> {
        let script = r#"for process in /proc/[0-9]*; do
            if tr '\0' '\n' < "$process/environ" 2>/dev/null | grep -qx "MARK=$1"; then
                ls "$process/root$2" && exit 0
            fi
        done; echo "no process is marked $1" >&2; exit 1"#;
        let listed = self.host.exec(&["/bin/sh", "-c", script, "lists", name, folder])?;
        Ok(listed.split_whitespace().map(str::to_owned).collect())
    }
}

/// Returns whether the pod's init containers have not finished yet.
pub fn is_in_init(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.init_container_statuses.clone()).unwrap_or_default();
    !statuses.is_empty() && !statuses.iter().all(|status| status.ready)
}

/// Returns when the last init container of a pod, which has ended, started.
pub fn last_init_container_started(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?.init_container_statuses.as_ref()?.last()?;
    Some(status.state.as_ref()?.terminated.as_ref()?.started_at.as_ref()?.0)
}

/// Returns when a pod's main container started.
pub fn started(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}
