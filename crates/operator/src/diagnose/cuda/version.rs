//! CUDA versions, and what a driver serves beyond the one that it was made with.

use gpu_operator_common::version as dotted;

/// A CUDA version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Such as 12.
    pub major: u32,
    /// Such as 8.
    pub minor: u32,
}

impl Version {
    /// Reads `12.8` or `12.8.1`.
    pub fn parse(text: &str) -> Option<Self> {
        let version: dotted::Version = text.parse().ok()?;
        Some(Self { major: version.major(), minor: version.minor()? })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// From CUDA 11 on, a program for one minor version runs on the driver of an earlier one of the same major version.
const MINOR_COMPATIBILITY: u32 = 11;

/// The earliest driver branch on which NVIDIA's forward-compatibility package of a CUDA major version runs. General knowledge,
/// unverified, and rather too early than too late: where the package may help, nothing is said.
const FORWARD_COMPATIBILITY: [(u32, u32); 4] = [(10, 384), (11, 418), (12, 450), (13, 525)];

/// Whether an image for one CUDA version surely does not run on a driver that serves another. An image may bring NVIDIA's
/// forward-compatibility package, which bridges one major version, but not on consumers' cards.
pub fn falls_short(asked: Version, served: Version, branch: u32, consumer: bool) -> bool {
    if asked <= served || asked.major == served.major && asked.major >= MINOR_COMPATIBILITY {
        return false;
    }
    let bridged = asked.major <= served.major + 1
        && !consumer
        && match FORWARD_COMPATIBILITY.iter().find(|(major, _)| *major == asked.major) {
            Some((_, first)) => branch >= *first,
            // None before CUDA 10; of those to come nothing is known.
            None => asked.major > 10,
        };
    !bridged
}
