//! Proxy and trusted certificates of every container of an operand.

use gpu_operator_crd::policy::Proxy;
use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, Container, KeyToPath, Volume};

use crate::manifests::pod::{Mode, env, mount};

/// The volume of the certificates, its folder in every container, and the ConfigMap's key.
const VOLUME: &str = "trusted-ca";
const FOLDER: &str = "/etc/gpu-operator/trusted-ca";
const KEY: &str = "ca-bundle.crt";

/// Adds proxy variables and certificates to a container. Variables that the user sets are kept.
pub fn configure(proxy: &Proxy, container: &mut Container) {
    let bundle = proxy.trusted_ca_config_map.as_ref().map(|_| format!("{FOLDER}/{KEY}"));
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
        container.volume_mounts.get_or_insert_default().push(mount(VOLUME, FOLDER, Mode::ReadOnly));
    }
}

/// Returns the volume of the certificates, if set.
pub fn volume(proxy: &Proxy) -> Option<Volume> {
    let source = ConfigMapVolumeSource {
        name: proxy.trusted_ca_config_map.clone()?,
        items: Some(vec![KeyToPath { key: KEY.to_owned(), path: KEY.to_owned(), mode: None }]),
        ..ConfigMapVolumeSource::default()
    };
    Some(Volume { name: VOLUME.to_owned(), config_map: Some(source), ..Volume::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(proxy: &Proxy, env_before: &[(&str, &str)]) -> Vec<String> {
        let env_before = env_before.iter().map(|(name, value)| env(name, value)).collect();
        let mut container = Container { env: Some(env_before), ..Container::default() };
        configure(proxy, &mut container);
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
        assert!(volume(&proxy).is_some() && volume(&Proxy::default()).is_none());
    }
}
