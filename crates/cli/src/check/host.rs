//! Nodes, without most of what the API server stores about them.

use std::borrow::Cow;

use gpu_operator_plan::{
    catalogue::Catalogue,
    inventory::gpus,
    world::{NodeFacts, TrimmedNode},
};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde_json::Value;

/// A node.
#[derive(Deserialize, Clone, Debug)]
#[serde(try_from = "Value")]
pub struct Host {
    meta: ObjectMeta,
    /// The facts that the plan depends on.
    pub facts: NodeFacts,
    /// The name of its operating system, such as `Ubuntu 24.04.2 LTS`.
    pub os_image: String,
}

impl TryFrom<Value> for Host {
    type Error = serde_json::Error;

    fn try_from(node: Value) -> Result<Self, serde_json::Error> {
        let os_image = node["status"]["nodeInfo"]["osImage"].as_str().unwrap_or_default().to_owned();
        let node: TrimmedNode = serde_json::from_value(node)?;
        let meta = ObjectMeta { name: Some(node.name_any()), ..ObjectMeta::default() };
        Ok(Self { meta, facts: NodeFacts::of(&node), os_image })
    }
}

impl Resource for Host {
    type DynamicType = ();
    type Scope = <Node as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Node::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Node::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Node::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Node::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl Host {
    pub fn name(&self) -> &str {
        self.facts.name.as_str()
    }

    /// Returns whether labels or allocatable resources show that it has NVIDIA GPUs.
    pub fn shows_gpus(&self, catalogue: &Catalogue) -> bool {
        let facts = &self.facts;
        facts.is_labelled_present()
            || facts.allocatable.first_gpu().is_some()
            || gpus::discover(catalogue, facts, None).is_some()
    }

    /// Returns `ID` and `VERSION_ID` of the operating system, if its name is one of those that are known to have, or not to have, images
    /// of drivers.
    pub fn os_release(&self) -> Option<(&'static str, &str)> {
        const SYSTEMS: [(&str, &str); 5] = [
            ("Ubuntu ", "ubuntu"),
            ("Red Hat Enterprise Linux ", "rhel"),
            ("Rocky Linux ", "rocky"),
            ("Debian GNU/Linux ", "debian"),
            ("AlmaLinux ", "almalinux"),
        ];
        let (rest, id) = SYSTEMS.iter().find_map(|(name, id)| Some((self.os_image.strip_prefix(name)?, *id)))?;
        let version = rest.split_whitespace().next().filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        // The third number of Ubuntu's versions is no part of VERSION_ID.
        let end = version.match_indices('.').nth(1).map_or(version.len(), |(index, _)| index);
        Some((id, &version[..end]))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_operating_system_is_known_by_its_name() {
        for (name, known) in [
            ("Ubuntu 24.04.2 LTS", Some(("ubuntu", "24.04"))),
            ("Red Hat Enterprise Linux 9.4 (Plow)", Some(("rhel", "9.4"))),
            ("Red Hat Enterprise Linux CoreOS 417.94.202410250757-0", None),
            ("Rocky Linux 9.5 (Blue Onyx)", Some(("rocky", "9.5"))),
            ("Debian GNU/Linux 12 (bookworm)", Some(("debian", "12"))),
            ("Container-Optimized OS from Google", None),
            ("", None),
        ] {
            let node = json!({"metadata": {"name": "a"}, "status": {"nodeInfo": {"osImage": name}}});
            let host = Host::try_from(node).expect("a node");
            assert_eq!(host.os_release(), known, "{name}");
        }
    }
}
