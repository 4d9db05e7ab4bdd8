//! The API requests of the detector.

use std::time::{Duration, Instant};

use http::StatusCode;
use nvml_probe::report::gpu_node::{Announcer, Created};
use serde_json::json;
use test_api_server::Api;

use crate::api_server::{PATH, asked, has_none, refuses_next};

const CREATE: &str = "POST /apis/gpu.nodestack.dev/v1alpha1/gpunodes?&fieldManager=gpu-detector";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn a_node_with_a_gpu_is_announced_at_once() {
    let (server, start) = (Api::new(), Instant::now());
    let mut announcer = Announcer::new(server.client(), "n1");
    assert_eq!(announcer.announce(false, start).await.unwrap(), None);
    assert_eq!(asked(&server), []);
    for now in [start, start + seconds(1)] {
        announcer.announce(true, now).await.unwrap();
    }
    let bare = json!({
        "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}, "spec": {},
    });
    assert_eq!(asked(&server), [(CREATE.to_owned(), bare)]);
}

#[tokio::test]
async fn a_gpu_that_returns_is_announced_again() {
    let (server, now) = (Api::new(), Instant::now());
    let mut announcer = Announcer::new(server.client(), "n1");
    for has_gpu in [true, false, true] {
        has_none(&server);
        announcer.announce(has_gpu, now).await.unwrap();
    }
    assert_eq!(asked(&server).len(), 2);
}

#[tokio::test]
async fn a_gpunode_that_exists_is_created_less_and_less_often() {
    let (server, start) = (Api::new(), Instant::now());
    server.put(PATH, json!({"metadata": {"name": "n1"}}));
    let mut announcer = Announcer::new(server.client(), "n1");
    for look in 0..8640 {
        let outcome = announcer.announce(true, start + seconds(10 * look)).await.unwrap();
        assert!(outcome.is_none_or(|created| created == Created::Present));
    }
    let asked = asked(&server).len();
    assert!((24..36).contains(&asked), "{asked} requests a day");
    // The operator has deleted it, because the last report showed no GPU.
    has_none(&server);
    assert_eq!(announcer.announce(true, start + seconds(2 * 86_400)).await.unwrap(), Some(Created::New));
}

#[tokio::test]
async fn a_gpunode_that_is_deleted_is_created_again() {
    let (server, start) = (Api::new(), Instant::now());
    let mut announcer = Announcer::new(server.client(), "n1");
    for hour in 0..3 {
        // The GPUs were away between two looks only.
        has_none(&server);
        let mut created = 0;
        for look in 0..3600 {
            let outcome = announcer.announce(true, start + seconds(3600 * hour + look)).await.unwrap();
            if outcome == Some(Created::New) {
                created += 1;
                server.put(PATH, json!({"metadata": {"name": "n1"}}));
            }
        }
        assert_eq!(created, 1, "in hour {hour}");
        let asked = u64::try_from(asked(&server).len()).unwrap();
        assert!(asked <= 15 * (hour + 1), "{asked} requests by hour {hour}");
    }
}

#[tokio::test]
async fn an_error_is_retried_within_a_minute() {
    let (server, start) = (Api::new(), Instant::now());
    let mut announcer = Announcer::new(server.client(), "n1");
    for look in 0..10 {
        refuses_next(&server, StatusCode::FORBIDDEN);
        let now = start + seconds(60 * look);
        assert!(announcer.announce(true, now).await.is_err());
        assert_eq!(announcer.announce(true, now + seconds(1)).await.unwrap(), None, "a pause");
    }
    assert_eq!(asked(&server).len(), 10);
    assert_eq!(announcer.announce(true, start + seconds(600)).await.unwrap(), Some(Created::New));
}
