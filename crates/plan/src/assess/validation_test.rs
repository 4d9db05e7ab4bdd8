//! The test that validates a node: its image, and the name of its pod.

use gpu_operator_common::version::Version;
use gpu_operator_crd::{ClusterGpuPolicy, keys};
use serde::Serialize;

use crate::{assess::member::Member, desired::images, revision};

/// The first driver branch of a CUDA major version, and the tag of NVIDIA's vectorAdd built with it; the newest first. A driver
/// supports all CUDA versions of the major version of its branch, and all older ones.
pub const TESTS: [(u32, &str); 2] = [(525, "vectoradd-cuda12.5.0"), (450, "vectoradd-cuda11.7.1")];

/// The tag for older drivers.
pub const OLDEST_TEST: &str = "vectoradd-cuda10.2";

/// Returns whether the policy sets its own test image, whose output is unknown.
pub fn is_the_users(member: &Member<'_>) -> bool {
    member.policy.spec.readiness.validation.image.is_some()
}

/// Returns the image of a node's test.
pub fn image(member: &Member<'_>) -> String {
    let loaded = member.report.and_then(|report| report.driver.loaded.as_deref());
    let tag = loaded.and_then(Version::leading).map_or(TESTS[0].1, |version| test_for(version.major()));
    reference(member.policy, tag)
}

/// Returns the images of the tests for all drivers.
pub fn images(policy: &ClusterGpuPolicy) -> impl Iterator<Item = String> {
    TESTS.into_iter().map(|(_, tag)| tag).chain([OLDEST_TEST]).map(|tag| reference(policy, tag))
}

fn reference(policy: &ClusterGpuPolicy, tag: &str) -> String {
    let spec = &policy.spec;
    images::reference(&spec.images, spec.readiness.validation.image.as_ref(), images::SAMPLES, tag)
}

fn test_for(branch: u32) -> &'static str {
    TESTS.into_iter().find(|(first, _)| branch >= *first).map_or(OLDEST_TEST, |(_, tag)| tag)
}

/// Returns the name of a test's pod: each test, and each retry, has its own pod.
pub fn name(of: &impl Serialize) -> String {
    format!("{}-{}", keys::VALIDATION, revision::short(of, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_has_a_cuda_version_that_the_driver_supports() {
        for (driver, tag) in [
            ("595.91.07", "vectoradd-cuda12.5.0"),
            ("525.60.13", "vectoradd-cuda12.5.0"),
            ("515.105.01", "vectoradd-cuda11.7.1"),
            ("470.256.02", "vectoradd-cuda11.7.1"),
            ("450.51.05", "vectoradd-cuda11.7.1"),
            ("440.33.01", "vectoradd-cuda10.2"),
            ("384.81", "vectoradd-cuda10.2"),
        ] {
            assert_eq!(Version::leading(driver).map(|version| test_for(version.major())), Some(tag), "{driver}");
        }
    }
}
