//! The kinds of driver images, which differ in what a second start does.

use std::str::FromStr;

use anyhow::{Error, bail};

/// Modules that depend on `nvidia` and that every image unloads with it.
const DEPENDANTS: [&str; 4] = ["nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia_drm"];

/// A kind of driver image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Built since 2026-01-15: records the digest of its configuration, and keeps a driver that is loaded with the
    /// same.
    #[default]
    Current,
    /// Built before: unloads and loads at every start.
    Old,
    /// With modules for one kernel: unloads and loads at every start, and counts references in a different way.
    Precompiled,
}

impl Kind {
    /// Returns whether the image reads and writes the digest of its configuration.
    pub(super) fn records_digest(self) -> bool {
        self == Self::Current
    }

    /// Returns the modules that the image expects to depend on `nvidia`. Only a precompiled one knows `nvidia_drm`.
    pub(super) fn dependants(self) -> &'static [&'static str] {
        match self {
            Self::Current | Self::Old => &DEPENDANTS[..3],
            Self::Precompiled => &DEPENDANTS,
        }
    }

    /// Returns whether the driver counts as used, from the reference counts of `nvidia` and of its loaded dependants.
    pub(super) fn is_in_use(self, nvidia: usize, dependants: &[usize]) -> bool {
        // Each dependant holds one reference; any other reference is held by a user of the driver.
        nvidia > dependants.len() || self != Self::Precompiled && dependants.iter().any(|count| *count > 0)
    }

    /// Returns whether a start keeps the loaded driver. `digest` is the container's own, `recorded` is the content of
    /// the state file.
    pub(super) fn keeps_driver(self, is_loaded: bool, digest: &str, recorded: Option<&str>) -> bool {
        self.records_digest()
            && is_loaded
            && !digest.is_empty()
            && recorded.map(|text| text.trim_end_matches('\n')) == Some(digest)
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "current" => Self::Current,
            "old" => Self::Old,
            "precompiled" => Self::Precompiled,
            _ => bail!("STANDIN_KIND is {name:?}: it must be current, old or precompiled"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_beyond_one_per_dependant_count_as_use() {
        let (modeset, uvm, drm) = (0, 0, 0);
        for (kind, nvidia, dependants, used) in [
            (Kind::Current, 0, vec![], false),
            (Kind::Current, 1, vec![], true),
            (Kind::Current, 2, vec![modeset, uvm], false),
            (Kind::Current, 3, vec![modeset, uvm], true),
            (Kind::Old, 2, vec![modeset, uvm], false),
            (Kind::Old, 2, vec![modeset, 1], true),
            // These images do not list nvidia_drm as a dependant; when it is loaded, modeset has a reference too.
            (Kind::Old, 3, vec![1, uvm], true),
            (Kind::Precompiled, 3, vec![1, uvm, drm], false),
            (Kind::Precompiled, 4, vec![1, uvm, drm], true),
        ] {
            assert_eq!(kind.is_in_use(nvidia, &dependants), used, "{kind:?} {nvidia} {dependants:?}");
        }
    }

    #[test]
    fn only_a_current_image_with_an_equal_digest_keeps_the_driver() {
        for (kind, is_loaded, digest, recorded, kept) in [
            (Kind::Current, true, "abc", Some("abc\n"), true),
            (Kind::Current, true, "abc", Some("abd\n"), false),
            (Kind::Current, true, "abc", None, false),
            (Kind::Current, false, "abc", Some("abc\n"), false),
            // An empty digest leaves an empty line, which proves nothing.
            (Kind::Current, true, "", Some("\n"), false),
            (Kind::Old, true, "abc", Some("abc\n"), false),
            (Kind::Precompiled, true, "abc", Some("abc\n"), false),
        ] {
            assert_eq!(
                kind.keeps_driver(is_loaded, digest, recorded),
                kept,
                "{kind:?} {is_loaded} {digest} {recorded:?}"
            );
        }
    }
}
