//! Requests to operator and probe.

use anyhow::{Context, Result};
use harness::wait::eventually;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};

use super::{Fixture, READY};

impl Fixture {
    /// Returns the operator's response to a request.
    pub async fn ask_operator(&self, path: &str) -> Result<String> {
        let label = ListParams::default().labels("app.kubernetes.io/name=nodestack-gpu-operator");
        self.ask(self.pods(self.cluster.namespace()).list(&label).await?.items, path).await
    }

    /// Returns the response of the node's probe to a request.
    pub async fn ask_probe(&self, path: &str) -> Result<String> {
        self.ask(self.pods_here(super::PROBE_PODS).await?, path).await
    }

    /// Returns the response of the single pod that is not being deleted, at its first port, through the API server.
    async fn ask(&self, pods: Vec<Pod>, path: &str) -> Result<String> {
        let pod = pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none()).context("no pod")?;
        let container = pod.spec.as_ref().and_then(|spec| spec.containers.first()).context("no container")?;
        let port = container.ports.as_ref().and_then(|ports| ports.first()).context("no port")?.container_port;
        let (namespace, name) = (self.cluster.namespace(), pod.name_any());
        let request = http::Request::get(format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{path}"));
        Ok(self.cluster.client().request_text(request.body(Vec::new())?).await?)
    }

    /// Returns the node of the operator's pod.
    pub async fn operators_node(&self) -> Result<String> {
        let operator = ListParams::default().labels("app.kubernetes.io/name=nodestack-gpu-operator");
        eventually(READY, "the operator's node", || async {
            let pods = self.pods(self.cluster.namespace()).list(&operator).await?;
            let staying = pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
            staying.and_then(|pod| pod.spec?.node_name).context("no pod")
        })
        .await
    }
}
