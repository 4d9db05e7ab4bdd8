//! Measures the operator on a fleet: its installation, while it is settled, and while nodes join. The other measurements begin with an
//! installed fleet too.

use std::{future::Future, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use cluster::clients::OPERATOR;
use cluster_client::{audit::Requests, handle::Cluster, operator_process::OperatorProcess};
use fleet::{Fleet, FleetNode, MEMBER_LABEL, Observed, Padding};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use harness::{interrupts::interrupted, outln, progress::Step};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use tokio::time::{Instant, interval, sleep, timeout};

use super::table::{Column, float, memory_limit, mib, reads, requests};

pub(super) const POLICY: &str = "benchmark";
/// The PCI device ids of V100, A100, H100 and L4, which differ in driver and kernel modules.
pub(super) const MODELS: [&str; 4] = ["1db1", "20b2", "2330", "27b8"];
pub(super) const GPUS_PER_NODE: usize = 8;
/// The time that each pod of a slow node takes to start.
const SLOW_POD_SECONDS: i64 = 120;
/// The time without changes after which a fleet is quiet: longer than any pause that the operator makes.
const QUIET: Duration = Duration::from_secs(12);

/// The figures of the installation of a fleet.
pub(super) struct Installed {
    /// The number of the operator's DaemonSets once all nodes were ready.
    daemon_sets: usize,
    /// The requests from the operator's start until it was quiet, before there was a policy.
    start: Requests,
    /// The requests from applying the policy until quiet.
    install: Requests,
    /// The times from applying the policy until every node had the label of its GPU model, until it reported all nodes as ready, and until
    /// the last change.
    times: [Duration; 3],
}

/// Measures a fleet of `nodes` nodes in a cluster without nodes.
pub(super) async fn measure(cluster: &Cluster, operator: &Path, nodes: u32, settled: Duration) -> Result<Column> {
    let (bench, Installed { daemon_sets, start, install, times }) =
        Box::pin(Bench::installed(cluster, operator, nodes)).await?;
    let settled = bench.requests_while("settled", pause(settled)).await?;
    let fast = Box::pin(bench.join("node-fast", nodes + 1, 0));
    let fast = bench.requests_while("a node joins", fast).await?;
    let slow = Box::pin(bench.join("node-slow", nodes + 2, SLOW_POD_SECONDS));
    let slow = bench.requests_while("a node joins whose pods take two minutes each", slow).await?;
    let usage = bench.operator.usage()?;

    let before = requests(&start.writes());
    let writes = before + requests(&install.writes());
    let rejected: f64 =
        [&start, &install, &settled, &fast, &slow].map(|phase| requests(&phase.rejected())).iter().sum();
    let [labelled, ready, quiet] = times.map(|time| time.as_secs_f64());
    let mut column = Column::of_fleet(nodes);
    column
        .count("writes from the bare GpuNodes until quiet", writes)
        .at_most(f64::from(nodes) * 5.0 + float(daemon_sets) + 20.0)
        .measure("the same, per node", writes / f64::from(nodes))
        .count("reads from apply until quiet", reads(&install))
        .count("rejected requests, of all phases", rejected)
        .at_most(0)
        .count("writes at the operator's start, before a policy", before)
        .count("requests while settled", requests(&settled))
        .at_most(0)
        .count("requests when one node joins", requests(&fast))
        .at_most(9)
        .count("requests when its pods take two minutes each", requests(&slow))
        .at_most(11)
        .measure("peak resident memory, MiB", mib(usage.peak_resident))
        .at_most(memory_limit(nodes, gpus(nodes)))
        .measure("resident memory at the end, MiB", mib(usage.resident))
        .measure("processor time of all phases, s", usage.cpu.as_secs_f64())
        .measure("time until all are labelled, s", labelled)
        .measure("time until the policy is Ready, s", ready)
        .measure("time until quiet, s", quiet)
        .list("from apply until quiet", install);
    Ok(column)
}

/// Returns the number of GPUs of a fleet.
pub(super) fn gpus(nodes: u32) -> u32 {
    nodes * u32::try_from(GPUS_PER_NODE).unwrap_or_default()
}

/// Returns the name of a node of the fleet.
pub(super) fn name(index: usize) -> String {
    format!("node-{index:04}")
}

fn node(name: &str, model: &str, slow: i64) -> FleetNode {
    let mut node = FleetNode::with_gpus(name, model, GPUS_PER_NODE);
    node.padding = Padding::REALISTIC;
    node.faults.slow = slow;
    node
}

/// A fleet and its operator.
pub(super) struct Bench<'a> {
    cluster: &'a Cluster,
    pub fleet: Fleet,
    pub operator: OperatorProcess,
    deadline: Duration,
}

impl<'a> Bench<'a> {
    /// Installs a fleet of `nodes` nodes in a cluster without nodes, and returns it once it is ready and quiet, with the
    /// figures of the installation.
    pub(super) async fn installed(cluster: &'a Cluster, operator: &Path, nodes: u32) -> Result<(Self, Installed)> {
        let fleet = Fleet::start(cluster).await?;
        let members = (0..nodes as usize).map(|index| node(&name(index), MODELS[index % MODELS.len()], 0));
        // Enough for a slow node, which is the longest phase of a small fleet, and in proportion to the size.
        let deadline = Duration::from_mins(10) + Duration::from_secs(1) * nodes;
        let joined = register(cluster, &fleet, members, deadline);
        step("nodes join and are detected", || progress(&fleet), joined).await?;

        let begun = cluster.audit().mark()?;
        let operator = OperatorProcess::start(cluster, operator)?;
        let bench = Self { cluster, fleet, operator, deadline };
        bench.step("the operator starts and probes report", bench.reported(nodes)).await?;
        let start = cluster.audit().requests(OPERATOR, begun)?;
        let installed = Box::pin(bench.install(nodes, start)).await?;
        Ok((bench, installed))
    }

    /// Applies the policy, and waits until all nodes are ready and the fleet is quiet.
    async fn install(&self, nodes: u32, start: Requests) -> Result<Installed> {
        let mark = self.cluster.audit().mark()?;
        let began = Instant::now();
        let times = self
            .step(
                "the policy is applied, until quiet",
                Box::pin(async {
                    self.apply(json!({})).await?;
                    let labelled = async {
                        let is_labelled = |_: &str, node: &Observed| node.labels.contains_key(keys::MODEL);
                        self.fleet.until("labels", self.deadline, is_labelled).await?;
                        Ok(began.elapsed())
                    };
                    let ready = async {
                        self.ready(nodes).await?;
                        anyhow::Ok(began.elapsed())
                    };
                    let (labelled, ready) = tokio::try_join!(labelled, ready)?;
                    Ok([labelled, ready, self.quiet().await?.duration_since(began)])
                }),
            )
            .await?;
        let install = self.cluster.audit().requests(OPERATOR, mark)?;
        print_requests(&install);
        let managed = ListParams::default().labels(&format!("{}={}", keys::MANAGED_BY, keys::MANAGER));
        let daemon_sets = Api::<DaemonSet>::all(self.cluster.client()).list_metadata(&managed).await?.items.len();
        Ok(Installed { daemon_sets, start, install, times })
    }

    /// Applies the policy with this spec, for all nodes of the fleet.
    pub(super) async fn apply(&self, mut spec: Value) -> Result<()> {
        spec["nodeSelector"] = json!({"matchLabels": {MEMBER_LABEL.0: MEMBER_LABEL.1}});
        let policy = json!({
            "apiVersion": "gpu.nodestack.dev/v1alpha1",
            "kind": "ClusterGpuPolicy",
            "metadata": {"name": POLICY},
            "spec": spec,
        });
        let params = PatchParams::apply("benchmark").force();
        self.policies().patch(POLICY, &params, &Patch::Apply(policy)).await?;
        Ok(())
    }

    /// Adds a node to a ready fleet, and waits until all nodes are ready and the fleet is quiet again.
    async fn join(&self, name: &str, nodes: u32, slow: i64) -> Result<()> {
        self.fleet.join([node(name, MODELS[0], slow)]).await?;
        self.ready(nodes).await?;
        self.quiet().await.map(drop)
    }

    /// Waits until the policy reports `nodes` nodes as ready, and checks that they are.
    async fn ready(&self, nodes: u32) -> Result<()> {
        let all_ready = move |policy: Option<&ClusterGpuPolicy>| policy.is_some_and(|policy| is_ready(policy, nodes));
        let waited = timeout(self.deadline, Box::pin(await_condition(self.policies(), POLICY, all_ready))).await;
        let Ok(waited) = waited else {
            let found = self.policies().get(POLICY).await?.status.map(|status| status.nodes);
            bail!("not Ready within {} s: {found:?}", self.deadline.as_secs());
        };
        waited?;
        let published = |name: &str| self.fleet.observe(name).and_then(|node| node.gpus).unwrap_or_default() > 0;
        let early = self.fleet.names().into_iter().find(|name| !published(name));
        early.map_or(Ok(()), |name| bail!("the policy was Ready before {name} was ready"))
    }

    /// Waits until nothing changes any more, and returns the time of the last change.
    pub(super) async fn quiet(&self) -> Result<Instant> {
        self.fleet.quiet(QUIET, self.deadline).await
    }

    /// Waits until nothing changes any more, and checks that every probe has reported.
    async fn reported(&self, nodes: u32) -> Result<()> {
        self.quiet().await?;
        let known = Api::<GpuNode>::all(self.cluster.client()).list(&ListParams::default()).await?.items;
        let is_reported = |node: &&GpuNode| node.status.as_ref().is_some_and(|status| status.report.is_some());
        let reports = known.iter().filter(is_reported).count();
        ensure!(reports == nodes as usize, "only {reports} of {nodes} nodes have a report");
        Ok(())
    }

    pub(super) fn policies(&self) -> Api<ClusterGpuPolicy> {
        Api::all(self.cluster.client())
    }

    /// Runs a phase and returns the operator's requests during it, without watches.
    pub(super) async fn requests_while(&self, what: &str, phase: impl Future<Output = Result<()>>) -> Result<Requests> {
        let mark = self.cluster.audit().mark()?;
        self.step(what, phase).await?;
        let all = self.cluster.audit().requests(OPERATOR, mark)?;
        print_requests(&all);
        Ok(all.without_watches())
    }

    async fn step<T>(&self, what: &str, phase: impl Future<Output = Result<T>>) -> Result<T> {
        step(what, || progress(&self.fleet), phase).await
    }
}

fn progress(fleet: &Fleet) -> String {
    format!("GPUs published {} times", fleet.published().len())
}

/// Adds nodes and waits for the reports of all nodes.
async fn register(
    cluster: &Cluster,
    fleet: &Fleet,
    nodes: impl Iterator<Item = FleetNode>,
    deadline: Duration,
) -> Result<()> {
    fleet.join(nodes).await?;
    fleet.quiet(QUIET, deadline).await?;
    let known = Api::<GpuNode>::all(cluster.client()).list_metadata(&ListParams::default()).await?.items.len();
    let nodes = fleet.names().len();
    ensure!(known == nodes, "only {known} of {nodes} nodes have a GpuNode");
    Ok(())
}

/// Returns whether a policy is Ready at its current generation, with `nodes` nodes.
fn is_ready(policy: &ClusterGpuPolicy, nodes: u32) -> bool {
    let Some(status) = &policy.status else { return false };
    let current = status.observed_generation == policy.metadata.generation;
    let ready = status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    current && ready && status.nodes.ready == nodes
}

/// Runs a phase and prints its progress, described by `detail`. Fails early when a stop is requested.
pub(super) async fn step<T>(
    what: &str,
    detail: impl Fn() -> String,
    phase: impl Future<Output = Result<T>>,
) -> Result<T> {
    let step = Step::start(what);
    let mut phase = std::pin::pin!(phase);
    let mut seconds = interval(Duration::from_secs(1));
    let outcome = loop {
        tokio::select! {
            outcome = &mut phase => break outcome.with_context(|| what.to_owned())?,
            _ = seconds.tick() => {
                if interrupted() {
                    bail!("interrupted");
                }
                step.tick(&detail());
            }
        }
    };
    step.done();
    Ok(outcome)
}

/// Runs a phase in which nothing is done.
pub(super) async fn pause(time: Duration) -> Result<()> {
    sleep(time).await;
    Ok(())
}

/// Prints the requests of a phase by kind, and the objects with the most requests.
pub(super) fn print_requests(requests: &Requests) {
    outln!("      {requests}");
    let mut names: Vec<_> = requests.without_watches().by_name().into_iter().collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let most: Vec<String> = names.iter().take(5).map(|(name, count)| format!("{count} {name:?}")).collect();
    outln!("      {} objects, most requests: {}", names.len(), most.join(", "));
}
