//! The pod that pulls the images of a revision on a node.

use gpu_operator_crd::{ClusterGpuPolicy, keys, policy::Pool};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::{
    manifests::{
        one_off::{self, OneOff},
        pod::{env, unprivileged},
    },
    rollout::preflight::{NewImage, PreflightPod},
    settings::Settings,
};

/// Returns the pod. Its containers do nothing: what counts is that kubelet has pulled their images.
pub fn pod(
    settings: &Settings,
    policy: &ClusterGpuPolicy,
    pool: Option<&Pool>,
    name: String,
    wanted: &PreflightPod,
) -> Pod {
    let of = OneOff { settings, policy, pool, node: &wanted.node, stage: keys::PREFLIGHT };
    let containers = wanted.images.iter().map(container).collect();
    one_off::pod(of, name, PodSpec { containers, ..PodSpec::default() })
}

fn container(NewImage { container, image, pull_policy }: &NewImage) -> Container {
    Container {
        name: container.clone(),
        image: Some(image.clone()),
        image_pull_policy: pull_policy.clone(),
        // Not every image contains it.
        command: Some(vec!["/bin/true".to_owned()]),
        // NVIDIA's runtime must not add a driver that may be about to be replaced.
        env: Some(vec![env("NVIDIA_VISIBLE_DEVICES", "void")]),
        security_context: Some(unprivileged()),
        ..Container::default()
    }
}
