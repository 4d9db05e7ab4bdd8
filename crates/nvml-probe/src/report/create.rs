//! Creates this node's GpuNode.

use gpu_operator_crd::gpunode::GpuNode;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::json;

/// The outcome of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The GpuNode was created.
    New,
    /// The operator, or another agent of the node, has created it already.
    Present,
}

/// The API of GpuNodes. Objects are not parsed: another version of the operator may have written them.
pub(super) fn api(client: Client) -> (Api<DynamicObject>, ApiResource) {
    let resource = ApiResource::erase::<GpuNode>(&());
    (Api::all_with(client, &resource), resource)
}

/// Creates a bare GpuNode, without a status and with an empty spec.
pub(super) async fn create(
    api: &Api<DynamicObject>,
    resource: &ApiResource,
    node: &str,
    manager: &str,
) -> Result<Created, kube::Error> {
    let bare = DynamicObject::new(node, resource).data(json!({"spec": {}}));
    let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
    match api.create(&params, &bare).await {
        Ok(_) => Ok(Created::New),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Created::Present),
        Err(error) => Err(error),
    }
}
