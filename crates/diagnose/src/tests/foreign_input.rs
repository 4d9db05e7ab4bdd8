//! Pods, Events and image references of users, damaged in every way: diagnosis never panics.

use proptest::prelude::*;
use test_support::{damaged, random::config};

use super::cuda::fails;
use super::*;
use crate::cuda::cuda_of;

fn samples(kind: &str) -> Vec<Vec<u8>> {
    damaged::corpus(env!("CARGO_MANIFEST_DIR"), kind)
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn references_and_requirements_of_images(text in damaged::text(samples("image"))) {
        for line in text.lines().chain([text.as_str()]) {
            let _ = cuda_of(line);
            let failing = fails(line, "12.8", "580.173.02");
            prop_assert!(!failing || line.contains(['<', '>', '=', '!']), "{}", line);
            prop_assert!(!fails("cuda>=12.8 driver>=0", "12.9", line), "{}", line);
        }
    }

    #[test]
    fn events(event in damaged::json(&samples("event"))) {
        let Ok(event) = serde_json::from_value::<Event>(event) else { return Ok(()) };
        let found = diagnose(&pod("p", "{containers: [{name: c}]}"), Some(&[event]), &World::default(), now());
        prop_assert!(found.findings.len() <= 1, "{:?}", found.findings);
    }

    #[test]
    fn pods(object in damaged::json(&samples("pending_pod"))) {
        let Ok(pod) = serde_json::from_value::<Pod>(object) else { return Ok(()) };
        let mut world = world("{}");
        node(&mut world, "h100", "nvidia-h100-80gb", 8);
        coming(&mut world, "next", "nvidia-h100-80gb", 8);
        let found = diagnosed(&pod, &world);
        prop_assert!(found.findings.len() <= 8, "{:?}", found.findings);
    }
}
