//! The DaemonSets of a variant: placement, and one pod per stage. They have no owner: the garbage collector would remove drivers
//! under running pods, if a policy is deleted in the foreground as Argo CD does. The operator prunes DaemonSets that no node names.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    ClusterGpuPolicy, Revision, keys,
    policy::{PodMetadata, Stage},
};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy},
        core::v1::{Affinity, Container, PodAffinityTerm, PodAntiAffinity, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::Resource;

use super::{device_plugin, driver, toolkit};
use crate::{
    desired::{effective_spec, variant::Variant},
    manifests::{
        pod::{HostNamespaces, PodInput, PodParts, pull_secrets, tolerations},
        proxy, selinux,
    },
    revision::daemon_set_name,
    settings::Settings,
};

pub fn daemon_sets(settings: &Settings, policy: &ClusterGpuPolicy, variant: &Variant) -> Vec<DaemonSet> {
    variant
        .stages
        .iter()
        .filter_map(|(group, spec)| {
            let input = PodInput { settings, policy, key: &variant.key, spec };
            let parts = match spec.stage {
                Stage::Driver => driver::pod(&input)?,
                Stage::Toolkit => toolkit::pod(&input)?,
                Stage::Mps => device_plugin::mps_pod(&input)?,
                Stage::DevicePlugin => device_plugin::pod(&input)?,
            };
            Some(daemon_set(&input, group, parts))
        })
        .collect()
}

fn daemon_set(input: &PodInput<'_>, group: &Revision, parts: PodParts) -> DaemonSet {
    let stage = input.spec.stage;
    let selector = BTreeMap::from([
        (keys::STAGE.to_owned(), stage.as_str().to_owned()),
        (stage.key().to_owned(), group.to_string()),
    ]);
    let mut labels = selector.clone();
    labels.insert(keys::MANAGED_BY.to_owned(), keys::MANAGER.to_owned());
    labels.insert(keys::POLICY.to_owned(), input.policy.meta().name.clone().unwrap_or_default());
    let PodMetadata { labels: mut pod_labels, annotations } = input.policy.spec.pod_metadata.clone();
    pod_labels.extend(labels.clone());
    DaemonSet {
        metadata: ObjectMeta {
            name: Some(daemon_set_name(stage, group)),
            namespace: Some(input.settings.namespace.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(DaemonSetSpec {
            selector: LabelSelector { match_labels: Some(selector.clone()), ..LabelSelector::default() },
            // A changed template applies to a node when its pod is next created. A change that must update nodes is a
            // new revision, which has its own DaemonSet.
            update_strategy: Some(DaemonSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                ..DaemonSetUpdateStrategy::default()
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels),
                    annotations: (!annotations.is_empty()).then_some(annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod_spec(input, group, parts)),
            },
            ..DaemonSetSpec::default()
        }),
        ..DaemonSet::default()
    }
}

fn pod_spec(input: &PodInput<'_>, group: &Revision, mut parts: PodParts) -> PodSpec {
    let proxy_settings = &input.policy.spec.proxy;
    let is_operand = |container: &&mut Container| container.image.as_ref() == Some(&input.spec.image);
    for container in parts.init.iter_mut().chain([&mut parts.main]).filter(is_operand) {
        proxy::configure(proxy_settings, container);
    }
    parts.volumes.extend(proxy::volume(proxy_settings));
    if input.key.host.selinux {
        selinux::allow_host_files(&mut parts);
    }
    let stage = input.spec.stage;
    let account = device_plugin::account(&input.key.plugin).filter(|_| stage == Stage::DevicePlugin);
    let (policy, pool) = (input.policy, effective_spec::pool_of(input.policy, input.key));
    PodSpec {
        node_selector: Some(BTreeMap::from([(stage.key().to_owned(), group.to_string())])),
        affinity: Some(one_per_host(stage)),
        tolerations: Some(tolerations(policy, pool)),
        priority_class_name: Some(effective_spec::priority_class(policy, pool).to_owned()),
        image_pull_secrets: pull_secrets(input.settings, input.policy),
        // Only one operand uses the API server, if enabled, and mounts the token explicitly.
        automount_service_account_token: Some(false),
        service_account_name: account.map(str::to_owned),
        host_pid: (parts.host != HostNamespaces::None).then_some(true),
        host_network: (parts.host == HostNamespaces::PidAndNetwork).then_some(true),
        termination_grace_period_seconds: Some(parts.grace_seconds),
        init_containers: (!parts.init.is_empty()).then_some(parts.init),
        containers: vec![parts.main],
        volumes: Some(parts.volumes),
        ..PodSpec::default()
    }
}

/// Returns an affinity by which, during an update, the new pod waits until the old one is gone.
fn one_per_host(stage: Stage) -> Affinity {
    let same_stage = LabelSelector {
        match_labels: Some(BTreeMap::from([(keys::STAGE.to_owned(), stage.as_str().to_owned())])),
        ..LabelSelector::default()
    };
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: Some(vec![PodAffinityTerm {
                label_selector: Some(same_stage),
                topology_key: "kubernetes.io/hostname".to_owned(),
                ..PodAffinityTerm::default()
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}
