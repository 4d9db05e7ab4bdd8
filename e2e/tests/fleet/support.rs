//! What every test needs: the operator as a process, a fleet, a policy, and what came of it.

use std::{future::Future, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Fleet, OperatorProcess, eventually, fleet::MEMBER, operator_process::Build};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};

/// No fleet of these tests takes longer for anything.
pub const DEADLINE: Duration = Duration::from_mins(3);
/// Silence after which nothing more is expected: longer than any pause that the operator makes by itself.
pub const QUIET: Duration = Duration::from_secs(12);
/// The policy's name.
pub const POLICY: &str = "simulated";

/// Runs a test with an empty fleet and the operator as a process; a failure says what the cluster looked like.
pub fn test<F, Fut>(body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output = Result<Fixture>>,
{
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome: Result<()> = runtime.block_on(async {
        let fixture = Fixture::new().await.context("a clean start")?;
        body(fixture).await?.end().await
    });
    if let Err(error) = outcome {
        panic!("{error:?}");
    }
}

/// The cluster, the operator and the fleet.
pub struct Fixture {
    pub cluster: Cluster,
    pub operator: OperatorProcess,
    pub fleet: Fleet,
}

impl Fixture {
    async fn new() -> Result<Self> {
        let cluster = Cluster::connect().await?;
        if cluster.kubectl(&["get", "deployment/gpu-operator", "-n", cluster.namespace()]).is_err() {
            cluster.install_chart()?;
        }
        let policies = Api::<ClusterGpuPolicy>::all(cluster.client());
        let operator = OperatorProcess::start(&cluster, Build::Debug)?;
        policies.delete_collection(&DeleteParams::default(), &kube::api::ListParams::default()).await?;
        let fleet = Fleet::start(&cluster).await?;
        Ok(Self { cluster, operator, fleet })
    }

    async fn end(self) -> Result<()> {
        self.policies().delete(POLICY, &DeleteParams::default()).await?;
        eventually(DEADLINE, "the end of the policy", || async {
            ensure!(self.policies().get_opt(POLICY).await?.is_none(), "it is still there");
            Ok(())
        })
        .await?;
        self.fleet.end().await?;
        self.operator.give_back()
    }

    pub fn policies(&self) -> Api<ClusterGpuPolicy> {
        Api::all(self.cluster.client())
    }

    /// Applies a policy of this spec, written as YAML, to the fleet's nodes alone.
    pub async fn apply(&self, spec: &str) -> Result<()> {
        let mut policy = ClusterGpuPolicy::new(POLICY, serde_yaml::from_str(spec)?);
        let members = serde_json::json!({"matchLabels": {MEMBER.0: MEMBER.1}});
        policy.spec.node_selector = Some(serde_json::from_value(members)?);
        self.policies().patch(POLICY, &PatchParams::apply("test").force(), &Patch::Apply(&policy)).await?;
        Ok(())
    }

    pub fn gpu_nodes(&self) -> Api<GpuNode> {
        Api::all(self.cluster.client())
    }
}
