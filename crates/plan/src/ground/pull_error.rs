//! Why a container runtime cannot pull an image, from its error.

use crate::world::{ContainerFacts, ContainerState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullError {
    /// The registry has no such image.
    Missing,
    /// The registry denies the request. Registries do so for images that do not exist as well.
    Denied,
    Other,
}

const MISSING: [&str; 5] = ["not found", "manifest unknown", "name unknown", "name not known", "does not exist"];
const DENIED: [&str; 11] = [
    "denied",
    "unauthorized",
    "not authorized",
    "forbidden",
    "insufficient_scope",
    "authorization failed",
    "may require authorization",
    "authentication required",
    "no basic auth credentials",
    // Kubelet's note that a pull secret is missing.
    "image pull secret",
    "invalid username/password",
];
/// A host, a credential helper, or a server for tokens that is not found, or a proxy or disk that denies, proves nothing about the image.
const ELSEWHERE: [&str; 6] = [
    "no such host",
    "lookup ",
    "not present with pull policy",
    "executable file not found",
    "proxyconnect",
    "from proxy",
];
/// The beginning of an error that occurs before the registry is asked for the image.
const LOGIN: &str = "failed to authorize";

impl PullError {
    pub fn of(words: &str) -> Self {
        // Of the disk, not of the registry.
        let said = words.to_lowercase().replace("permission denied", "");
        let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
        match (has(&ELSEWHERE), has(&DENIED)) {
            (false, true) => Self::Denied,
            (false, false) if has(&MISSING) && !said.contains(LOGIN) => Self::Missing,
            _ => Self::Other,
        }
    }
}

/// Whether a container waits for an image that does not exist.
pub fn lacks_image(container: &ContainerFacts) -> bool {
    match &container.state {
        ContainerState::Waiting { reason, message } => {
            ["ErrImagePull", "ImagePullBackOff"].contains(&reason.as_str())
                && PullError::of(without_back_off(message)) == PullError::Missing
        }
        _ => false,
    }
}

/// Kubelet reports each pull error with and without `Back-off pulling image …: ErrImagePull: `. Without it, both are the same message and
/// thus one transition.
pub fn without_back_off(message: &str) -> &str {
    message.split_once("ErrImagePull: ").map_or(message, |(_, error)| error)
}

#[cfg(test)]
mod tests {
    use super::{PullError::*, *};

    #[test]
    fn a_missing_image_differs_from_a_denied_one() {
        for (words, error) in [
            (
                "failed to resolve reference \"nvcr.io/nvidia/driver:1-x\": nvcr.io/nvidia/driver:1-x: not found",
                Missing,
            ),
            ("rpc error: code = NotFound desc = manifest unknown", Missing),
            ("reading manifest 580-6.8.0-x-ubuntu24.04 in nvcr.io/nvidia/driver: manifest unknown", Missing),
            ("unexpected status from HEAD request to https://m/v2/nvidia/driver/manifests/1: 404 Not Found", Missing),
            ("name unknown: repository name not known to registry", Missing),
            (
                "failed to pull and unpack image \"registry.example.com/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04\": failed to resolve reference \"registry.example.com/nvidia/driver:580-6.8.0-60-generic-ubuntu24.04\": pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed",
                Denied,
            ),
            (
                "Error response from daemon: pull access denied for m/driver, repository does not exist or may require 'docker login': denied: requested access to the resource is denied",
                Denied,
            ),
            ("failed to authorize: failed to fetch anonymous token: unexpected status: 401 Unauthorized", Denied),
            ("unexpected status from HEAD request to https://m/v2/driver/manifests/1: 403 Forbidden", Denied),
            ("unable to retrieve auth token: invalid username/password: unauthorized: not found", Denied),
            (
                "Get \"https://1.dkr.ecr.eu-west-1.amazonaws.com/v2/driver/manifests/1\": no basic auth credentials",
                Denied,
            ),
            (
                "denied: Permission \"artifactregistry.repositories.downloadArtifacts\" denied (or it may not exist)",
                Denied,
            ),
            ("reading manifest 1 in quay.io/m/driver: access to the requested resource is not authorized", Denied),
            ("m/driver:1: not found; unable to retrieve some image pull secrets (expired)", Denied),
            ("failed to authorize: failed to fetch oauth token: unexpected status: 404 Not Found", Other),
            (
                "failed to authorize: failed to fetch anonymous token: dial tcp: lookup a.example.com: no such host",
                Other,
            ),
            ("error getting credentials: exec: \"docker-credential-x\": executable file not found in $PATH", Other),
            ("proxyconnect tcp: Forbidden", Other),
            ("failed to extract layer: mkdir /var/lib/containerd/x: permission denied", Other),
            ("dial tcp: lookup nvcr.io on 10.0.0.2:53: no such host", Other),
            ("dial tcp 10.0.0.1:443: i/o timeout", Other),
            ("tls: failed to verify certificate: x509: certificate signed by unknown authority", Other),
        ] {
            assert_eq!(PullError::of(words), error, "{words}");
        }
    }
}
