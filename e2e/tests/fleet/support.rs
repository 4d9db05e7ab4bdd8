//! Helpers for all tests: the operator as a process, a fleet, a policy, and the resulting statuses.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cluster::clients::OPERATOR;
use cluster_client::{handle::Cluster, operator_process::OperatorProcess};
use fleet::{Fleet, MEMBER_LABEL, Published};
use futures::StreamExt;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, GpuNodeStatus, Phase, keys, policy::DeletionPolicy, reason::Reason};
use harness::{cargo::Build, wait::eventually};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Node},
    jiff::SignedDuration,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher, watcher::Config},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The time limit of all waits, for what never comes: several times what the longest, an update of 200 nodes, takes on two free cores.
pub const DEADLINE: Duration = Duration::from_mins(15);
/// The time without changes after which a fleet is quiet: longer than any pause that the operator makes.
pub const QUIET: Duration = Duration::from_secs(12);
/// The time without changes after which the reaction to one event is complete, except for what waits for time to pass.
pub const SOON_QUIET: Duration = Duration::from_secs(2);
/// The time after which the operator writes another transient phase: its `NODE_PROGRESS`.
const LASTING: SignedDuration = SignedDuration::from_secs(10);
/// The policy's name.
pub const POLICY: &str = "simulated";

/// Runs a test with an empty fleet and the operator as a process; a failure prints the state of the cluster. Only one
/// test runs at a time, because there is one operator.
pub fn test<F, Fut>(body: F)
where
    F: FnOnce(Fixture) -> Fut,
    Fut: Future<Output = Result<Fixture>>,
{
    // Whether the cluster could not be made clean. It will not be for the next test either, which would only wait as long.
    static IS_UNCLEAN: Mutex<bool> = Mutex::new(false);
    let mut is_unclean = IS_UNCLEAN.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(!*is_unclean, "an earlier test had no clean start");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome: Result<()> = runtime.block_on(async {
        let fixture = Fixture::new().await.context("a clean start").inspect_err(|_| *is_unclean = true)?;
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
        let cluster = Cluster::connect_to_simulated().await?;
        if cluster.kubectl(&["get", "deployment/nodestack-gpu-operator", "-n", cluster.namespace()]).is_err() {
            cluster.install_chart()?;
        }
        let policies = Api::<ClusterGpuPolicy>::all(cluster.client());
        let operator = OperatorProcess::start(&cluster, &Build::Debug.file(cluster.paths(), "gpu-operator"))?;
        // A pod that the tests on the real nodes have left must not keep a policy.
        let at_once = Patch::Merge(json!({"spec": {"deletionPolicy": "Now"}}));
        for policy in policies.list(&ListParams::default()).await? {
            policies.patch(&policy.name_any(), &PatchParams::default(), &at_once).await?;
        }
        policies.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        // A policy that is still being deleted would delete what is applied now.
        eventually(DEADLINE, "the end of all policies", || async {
            let left = policies.list(&ListParams::default()).await?.items;
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await?;
        let fleet = Fleet::start(&cluster).await?;
        Ok(Self { cluster, operator, fleet })
    }

    async fn end(self) -> Result<()> {
        // An example's nodes would leave after a minute.
        let at_once = Patch::Merge(json!({"spec": {"deletionPolicy": "Now"}}));
        self.policies().patch(POLICY, &PatchParams::default(), &at_once).await?;
        self.policies().delete(POLICY, &DeleteParams::default()).await?;
        eventually(DEADLINE, "the end of the policy", || async {
            ensure!(self.policies().get_opt(POLICY).await?.is_none(), "the policy still exists");
            Ok(())
        })
        .await?;
        self.fleet.end().await?;
        // The Deployment is not scaled up for each test to be scaled down again by the next one: a pod that has just started may need
        // its whole grace period to end.
        self.operator.stop()
    }

    pub fn policies(&self) -> Api<ClusterGpuPolicy> {
        Api::all(self.cluster.client())
    }

    /// Applies a policy with this spec, in YAML, that selects only the fleet's nodes.
    pub async fn apply(&self, spec: &str) -> Result<()> {
        let mut policy = ClusterGpuPolicy::new(POLICY, serde_yaml::from_str(spec)?);
        policy.spec.deletion_policy = Some(DeletionPolicy::Now);
        let members = json!({"matchLabels": {MEMBER_LABEL.0: MEMBER_LABEL.1}});
        policy.spec.node_selector = Some(serde_json::from_value(members)?);
        self.policies().patch(POLICY, &PatchParams::apply("test").force(), &Patch::Apply(&policy)).await?;
        Ok(())
    }

    pub fn gpu_nodes(&self) -> Api<GpuNode> {
        Api::all(self.cluster.client())
    }

    pub async fn policy(&self) -> Result<ClusterGpuPolicy> {
        Ok(self.policies().get(POLICY).await?)
    }

    /// Returns the statuses of all GpuNodes of the fleet, by node.
    pub async fn statuses(&self) -> Result<BTreeMap<String, GpuNodeStatus>> {
        let names: BTreeSet<String> = self.fleet.names().into_iter().collect();
        let all = self.gpu_nodes().list(&ListParams::default()).await?.into_iter();
        let members = all.filter(|gpu_node| names.contains(&gpu_node.name_any()));
        Ok(members.map(|gpu_node| (gpu_node.name_any(), gpu_node.status.unwrap_or_default())).collect())
    }

    /// Waits until a node's status has this reason.
    pub async fn until_reason(&self, node: &str, reason: Reason) -> Result<()> {
        eventually(DEADLINE, &format!("{node}: {reason}"), || async {
            let status = self.gpu_nodes().get(node).await?.status.unwrap_or_default();
            ensure!(status.reason() == Some(reason), "{:?} {:?}: {}", status.phase, status.reason(), status.message);
            Ok(())
        })
        .await
    }

    /// Waits until a condition of the policy's current generation has this status.
    pub async fn until_condition(&self, kind: &str, wanted: &str) -> Result<()> {
        eventually(DEADLINE, &format!("condition {kind}={wanted}"), || async {
            let policy = self.policy().await?;
            let status = policy.status.context("no status")?;
            ensure!(status.observed_generation == policy.metadata.generation, "not observed yet");
            let condition =
                status.conditions.iter().find(|condition| condition.type_ == kind).context("no such condition")?;
            ensure!(condition.status == wanted, "{condition:?}");
            Ok(())
        })
        .await
    }

    /// Returns the operator's DaemonSets.
    pub async fn daemon_sets(&self) -> Result<BTreeMap<String, DaemonSet>> {
        let api = Api::<DaemonSet>::namespaced(self.cluster.client(), self.cluster.namespace());
        let sets = api.list(&ListParams::default().labels(keys::STAGE)).await?;
        Ok(sets.into_iter().map(|set| (set.name_any(), set)).collect())
    }

    /// Returns the generation of each DaemonSet.
    pub async fn generations(&self) -> Result<BTreeMap<String, Option<i64>>> {
        Ok(self.daemon_sets().await?.into_iter().map(|(name, set)| (name, set.metadata.generation)).collect())
    }

    /// Returns the state of each node that the operator writes: its GpuNode, and the labels of its Node. The resource
    /// version of the Node is not included, because other components write to it, too.
    async fn lines(&self) -> Result<BTreeMap<String, Value>> {
        let nodes = Api::<Node>::all(self.cluster.client()).list(&ListParams::default()).await?;
        let gpu_nodes = self.gpu_nodes().list(&ListParams::default()).await?;
        let gpu_nodes: BTreeMap<_, _> = gpu_nodes.into_iter().map(|node| (node.name_any(), node)).collect();
        let line = |node: Node| {
            let name = node.name_any();
            let line = json!({"labels": node.labels(), "gpuNode": gpu_nodes.get(&name)});
            (name, line)
        };
        Ok(nodes.into_iter().map(line).collect())
    }

    /// Changes these nodes, waits until the fleet is quiet, and checks that no DaemonSet and no other node's status has
    /// changed, and that the operator has written only to these nodes, to the policy's status and to Events.
    pub async fn only_touches(
        &self,
        what: &str,
        nodes: &[&str],
        change: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let (mut before, generations) = (self.lines().await?, self.generations().await?);
        let mark = self.cluster.audit().mark()?;
        change.await.context(what.to_owned())?;
        self.fleet.quiet(SOON_QUIET, DEADLINE).await?;
        let mut after = self.lines().await?;
        for node in nodes {
            before.remove(*node);
            after.remove(*node);
        }
        let touched: Vec<_> = after.iter().filter(|(name, line)| before.get(*name) != Some(line)).collect();
        let changes = touched.iter().take(3).map(|(name, line)| {
            let before = before.get(*name).unwrap_or(&Value::Null);
            format!("\n{name}: {}", json_patch::diff(before, line))
        });
        let changes: String = changes.collect();
        ensure!(touched.is_empty(), "{nodes:?} {what}: touched {} nodes as well{changes}", touched.len());
        ensure!(before.len() == after.len(), "{nodes:?} {what}: {} nodes became {}", before.len(), after.len());
        ensure!(self.generations().await? == generations, "{nodes:?} {what}: a DaemonSet changed");
        let elsewhere = self.cluster.audit().requests(OPERATOR, mark)?.writes().only(|request| {
            let is_expected = ["clustergpupolicies/status", "events"].contains(&request.resource.as_str());
            !is_expected && !nodes.contains(&request.name.as_str())
        });
        ensure!(elsewhere.count() == 0, "{nodes:?} {what}: the operator wrote {elsewhere}");
        Ok(())
    }

    /// Records all statuses of the policy from now on.
    pub fn watch_policy(&self) -> Seen<ClusterGpuPolicy> {
        Seen::of(self.policies(), Config::default().fields(&format!("metadata.name={POLICY}")))
    }

    /// Records all statuses of the nodes from now on.
    pub fn watch_nodes(&self) -> Seen<GpuNode> {
        Seen::of(self.gpu_nodes(), Config::default())
    }
}

/// All recorded states of objects.
pub struct Seen<K> {
    seen: Arc<Mutex<Vec<K>>>,
    task: tokio::task::JoinHandle<()>,
}

impl<K> Seen<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn of(api: Api<K>, config: Config) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut objects = pin!(watcher(api, config).default_backoff().applied_objects());
            while let Some(object) = objects.next().await {
                if let Ok(object) = object {
                    kept.lock().expect("the list").push(object);
                }
            }
        });
        Self { seen, task }
    }

    fn end(self) -> Vec<K> {
        self.task.abort();
        std::mem::take(&mut *self.seen.lock().expect("the list"))
    }
}

/// Returns the GPUs that a node had published at the time of an object's version.
fn published_before(published: &[Published], version: Option<String>) -> Result<BTreeMap<&str, u32>> {
    let version: u64 = version.context("no version")?.parse()?;
    let before = published.iter().filter(|change| change.version < version);
    Ok(before.map(|change| (change.node.as_str(), change.gpus)).collect())
}

impl Seen<GpuNode> {
    /// Compares every status with the GPUs that its node had published when it was written: no status is Ready before
    /// all of the node's GPUs are allocatable.
    pub fn never_early(&self, f: &Fixture, gpus: &BTreeMap<String, u32>) -> Result<()> {
        let published = f.fleet.published();
        let seen = self.seen.lock().expect("the list");
        let ready = seen.iter().filter(|gpu_node| gpu_node.status.as_ref().is_some_and(GpuNodeStatus::is_ready));
        let mut statuses = 0;
        for gpu_node in ready {
            let name = gpu_node.name_any();
            let offers = published_before(&published, gpu_node.resource_version())?.get(name.as_str()).copied();
            ensure!(offers == gpus.get(&name).copied(), "{name} is reported as Ready, but has published {offers:?}");
            statuses += 1;
        }
        ensure!(statuses > 0, "nothing was watched");
        Ok(())
    }

    /// Returns the sequences of reasons that nodes have reported, each with its nodes.
    pub fn reasons(&self) -> BTreeMap<Vec<Reason>, BTreeSet<String>> {
        let mut of_node: BTreeMap<String, Vec<Reason>> = BTreeMap::new();
        for gpu_node in &*self.seen.lock().expect("the list") {
            if let Some(reason) = gpu_node.status.as_ref().and_then(GpuNodeStatus::reason) {
                let reasons = of_node.entry(gpu_node.name_any()).or_default();
                if reasons.last() != Some(&reason) {
                    reasons.push(reason);
                }
            }
        }
        let mut nodes: BTreeMap<Vec<Reason>, BTreeSet<String>> = BTreeMap::new();
        for (node, reasons) in of_node {
            nodes.entry(reasons).or_default().insert(node);
        }
        nodes
    }

    /// Returns the nodes whose revision has changed, and the maximum number that changed at the same time.
    pub fn moves(self) -> Result<(BTreeSet<String>, usize)> {
        let mut seen = self.end();
        let version = |gpu_node: &GpuNode| gpu_node.resource_version().and_then(|version| version.parse::<u64>().ok());
        seen.sort_by_key(version);
        let (mut all, mut moving, mut most) = (BTreeSet::new(), BTreeSet::new(), 0);
        for gpu_node in seen {
            let name = gpu_node.name_any();
            if gpu_node.spec.rollout.is_some() {
                all.insert(name.clone());
                moving.insert(name);
            } else {
                moving.remove(&name);
            }
            most = most.max(moving.len());
        }
        ensure!(!all.is_empty(), "nothing was watched");
        Ok((all, most))
    }

    /// Returns how many transitional phases of nodes lasted long enough to be written. The slower the machine, the more
    /// there are.
    pub fn lasting_phases(self) -> usize {
        let mut last: BTreeMap<String, (SignedDuration, bool)> = BTreeMap::new();
        let mut lasting = 0;
        for gpu_node in self.end() {
            let Some(status) = &gpu_node.status else { continue };
            let (Some(since), Some(reason)) = (status.since(), status.reason()) else { continue };
            let passing = !matches!(status.phase, Phase::Ready | Phase::Unmanaged) && !reason.is_failure();
            let since = since.as_duration();
            let before = last.insert(gpu_node.name_any(), (since, passing));
            let lasted = |(before, was_passing): (SignedDuration, bool)| was_passing && since - before >= LASTING;
            lasting += usize::from(passing && before.is_some_and(lasted));
        }
        lasting
    }
}

impl Seen<ClusterGpuPolicy> {
    /// Compares every status with the GPUs that the nodes had published when it was written: no node counts as ready
    /// before all of its GPUs are allocatable, and the policy is not Ready before this percentage of its nodes is.
    pub fn never_early(self, f: &Fixture, gpus: &BTreeMap<String, u32>, percent: u32) -> Result<()> {
        let published = f.fleet.published();
        let seen = self.end();
        let mut statuses = 0;
        for policy in &seen {
            let Some(status) = &policy.status else { continue };
            let offering = published_before(&published, policy.resource_version())?;
            let able = offering.iter().filter(|(node, offered)| gpus.get(**node) == Some(offered)).count();
            let able = u32::try_from(able)?;
            ensure!(
                status.nodes.ready <= able,
                "{} nodes reported as ready, but only {able} are: {status:?}",
                status.nodes.ready
            );
            let offered: u32 = offering.values().sum();
            ensure!(status.gpus.allocatable <= offered, "only {offered} GPUs are published: {status:?}");
            let enough = able * 100 >= percent * (status.nodes.total - status.nodes.excluded);
            ensure!(!is_ready(policy) || enough, "Ready with only {able} ready nodes: {status:?}");
            statuses += 1;
        }
        let ready = seen.iter().filter(|policy| is_ready(policy)).count();
        ensure!(
            statuses >= 3 && ready >= 1 && ready < statuses,
            "{ready} of {statuses} statuses are Ready: nothing was watched"
        );
        Ok(())
    }
}

fn is_ready(policy: &ClusterGpuPolicy) -> bool {
    let conditions = policy.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
