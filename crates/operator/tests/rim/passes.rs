//! How often the fleet is planned while something changes all the time.

use std::{sync::Arc, time::Duration};

use gpu_operator::metrics::Metrics;
use serde_json::json;

use crate::cluster::{Cluster, NODES};

/// Returns the number of passes so far.
fn passes(metrics: &Arc<Metrics>) -> u64 {
    let text = metrics.text().expect("a text");
    let count = text.lines().find_map(|line| line.strip_prefix("gpu_operator_passes_total "));
    count.and_then(|count| count.parse().ok()).expect("a count")
}

#[tokio::test(start_paused = true)]
async fn a_large_fleet_is_planned_less_often_than_a_small_one() {
    // The first pass follows each change within 200 ms, whatever the size of the fleet.
    for (nodes, in_ten_seconds) in [(2, 40..=50), (500, 18..=21)] {
        let (cluster, sim) = Cluster::new(nodes);
        let metrics = cluster.start_operator(&sim);
        cluster.run_for(Duration::from_mins(5)).await;
        let mut change = 0;
        let mut change = || {
            change += 1;
            cluster.api.write("kubelet", &format!("{NODES}/n000"), |node| {
                node["status"]["allocatable"]["nvidia.com/gpu"] = json!((change % 8).to_string());
            });
        };
        let settled = passes(&metrics);
        change();
        cluster.run_for(Duration::from_millis(250)).await;
        assert_eq!(passes(&metrics), settled + 1, "{nodes} nodes");
        cluster.run_for(Duration::from_mins(5)).await;
        let settled = passes(&metrics);
        for _ in 0..200 {
            change();
            cluster.run_for(Duration::from_millis(50)).await;
        }
        let made = passes(&metrics) - settled;
        assert!(in_ten_seconds.contains(&made), "{made} passes for {nodes} nodes");
    }
}
