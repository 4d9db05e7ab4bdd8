//! The MIG devices that a policy wants on each GPU.

use std::collections::BTreeMap;

use gpu_operator_crd::policy::MigProfile;

/// The number of instances of each profile on every GPU, by NVML's profile names. If empty, MIG is disabled.
pub type Layout = BTreeMap<String, u32>;

/// Returns a policy's layout with NVML's profile names.
#[must_use]
pub fn layout(written: &[MigProfile]) -> Layout {
    let mut layout = Layout::new();
    for MigProfile { profile, count } in written {
        // Policies may use a dot as in resource names, which cannot contain a plus.
        *layout.entry(profile.replace("gb.", "gb+")).or_default() += count;
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_nvmls_profile_names() {
        let profile = |profile: &str, count| MigProfile { profile: profile.into(), count };
        for (written, name) in [
            ("1g.24gb", "1g.24gb"),
            ("1g.24gb+me", "1g.24gb+me"),
            ("1g.24gb.me", "1g.24gb+me"),
            ("1g.24gb+me.all", "1g.24gb+me.all"),
            ("1g.24gb.me.all", "1g.24gb+me.all"),
            ("1g.24gb+gfx", "1g.24gb+gfx"),
            ("1g.24gb.gfx", "1g.24gb+gfx"),
            ("1g.24gb-me", "1g.24gb-me"),
        ] {
            assert_eq!(layout(&[profile(written, 1)]), Layout::from([(name.to_owned(), 1)]), "{written}");
        }
        let twice = layout(&[profile("1g.10gb.me", 1), profile("1g.10gb+me", 2), profile("1g.10gb", 3)]);
        assert_eq!(twice, Layout::from([("1g.10gb+me".to_owned(), 3), ("1g.10gb".to_owned(), 3)]));
    }
}
