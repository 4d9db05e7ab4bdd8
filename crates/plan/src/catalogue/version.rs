//! Driver versions and their branches.

use gpu_operator_common::version::Version;

/// The branch of a driver version: 580 of `580.173.02`, and of `580` itself. Absent where the text is no version.
pub fn branch_of(version: &str) -> Option<u16> {
    parsed(version)?.major().try_into().ok()
}

/// Returns a version of one to three numbers, the first of which has three digits.
pub(super) fn parsed(version: &str) -> Option<Version> {
    let version: Version = version.parse().ok()?;
    (version.parts() <= 3 && (100..1000).contains(&version.major())).then_some(version)
}
