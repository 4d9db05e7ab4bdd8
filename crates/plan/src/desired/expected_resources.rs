//! The expected resources of a node, computed from its GPUs and the resources that its device plugin makes of each.

use std::{borrow::Cow, collections::BTreeMap};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    health::HealthState,
    keys,
    policy::MigStrategy,
    report::{Gpu, MigDevices, Report},
};

use crate::world::{ResourceLayout, Resources, is_gpu};

/// The MIG profiles that NVIDIA's plugin shares. Its configuration has no patterns, and ignores names that a node lacks. (Of A30, A100,
/// H100, H200, B200, GB200 and RTX PRO 6000; partly unverified. Other profiles are neither shared nor expected to be.)
pub const PROFILES: [&str; 39] = [
    "1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.6gb", "2g.12gb", "4g.24gb", "1g.10gb", "2g.20gb",
    "3g.40gb", "4g.40gb", "7g.80gb", "1g.20gb", "1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb",
    "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb", "1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb",
    "4g.90gb", "7g.180gb", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb", "2g.48gb", "4g.96gb",
];

pub type Amounts = BTreeMap<Cow<'static, str>, u32>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedResources {
    /// Of all GPUs.
    pub whole: Amounts,
    /// Without GPUs that are missing or must not be used.
    pub usable: Amounts,
}

impl ExpectedResources {
    /// Of `expected` GPUs, `unhealthy` are missing or must not be used.
    pub fn of(expected: u32, unhealthy: u32, report: Option<&Report>, layout: &ResourceLayout) -> Self {
        let mut expected_resources = Self::default();
        let partitioned = |gpu: &&Gpu| layout.mig != MigStrategy::None && gpu.mig_devices.is_some();
        let gpus = report.map(|report| report.gpus.as_slice()).unwrap_or_default();
        let (mut plain, mut plain_unhealthy) = (expected, unhealthy.min(expected));
        for gpu in gpus.iter().filter(partitioned) {
            let well = gpu.health.state != HealthState::Unhealthy;
            plain = plain.saturating_sub(1);
            plain_unhealthy = plain_unhealthy.saturating_sub(u32::from(!well));
            for MigDevices { profile, count, .. } in gpu.mig_devices.iter().flatten() {
                let name = match layout.mig {
                    MigStrategy::Mixed => mig_resource(profile, layout.renamed && is_shared(profile)),
                    MigStrategy::None | MigStrategy::Single => gpu_resource(layout.renamed),
                };
                let shared = layout.mig != MigStrategy::Mixed || is_shared(profile);
                expected_resources.add(name, if shared { count * layout.replicas } else { *count }, well);
            }
        }
        let usable = plain.saturating_sub(plain_unhealthy);
        let whole = || layout.resource.clone().map_or_else(|| gpu_resource(layout.renamed), Cow::Owned);
        expected_resources.add(whole(), usable * layout.replicas, true);
        expected_resources.add(whole(), (plain - usable) * layout.replicas, false);
        expected_resources
    }

    fn add(&mut self, name: Cow<'static, str>, amount: u32, usable: bool) {
        if amount > 0 {
            *self.usable.entry(name.clone()).or_default() += if usable { amount } else { 0 };
            *self.whole.entry(name).or_default() += amount;
        }
    }

    pub fn units(&self) -> u32 {
        self.whole.values().sum()
    }

    /// Returns the first resource below the usable amount: name, actual and expected amount.
    pub fn lacks(&self, there: &Resources) -> Option<(&str, u32, u32)> {
        self.usable
            .iter()
            .map(|(name, usable)| (name.as_ref(), there.amount(name), *usable))
            .find(|(_, there, usable)| there < usable)
    }

    /// Returns the first of NVIDIA's GPU resources above its amount: name, actual and expected amount.
    pub fn exceeded<'r>(&self, there: &'r Resources) -> Option<(&'r str, u32, u32)> {
        let amount = |name: &str| self.whole.get(name).copied().unwrap_or_default();
        let gpus = there.names().map(Interned::as_str).filter(|name| is_gpu(name));
        gpus.map(|name| (name, there.amount(name), amount(name))).find(|(_, there, whole)| there > whole)
    }

    /// Empty if they are whole GPUs only.
    pub fn named(&self) -> BTreeMap<String, u32> {
        if self.whole.keys().all(|name| name == keys::GPU_RESOURCE) {
            return BTreeMap::new();
        }
        self.whole.iter().map(|(name, amount)| (name.to_string(), *amount)).collect()
    }
}

/// Whether NVIDIA's plugin shares MIG devices of a profile.
pub fn is_shared(profile: &str) -> bool {
    PROFILES.contains(&profile)
}

fn gpu_resource(renamed: bool) -> Cow<'static, str> {
    if renamed { Cow::Borrowed("nvidia.com/gpu.shared") } else { Cow::Borrowed(keys::GPU_RESOURCE) }
}

/// NVIDIA's plugin replaces a plus, which resource names cannot contain: `1g.10gb+me` is `mig-1g.10gb.me`, but `1g.24gb-me` is
/// `mig-1g.24gb-me`. (According to its source; not verified on a GPU.)
pub fn mig_resource(profile: &str, renamed: bool) -> Cow<'static, str> {
    let suffix = if renamed { ".shared" } else { "" };
    Cow::Owned(format!("{}mig-{}{suffix}", keys::RESOURCES, profile.replace('+', ".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(state: HealthState, mig: Option<&[(&str, u32)]>) -> Gpu {
        let devices = |mig: &[(&str, u32)]| {
            mig.iter()
                .map(|(profile, count)| MigDevices { profile: (*profile).into(), count: *count, attributes: None })
                .collect()
        };
        let mut gpu = Gpu { mig_devices: mig.map(devices), ..Gpu::default() };
        gpu.health.state = state;
        gpu
    }

    fn amounts(amounts: &Amounts) -> String {
        amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn expected_resources_are_gpus_times_the_resources_of_each() {
        let well = HealthState::Healthy;
        let unhealthy_gpu = HealthState::Unhealthy;
        let sevenths: Option<&[(&str, u32)]> = Some(&[("1g.10gb", 7)]);
        let halves: Option<&[(&str, u32)]> = Some(&[("3g.40gb", 2)]);
        let media: Option<&[(&str, u32)]> = Some(&[("1g.10gb+me", 1)]);
        let empty: Option<&[(&str, u32)]> = Some(&[]);
        let layout = |replicas, renamed, mig| ResourceLayout { replicas, renamed, mig, ..ResourceLayout::default() };
        let plain = ResourceLayout::default();
        for (case, gpus, unhealthy, layout, whole, usable) in [
            ("whole", vec![gpu(well, None); 2], 0, plain.clone(), "nvidia.com/gpu=2", "nvidia.com/gpu=2"),
            (
                "unhealthy",
                vec![gpu(well, None), gpu(unhealthy_gpu, None)],
                1,
                plain.clone(),
                "nvidia.com/gpu=2",
                "nvidia.com/gpu=1",
            ),
            ("missing", vec![gpu(well, None)], 1, plain.clone(), "nvidia.com/gpu=2", "nvidia.com/gpu=1"),
            (
                "sliced",
                vec![gpu(well, None), gpu(unhealthy_gpu, None)],
                1,
                layout(4, false, MigStrategy::None),
                "nvidia.com/gpu=8",
                "nvidia.com/gpu=4",
            ),
            (
                "renamed",
                vec![gpu(well, None); 2],
                0,
                layout(4, true, MigStrategy::None),
                "nvidia.com/gpu.shared=8",
                "nvidia.com/gpu.shared=8",
            ),
            ("MIG without a strategy", vec![gpu(well, sevenths); 2], 0, plain, "nvidia.com/gpu=2", "nvidia.com/gpu=2"),
            (
                "single",
                vec![gpu(well, sevenths), gpu(unhealthy_gpu, sevenths)],
                1,
                layout(1, false, MigStrategy::Single),
                "nvidia.com/gpu=14",
                "nvidia.com/gpu=7",
            ),
            (
                "mixed",
                vec![gpu(well, sevenths), gpu(well, halves)],
                0,
                layout(1, false, MigStrategy::Mixed),
                "nvidia.com/mig-1g.10gb=7 nvidia.com/mig-3g.40gb=2",
                "nvidia.com/mig-1g.10gb=7 nvidia.com/mig-3g.40gb=2",
            ),
            (
                "mixed beside a whole one",
                vec![gpu(well, sevenths), gpu(well, None)],
                0,
                layout(1, false, MigStrategy::Mixed),
                "nvidia.com/gpu=1 nvidia.com/mig-1g.10gb=7",
                "nvidia.com/gpu=1 nvidia.com/mig-1g.10gb=7",
            ),
            (
                "mixed and sliced",
                vec![gpu(well, sevenths), gpu(well, media)],
                0,
                layout(2, true, MigStrategy::Mixed),
                "nvidia.com/mig-1g.10gb.me=1 nvidia.com/mig-1g.10gb.shared=14",
                "nvidia.com/mig-1g.10gb.me=1 nvidia.com/mig-1g.10gb.shared=14",
            ),
            ("no layout yet", vec![gpu(well, empty); 2], 0, layout(1, false, MigStrategy::Mixed), "", ""),
        ] {
            let report = Report { gpus, ..Report::default() };
            let expected_resources = ExpectedResources::of(2, unhealthy, Some(&report), &layout);
            assert_eq!(
                (amounts(&expected_resources.whole).as_str(), amounts(&expected_resources.usable).as_str()),
                (whole, usable),
                "{case}"
            );
        }
    }

    #[test]
    fn a_mig_resource_is_named_after_its_profile() {
        for (profile, resource) in [
            ("1g.24gb", "nvidia.com/mig-1g.24gb"),
            ("1g.24gb+me", "nvidia.com/mig-1g.24gb.me"),
            ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
            ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
            ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ] {
            assert_eq!(mig_resource(profile, false), resource);
        }
    }

    #[test]
    fn missing_resources_are_reported_by_name() {
        let expected_resources = ExpectedResources::of(
            2,
            0,
            None,
            &ResourceLayout { replicas: 2, renamed: true, ..ResourceLayout::default() },
        );
        assert_eq!(expected_resources.lacks(&Resources::from(4)), Some(("nvidia.com/gpu.shared", 0, 4)));
        assert_eq!(expected_resources.lacks(&Resources::from_iter([("nvidia.com/gpu.shared", 4)])), None);
        assert_eq!(expected_resources.exceeded(&Resources::from_iter([("nvidia.com/gpu.shared", 4)])), None);
        for (name, whole) in [("nvidia.com/gpu.shared", 4), ("nvidia.com/gpu", 0), ("nvidia.com/mig-1g.5gb", 0)] {
            let there = Resources::from_iter([("example.com/gpu", 99), (name, 5)]);
            assert_eq!(expected_resources.exceeded(&there), Some((name, 5, whole)));
        }
        assert_eq!(expected_resources.units(), 4);
        assert_eq!(expected_resources.named(), BTreeMap::from([("nvidia.com/gpu.shared".to_owned(), 4)]));
        assert!(ExpectedResources::of(2, 0, None, &ResourceLayout::default()).named().is_empty());
    }
}
