//! The MIG devices that a policy requests on each GPU of a node.

use gpu_operator_common::mig_layout::{GpuLayout, MigLayout};
use gpu_operator_crd::{
    policy::{Mig, MigLayoutEntry, MigMode, MigProfile},
    reason::Reason,
    report::Report,
};

use crate::note::Fault;

/// Uses NVML's profile names; `None` if GPUs are not repartitioned.
pub fn layout(mig: &Mig) -> Option<MigLayout> {
    match mig.mode() {
        MigMode::Unmanaged => None,
        MigMode::Disabled => Some(MigLayout::default()),
        MigMode::Layout => Some(of_entries(&mig.layout)),
    }
}

fn of_entries(entries: &[MigLayoutEntry]) -> MigLayout {
    let mut layout = MigLayout::default();
    for MigLayoutEntry { devices, profiles } in entries {
        let profiles = of_profiles(profiles);
        if devices.is_empty() {
            layout.others = profiles;
        } else {
            layout.devices.extend(devices.iter().map(|index| (*index, profiles.clone())));
        }
    }
    layout
}

fn of_profiles(written: &[MigProfile]) -> GpuLayout {
    let mut layout = GpuLayout::new();
    for MigProfile { profile, count } in written {
        // Policies may use a dot as in resource names, which cannot contain a plus.
        *layout.entry(profile.replace("gb.", "gb+")).or_default() += count;
    }
    layout
}

/// A missing GPU, which is `expected`, is not the layout's fault.
pub fn check(layout: Option<&MigLayout>, report: &Report, expected: Option<u32>) -> Result<(), Fault> {
    let on_bus = u32::try_from(report.gpus.len()).unwrap_or(u32::MAX);
    let gpus = expected.map_or(on_bus, |expected| expected.max(on_bus));
    let checked = layout.map_or(Ok(()), |layout| layout.check(gpus));
    checked.map_err(|error| Fault { reason: Reason::MigLayoutRefused, message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_the_profiles_of_each_gpu_by_nvmls_names() {
        for (written, json) in [
            ("{}", "null"),
            ("{mode: Unmanaged}", "null"),
            ("{mode: Disabled}", "{}"),
            ("{layout: [{profiles: [{profile: 1g.10gb, count: 7}]}]}", r#"{"others":{"1g.10gb":7}}"#),
            (
                "{mode: Layout, layout: [{devices: [3, 0], profiles: [{profile: 1g.10gb, count: 7}]}, {profiles: [{profile: 3g.40gb, count: 2}]}, {devices: [1], profiles: [{profile: 7g.80gb, count: 1}]}]}",
                r#"{"devices":{"0":{"1g.10gb":7},"1":{"7g.80gb":1},"3":{"1g.10gb":7}},"others":{"3g.40gb":2}}"#,
            ),
            (
                "{layout: [{profiles: [{profile: 1g.10gb.me, count: 1}, {profile: 1g.10gb+me, count: 2}, {profile: 1g.10gb, count: 3}]}]}",
                r#"{"others":{"1g.10gb":3,"1g.10gb+me":3}}"#,
            ),
        ] {
            let mig: Mig = serde_yaml::from_str(written).unwrap();
            assert_eq!(serde_json::to_string(&layout(&mig)).unwrap(), json, "{written}");
        }
    }

    #[test]
    fn profiles_have_nvmls_names() {
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
            let profile = MigProfile { profile: written.into(), count: 1 };
            assert_eq!(of_profiles(&[profile]), GpuLayout::from([(name.to_owned(), 1)]), "{written}");
        }
    }
}
