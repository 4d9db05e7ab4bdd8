//! The DRA driver can write the ResourceSlices of its own node's GPUs and nothing else: its role and the admission policy deny all other
//! writes.

use anyhow::{Context, Result};
use cluster_client::ignore_not_found;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{account, account_of_pod, denied};
use crate::support::{Fixture, test};

/// The DRA driver's service account.
const ACCOUNT: &str = "nodestack-dra-driver";
/// The name of its driver.
const DRIVER: &str = "gpu.nvidia.com";
/// A pod with that account, which never starts. One test uses it.
const POD: &str = "dra-admission";
/// A ResourceSlice of node `other`, which does not exist.
const OTHERS: &str = "dra-admission-other";

fn kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceSlice"))
}

/// Returns a ResourceSlice with one GPU, of a pool, for nodes such as `{"nodeName": "a"}`.
fn slice(driver: &str, pool: &str, mut nodes: Value) -> DynamicObject {
    nodes["driver"] = driver.into();
    nodes["pool"] = json!({"name": pool, "generation": 1, "resourceSliceCount": 1});
    nodes["devices"] = json!([{"name": "gpu-0"}]);
    DynamicObject::new(&format!("dra-admission-{pool}"), &kind()).data(json!({"spec": nodes}))
}

fn of_node(node: &str) -> DynamicObject {
    slice(DRIVER, node, json!({"nodeName": node}))
}

/// Creates the pod and returns a client with its token.
async fn driver(f: &Fixture, pods: &Api<Pod>) -> Result<Client> {
    let container = json!({"name": "main", "image": "localhost:5999/none:1", "imagePullPolicy": "Never"});
    let spec = json!({"nodeName": f.host.name(), "serviceAccountName": ACCOUNT, "containers": [container]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    account_of_pod(f, ACCOUNT, POD).await
}

/// All writes of the driver are dry runs: a slice of this node would count as a third-party DRA driver.
async fn writes(f: &Fixture, client: Client) -> Result<()> {
    let own = &f.host.name();
    let api = Api::<DynamicObject>::all_with(client.clone(), &kind());
    let create = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&create, &of_node(own)).await.context("its own slice")?;
    denied("another's", api.create(&create, &of_node("other")).await, "of that node only, not of other")?;
    let everywhere = slice(DRIVER, own, json!({"allNodes": true}));
    denied("of all nodes", api.create(&create, &everywhere).await, "of that node only, not of several nodes")?;
    for (driver, pool) in [("other.example.com", own.as_str()), (DRIVER, "other")] {
        let slice = slice(driver, pool, json!({"nodeName": own}));
        denied(driver, api.create(&create, &slice).await, "whose pool has the name of its own node")?;
    }
    let unbound = Api::<DynamicObject>::all_with(account(f, ACCOUNT).await?, &kind());
    denied("without a node", unbound.create(&create, &of_node(own)).await, "names no node")?;

    let listed = api.list(&ListParams::default()).await?;
    let mut changed =
        listed.items.into_iter().find(|it| it.name_any() == OTHERS).context("the slice of another node")?;
    changed.data["spec"]["pool"]["generation"] = 2.into();
    denied("a change", api.replace(OTHERS, &create, &changed).await, "of that node only, not of other")?;
    denied(
        "a deletion",
        api.delete(OTHERS, &DeleteParams::default().dry_run()).await,
        "of that node only, not of other",
    )?;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    denied("a patch", api.patch(OTHERS, &PatchParams::default(), &Patch::Merge(label)).await, "cannot patch")?;

    let nodes = Api::<Node>::all(client.clone());
    nodes.get(own).await.context("its own Node")?;
    denied("all Nodes", nodes.list(&ListParams::default()).await, "cannot list")?;
    denied("pods", Api::<Pod>::all(client).list(&ListParams::default()).await, "cannot list")
}

#[test]
fn the_dra_driver_can_write_only_slices_of_its_node() {
    test(async |f| {
        let pods = f.pods(f.cluster.namespace());
        let slices = Api::<DynamicObject>::all_with(f.cluster.client(), &kind());
        let remove = async || -> Result<()> {
            ignore_not_found(pods.delete(POD, &DeleteParams::default().grace_period(0)).await)?;
            ignore_not_found(slices.delete(OTHERS, &DeleteParams::default()).await)?;
            Ok(())
        };
        remove().await?;
        slices.create(&PostParams::default(), &of_node("other")).await?;
        let outcome = match driver(&f, &pods).await {
            Ok(client) => writes(&f, client).await,
            Err(error) => Err(error),
        };
        remove().await?;
        outcome
    });
}
