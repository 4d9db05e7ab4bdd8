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
        // Policies use `.me` as in resource names, which cannot contain a plus.
        *layout.entry(profile.replace(".me", "+me")).or_default() += count;
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_nvmls_profile_names() {
        let profile = |profile: &str, count| MigProfile { profile: profile.into(), count };
        let layout = layout(&[profile("1g.10gb.me", 1), profile("1g.10gb", 3)]);
        assert_eq!(layout, Layout::from([("1g.10gb+me".to_owned(), 1), ("1g.10gb".to_owned(), 3)]));
    }
}
