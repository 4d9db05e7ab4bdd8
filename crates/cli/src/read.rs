//! Reads from the API server: paged, and with the missing right in the error.

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde::de::DeserializeOwned;
use thiserror::Error;

pub const PAGE: u32 = 500;

#[derive(Debug, Error)]
pub enum ReadError {
    #[error("the right to {0} is missing; bind the ClusterRole nodestack-gpu-operator-cli of the chart")]
    Forbidden(String),
    #[error("the cluster does not have the resource {0}; install the chart, which contains the CRDs")]
    NotInstalled(String),
    #[error("the API server does not answer: {0}")]
    Unreachable(#[source] kube::Error),
    #[error("the API server rejects the request to {0}: {1}")]
    Rejected(String, #[source] kube::Error),
}

#[derive(Debug)]
pub struct Listed<K> {
    pub items: Vec<K>,
    /// The names of objects that cannot be parsed, for example because they are of a later version.
    pub unreadable: Vec<String>,
}

/// Reads the objects of a kind in a namespace, or in all namespaces, page by page.
pub async fn list<K>(client: &Client, namespace: Option<&str>, params: ListParams) -> Result<Listed<K>, ReadError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let mut found = Listed { items: Vec::new(), unreadable: Vec::new() };
    each(client, namespace, &ApiResource::erase::<K>(&()), params, |object| {
        let name = object.name_any();
        match object.try_parse() {
            Ok(object) => found.items.push(object),
            Err(_) => found.unreadable.push(name),
        }
    })
    .await?;
    Ok(found)
}

/// Reads the objects of a resource page by page, and passes each to `take` before the next page is read.
pub async fn each(
    client: &Client,
    namespace: Option<&str>,
    resource: &ApiResource,
    params: ListParams,
    mut take: impl FnMut(DynamicObject),
) -> Result<(), ReadError> {
    let api = dynamic(client, namespace, resource);
    let mut page = params.limit(PAGE);
    loop {
        let list = api.list(&page).await.map_err(|error| classify("list", resource, None, error))?;
        list.items.into_iter().for_each(&mut take);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Reads an object, or `None` if it does not exist. One that cannot be parsed is rejected.
pub async fn get<K>(client: &Client, namespace: Option<&str>, name: &str) -> Result<Option<K>, ReadError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let resource = ApiResource::erase::<K>(&());
    let api = dynamic(client, namespace, &resource);
    let found = match api.get_opt(name).await {
        Ok(found) => found,
        Err(error) => return Err(classify("get", &resource, Some(name), error)),
    };
    let parse = |object: DynamicObject| object.try_parse();
    let parsed = found.map(parse).transpose();
    parsed.map_err(|error| {
        let error = kube::Error::SerdeError(serde::de::Error::custom(error));
        ReadError::Rejected(format!("get {} {name}", resource.plural), error)
    })
}

fn dynamic(client: &Client, namespace: Option<&str>, resource: &ApiResource) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// Returns the error of a request. `name` is of a single object.
pub fn classify(verb: &str, resource: &ApiResource, name: Option<&str>, error: kube::Error) -> ReadError {
    let kind = if resource.group.is_empty() {
        resource.plural.clone()
    } else {
        format!("{}.{}", resource.plural, resource.group)
    };
    match &error {
        kube::Error::Api(status) if status.is_forbidden() => ReadError::Forbidden(format!("{verb} {kind}")),
        // A list, or an object whose absence is not an error. For a group that is not served, the answer is plain text.
        kube::Error::Api(status) if status.is_not_found() || status.code == 404 => ReadError::NotInstalled(kind),
        kube::Error::Api(_) | kube::Error::SerdeError(_) => {
            let name = name.map(|name| format!(" {name}")).unwrap_or_default();
            ReadError::Rejected(format!("{verb} {kind}{name}"), error)
        }
        _ => ReadError::Unreachable(error),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Pod};
    use serde_json::json;
    use test_api_server::{Api, Fault};

    use super::*;

    #[tokio::test]
    async fn lists_are_paged_and_contain_what_can_be_parsed() {
        let api = Api::new();
        for index in 0..PAGE {
            let mut node = Node::default();
            node.metadata.name = Some(format!("n{index}"));
            api.add(&node);
        }
        api.put("/api/v1/nodes/later", json!({"metadata": {"name": "later"}, "spec": "changed"}));
        let listed = list::<Node>(&api.client(), None, ListParams::default()).await.expect("a list");
        assert_eq!((listed.items.len(), listed.unreadable.as_slice()), (500, &["later".to_owned()][..]));
        assert_eq!(api.take().len(), 2);
    }

    #[tokio::test]
    async fn an_error_names_the_missing_right() {
        let api = Api::new();
        api.forbid("nodes").put("/api/v1/namespaces/a/pods/p", json!({"metadata": {"name": "p"}, "spec": 1}));
        let client = api.client();
        let message = |error: ReadError| error.to_string();
        let error = list::<Node>(&client, None, ListParams::default()).await.expect_err("an error");
        assert!(message(error).starts_with("the right to list nodes is missing"));
        let error = get::<Node>(&client, None, "a").await.expect_err("an error");
        assert!(message(error).starts_with("the right to get nodes is missing"));
        assert!(get::<Pod>(&client, Some("a"), "other").await.expect("an answer").is_none());
        let error = get::<Pod>(&client, Some("a"), "p").await.expect_err("an error");
        assert!(message(error).starts_with("the API server rejects the request to get pods p"), "parsed");
    }

    #[tokio::test]
    async fn a_group_that_is_not_served_is_not_installed() {
        let api = Api::new();
        api.fail(|_| true, Fault::NotServed);
        let error = list::<Node>(&api.client(), None, ListParams::default()).await.expect_err("an error");
        assert!(matches!(error, ReadError::NotInstalled(_)), "{error}");
    }
}
