//! Kubelet's pod resources socket, served by a stand-in.

use std::{path::PathBuf, sync::Arc, time::Duration};

use gpu_host::{
    grpc::GrpcError,
    nvml::{
        protocol::{Inventory, NvmlGpu},
        supervisor::NvmlStatus,
    },
    observe::{
        kernel_log::XidsByGpu,
        pci::PciGpu,
        pod_resources::{Assignment, KUBELET_ROOTS, PodResourcesError, Source, decode, list, socket},
    },
};
use gpu_operator_crd::Report;
use nvml_probe::{
    agent::{metrics::Metrics, telemetry::follow_pods},
    health::node::NodeHealth,
    report::build::{gpu_pods, with_gpu_pods},
};
use proptest::prelude::*;
use prost::Message;
use test_support::{
    damaged,
    host::Host,
    kubelet::{Answer, Kubelet, ListPodResourcesResponse, Pod, claimant, pod},
};

use crate::{foreign_input::fits_the_api, running::soon};

const SOCKET: &str = "var/lib/kubelet/pod-resources/kubelet.sock";

fn pods() -> Vec<Pod> {
    vec![
        pod("team/train", "nvidia.com/gpu", &["GPU-six", "GPU-seven"]),
        claimant("team/claims", "gpu.nvidia.com", "gpu-0"),
    ]
}

/// Returns more pods than a report lists, with longer names than it stores.
fn long() -> Vec<Pod> {
    (0..12).map(|number| pod(&format!("team/{number}{}", "x".repeat(400)), "nvidia.com/gpu", &["GPU-six"])).collect()
}

fn assigned(pod: &str, source: Source, devices: &[&str]) -> Assignment {
    let devices = devices.iter().map(|id| (*id).to_owned()).collect();
    Assignment { namespace: "team".into(), pod: pod.into(), container: "main".into(), source, devices }
}

async fn request(answer: Answer) -> Result<Vec<Assignment>, PodResourcesError> {
    let host = Host::new();
    let _kubelet = Kubelet::serve(&host.path(SOCKET), answer);
    list(socket(&host.root(), None).unwrap().unwrap()).await
}

#[tokio::test]
async fn devices_and_claims_of_all_containers_are_listed_by_pod() {
    let listed = request(Answer::Pods(pods())).await.unwrap();
    let expected = [
        assigned("claims", Source::Resource("vendor.example/nic".into()), &["nic0"]),
        assigned("claims", Source::Claim("gpu.nvidia.com".into()), &["gpu-0"]),
        assigned("train", Source::Resource("nvidia.com/gpu".into()), &["GPU-six", "GPU-seven"]),
    ];
    assert_eq!(listed, expected);
    assert_eq!(request(Answer::Pods(Vec::new())).await.unwrap(), []);
}

#[tokio::test]
async fn a_response_of_several_windows_is_read_completely() {
    // HTTP/2's first window has 64 KiB.
    let many: Vec<_> =
        (0..5000).map(|number| pod(&format!("team/{number:04}"), "nvidia.com/gpu", &["GPU-six"])).collect();
    let listed = request(Answer::Pods(many)).await.unwrap();
    assert_eq!((listed.len(), listed[4999].pod.as_str()), (5000, "4999"));
}

#[tokio::test]
async fn a_socket_that_fails_is_an_error_within_the_deadline() {
    let request = async |answer| match request(answer).await.unwrap_err() {
        PodResourcesError::Request(error) => error.to_string(),
        error => error.to_string(),
    };
    assert_eq!(request(Answer::Status("8")).await, "the server answered with gRPC status 8");
    assert_eq!(request(Answer::Hang).await, "no answer within 2s");
    let large = Answer::Body(vec![0; 16 * 1024 * 1024 + 6]);
    assert_eq!(request(large).await, GrpcError::TooLarge(16 * 1024 * 1024).to_string());
    for body in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x02x", b"\x01\0\0\0\0", b"\0\0\0\0\0x"] {
        assert_eq!(request(Answer::Body(body.to_vec())).await, GrpcError::Malformed.to_string(), "{body:?}");
    }
    let undecodable = request(Answer::Message(vec![0x0a, 0xff])).await;
    assert_eq!(undecodable, "cannot decode the list of the pods' resources");
}

#[tokio::test]
async fn pods_are_in_the_metrics_until_they_end() {
    let host = Host::new();
    let kubelet = Kubelet::serve(&host.path(SOCKET), Answer::Pods(pods()));
    let metrics = Arc::new(Metrics::new("n1"));
    let gpu = PciGpu { address: "0000:06:00.0".into(), ..PciGpu::default() };
    let known = NvmlGpu { pci_address: gpu.address.clone(), uuid: Some("GPU-six".into()), ..NvmlGpu::default() };
    let answer = NvmlStatus::Answering(Inventory { gpus: vec![known], ..Inventory::default() });
    metrics.show(&[gpu], &answer, &NodeHealth::default(), &XidsByGpu::new());
    let follower = tokio::spawn(follow_pods(host.root(), None, Arc::clone(&metrics)));
    let shows = async |count| {
        soon(async {
            while metrics.text().unwrap().matches("nvml_probe_gpu_pod_info{").count() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    shows(1).await;
    assert!(metrics.text().unwrap().contains(r#"namespace="team",pod="train",container="main""#));
    kubelet.answers(Answer::Pods(Vec::new()));
    shows(0).await;
    follower.abort();
}

#[tokio::test]
async fn the_socket_is_found_in_the_directories_of_distributions() {
    let host = Host::new();
    let root = host.root();
    assert_eq!(socket(&root, None).unwrap(), None);
    for directory in KUBELET_ROOTS {
        let path: PathBuf = host.path(&format!("{directory}/pod-resources/kubelet.sock"));
        let _kubelet = Kubelet::serve(&path, Answer::Hang);
        assert_eq!(socket(&root, None).unwrap(), Some(path));
        assert_eq!(socket(&root, Some("/data/kubelet")).unwrap(), None);
    }
    let path = host.path("data/kubelet/pod-resources/kubelet.sock");
    let _kubelet = Kubelet::serve(&path, Answer::Hang);
    assert_eq!(socket(&root, Some("/data/kubelet")).unwrap(), Some(path));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_damaged_list_never_panics_and_its_report_fits_the_api(
        bytes in damaged::bytes([pods(), long()].map(|pods| ListPodResourcesResponse { pod_resources: pods }.encode_to_vec()).into())
    ) {
        if let Ok(assignments) = decode(&bytes) {
            let devices: usize = assignments.iter().map(|of| of.devices.len()).sum();
            // Each device and each assignment takes at least two bytes.
            prop_assert!(devices + assignments.len() <= bytes.len());
            fits_the_api(&with_gpu_pods(Report::default(), Some(gpu_pods(&assignments, &[]))));
        }
    }
}
