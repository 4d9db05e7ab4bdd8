//! The MIG devices that a policy wants on each GPU.

use std::collections::BTreeMap;

use gpu_operator_crd::policy::MigProfile;

/// How often each profile is wanted on every GPU, by NVML's names. Empty: MIG is to be off.
pub type Layout = BTreeMap<String, u32>;

/// A layout as it is written, with the profiles' names as NVML has them.
#[must_use]
pub fn layout(written: &[MigProfile]) -> Layout {
    let mut layout = Layout::new();
    for MigProfile { profile, count } in written {
        // Resources are named `.me`, because no resource's name can have a plus.
        *layout.entry(profile.replace(".me", "+me")).or_default() += count;
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_the_names_that_nvml_has() {
        let profile = |profile: &str, count| MigProfile { profile: profile.into(), count };
        let layout = layout(&[profile("1g.10gb.me", 1), profile("1g.10gb", 3)]);
        assert_eq!(layout, Layout::from([("1g.10gb+me".to_owned(), 1), ("1g.10gb".to_owned(), 3)]));
    }
}
