//! CUDA versions, and which other versions a driver supports beyond its own.

use gpu_operator_common::version as dotted;

/// A CUDA version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The major version, such as 12.
    pub major: u32,
    /// The minor version, such as 8.
    pub minor: u32,
}

impl Version {
    /// Parses `12.8` or `12.8.1`.
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

/// From this major version on, a program for a minor version also runs on drivers for an earlier minor version.
const MINOR_COMPATIBILITY: u32 = 11;

/// The earliest driver branch on which NVIDIA's forward-compatibility package of a CUDA major version runs. General knowledge,
/// unverified, and more likely too early than too late: if the package may help, nothing is reported.
const FORWARD_COMPATIBILITY: [(u32, u32); 4] = [(10, 384), (11, 418), (12, 450), (13, 525)];

/// Returns whether an image for one CUDA version certainly does not run on a driver that supports another. An image may contain
/// NVIDIA's forward-compatibility package, which bridges one major version, but not on consumer cards.
pub fn falls_short(required: Version, served: Version, branch: u32, consumer: bool) -> bool {
    if required <= served || required.major == served.major && required.major >= MINOR_COMPATIBILITY {
        return false;
    }
    let bridged = required.major <= served.major + 1
        && !consumer
        && match FORWARD_COMPATIBILITY.iter().find(|(major, _)| *major == required.major) {
            Some((_, first)) => branch >= *first,
            // There is no package before CUDA 10, and later ones are unknown.
            None => required.major > 10,
        };
    !bridged
}
