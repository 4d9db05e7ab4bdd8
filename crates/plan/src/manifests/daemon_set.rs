//! The DaemonSets of a variant: placement, and one pod per stage. They have no owner: the garbage collector would remove drivers
//! under running pods, if a policy is deleted in the foreground as Argo CD does. The operator prunes DaemonSets that no node names.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    Revision, keys,
    policy::{PodMetadata, Proxy, Stage},
};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy},
        core::v1::{
            Affinity, ConfigMapVolumeSource, Container, KeyToPath, PodAffinityTerm, PodAntiAffinity, PodSpec,
            PodTemplateSpec, SELinuxOptions, Volume,
        },
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::Resource;

use super::{device_plugin, driver, toolkit};
use crate::{
    desired::{device_plugin::PluginChoice, variant::Variant},
    manifests::pod::{HostNamespaces, Mode, PodInput, PodParts, env, mount, pull_secrets},
    pool_settings::PoolSettings,
    revision::daemon_set_name,
    settings::Settings,
};

pub fn daemon_sets(settings: &Settings, pool: &PoolSettings<'_>, variant: &Variant) -> Vec<DaemonSet> {
    variant
        .stages
        .iter()
        .filter_map(|(revision, spec)| {
            let input = PodInput { settings, pool, key: &variant.key, spec };
            let parts = match spec.stage {
                Stage::Driver => driver::pod(&input)?,
                Stage::Toolkit => toolkit::pod(&input)?,
                Stage::Mps => device_plugin::mps_pod(&input)?,
                Stage::DevicePlugin => device_plugin::pod(&input)?,
            };
            Some(daemon_set(&input, revision, parts))
        })
        .collect()
}

fn daemon_set(input: &PodInput<'_>, revision: &Revision, parts: PodParts) -> DaemonSet {
    let stage = input.spec.stage;
    let selector = BTreeMap::from([
        (keys::STAGE.to_owned(), stage.as_str().to_owned()),
        (stage.key().to_owned(), revision.to_string()),
    ]);
    let mut labels = selector.clone();
    labels.insert(keys::MANAGED_BY.to_owned(), keys::MANAGER.to_owned());
    labels.insert(keys::POLICY.to_owned(), input.pool.policy.meta().name.clone().unwrap_or_default());
    let PodMetadata { labels: mut pod_labels, annotations } = input.pool.policy.spec.pod_metadata.clone();
    pod_labels.extend(labels.clone());
    DaemonSet {
        metadata: ObjectMeta {
            name: Some(daemon_set_name(stage, revision)),
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
                spec: Some(pod_spec(input, revision, parts)),
            },
            ..DaemonSetSpec::default()
        }),
        ..DaemonSet::default()
    }
}

fn pod_spec(input: &PodInput<'_>, revision: &Revision, mut parts: PodParts) -> PodSpec {
    let proxy_settings = &input.pool.policy.spec.proxy;
    let is_operand = |container: &&mut Container| container.image.as_ref() == Some(&input.spec.image);
    for container in parts.init.iter_mut().chain([&mut parts.main]).filter(is_operand) {
        add_proxy(proxy_settings, container);
    }
    parts.volumes.extend(proxy_volume(proxy_settings));
    if input.key.host.selinux {
        allow_host_files(&mut parts);
    }
    let stage = input.spec.stage;
    let account =
        (stage == Stage::DevicePlugin && input.key.plugin == PluginChoice::Dra).then_some(device_plugin::dra::ACCOUNT);
    PodSpec {
        node_selector: Some(BTreeMap::from([(stage.key().to_owned(), revision.to_string())])),
        affinity: Some(one_per_host(stage)),
        tolerations: Some(input.pool.tolerations.clone()),
        priority_class_name: Some(input.pool.priority_class.to_owned()),
        image_pull_secrets: pull_secrets(input.settings, input.pool.policy),
        // Only the DRA driver uses the API server.
        automount_service_account_token: Some(account.is_some()),
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

/// During an update, the new pod waits until the old one is gone.
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

/// The volume, its folder in every container, and the ConfigMap's key.
const PROXY_VOLUME: &str = "trusted-ca";
const PROXY_FOLDER: &str = "/etc/gpu-operator/trusted-ca";
const PROXY_KEY: &str = "ca-bundle.crt";

/// Variables that the user sets are kept.
fn add_proxy(proxy: &Proxy, container: &mut Container) {
    let bundle = proxy.trusted_ca_config_map.as_ref().map(|_| format!("{PROXY_FOLDER}/{PROXY_KEY}"));
    let mut known = container.env.take().unwrap_or_default();
    // Programs read either case; the variables of the certificates are those of OpenSSL and curl.
    for (names, value) in [
        (["HTTP_PROXY", "http_proxy"], &proxy.http_proxy),
        (["HTTPS_PROXY", "https_proxy"], &proxy.https_proxy),
        (["NO_PROXY", "no_proxy"], &proxy.no_proxy),
        (["SSL_CERT_FILE", "CURL_CA_BUNDLE"], &bundle),
    ] {
        let users = known.iter().any(|variable| names.contains(&variable.name.as_str()));
        if let Some(value) = value.as_ref().filter(|_| !users) {
            known.extend(names.map(|name| env(name, value)));
        }
    }
    container.env = (!known.is_empty()).then_some(known);
    if bundle.is_some() {
        container.volume_mounts.get_or_insert_default().push(mount(PROXY_VOLUME, PROXY_FOLDER, Mode::ReadOnly));
    }
}

fn proxy_volume(proxy: &Proxy) -> Option<Volume> {
    let source = ConfigMapVolumeSource {
        name: proxy.trusted_ca_config_map.clone()?,
        items: Some(vec![KeyToPath { key: PROXY_KEY.to_owned(), path: PROXY_KEY.to_owned(), mode: None }]),
        ..ConfigMapVolumeSource::default()
    };
    Some(Volume { name: PROXY_VOLUME.to_owned(), config_map: Some(source), ..Volume::default() })
}

// `SELinux` options of containers that use files of the host, on systems that may enforce it. They are those of NVIDIA's operator, and
// tested only by golden files.

/// `container_t`, the default, may not read most of the host's files.
const UNCONFINED: &str = "spc_t";
/// Without categories: files that a container creates on the host have its level, and no container with other categories could read them.
const LEVEL: &str = "s0";

/// Its label, `sysfs_t`, permits every container to read it.
const READABLE: &str = "/sys";

/// Containers that use more of the host get the level and, unless they are privileged, the type: runtimes confine them otherwise.
fn allow_host_files(parts: &mut PodParts) {
    let of_host: BTreeMap<&str, &str> = parts.volumes.iter().filter_map(path_of_host).collect();
    for container in parts.init.iter_mut().chain([&mut parts.main]) {
        if !uses_more(container, &of_host) {
            continue;
        }
        let Some(context) = &mut container.security_context else { continue };
        let confined = context.privileged != Some(true);
        context.se_linux_options = Some(SELinuxOptions {
            level: Some(LEVEL.to_owned()),
            type_: confined.then(|| UNCONFINED.to_owned()),
            ..SELinuxOptions::default()
        });
    }
}

fn path_of_host(volume: &Volume) -> Option<(&str, &str)> {
    volume.host_path.as_ref().map(|source| (volume.name.as_str(), source.path.as_str()))
}

/// Whether a container needs more than the default type permits.
fn uses_more(container: &Container, of_host: &BTreeMap<&str, &str>) -> bool {
    let capabilities = container.security_context.as_ref().and_then(|context| context.capabilities.as_ref());
    let is_capable = capabilities.and_then(|capabilities| capabilities.add.as_ref()).is_some_and(|add| !add.is_empty());
    container.volume_mounts.iter().flatten().any(|mount| {
        let path = of_host.get(mount.name.as_str());
        path.is_some_and(|path| is_capable || *path != READABLE || mount.read_only != Some(true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(proxy: &Proxy, env_before: &[(&str, &str)]) -> Vec<String> {
        let env_before = env_before.iter().map(|(name, value)| env(name, value)).collect();
        let mut container = Container { env: Some(env_before), ..Container::default() };
        add_proxy(proxy, &mut container);
        let env = container.env.unwrap_or_default();
        env.into_iter().map(|variable| format!("{}={}", variable.name, variable.value.unwrap_or_default())).collect()
    }

    #[test]
    fn variables_are_set_in_both_cases_unless_the_user_sets_one() {
        let proxy = Proxy { https_proxy: Some("http://p:1".into()), no_proxy: Some(".svc".into()), ..Proxy::default() };
        assert_eq!(
            variables(&proxy, &[]),
            ["HTTPS_PROXY=http://p:1", "https_proxy=http://p:1", "NO_PROXY=.svc", "no_proxy=.svc"]
        );
        assert_eq!(
            variables(&proxy, &[("HTTPS_PROXY", "http://own:1")]),
            ["HTTPS_PROXY=http://own:1", "NO_PROXY=.svc", "no_proxy=.svc"]
        );
        assert!(variables(&Proxy::default(), &[]).is_empty());
    }

    #[test]
    fn certificates_are_mounted_and_their_variables_set() {
        let proxy = Proxy { trusted_ca_config_map: Some("own".into()), ..Proxy::default() };
        let path = "/etc/gpu-operator/trusted-ca/ca-bundle.crt";
        assert_eq!(variables(&proxy, &[]), [format!("SSL_CERT_FILE={path}"), format!("CURL_CA_BUNDLE={path}")]);
        assert!(proxy_volume(&proxy).is_some() && proxy_volume(&Proxy::default()).is_none());
    }
}
