use proptest::{collection::vec, prelude::*, sample::subsequence};

use super::*;

/// The profiles of a GPU with eight memory slices and seven compute slices, as shown in NVIDIA's MIG user guide.
fn profiles() -> Vec<MigProfile> {
    let supported = |name: &str, size, starts: &[u32]| MigProfile {
        name: name.into(),
        placements: starts.iter().map(|&start| Placement { start, size }).collect(),
    };
    vec![
        supported("1g.10gb", 1, &[0, 1, 2, 3, 4, 5, 6]),
        supported("1g.20gb", 2, &[0, 2, 4, 6]),
        supported("2g.20gb", 2, &[0, 2, 4]),
        supported("3g.40gb", 4, &[0, 4]),
        supported("4g.40gb", 4, &[0]),
        supported("7g.80gb", 8, &[0]),
    ]
}

fn layout(profiles: &[(&str, u32)]) -> GpuLayout {
    profiles.iter().map(|(profile, count)| ((*profile).to_owned(), *count)).collect()
}

fn client(pid: u32) -> GpuClient {
    GpuClient { pid, name: "training".into() }
}

fn on(instances: Vec<Instance>) -> MigState {
    MigState { enabled: true, pending: true, instances, clients: vec![] }
}

fn instance(id: u32, profile: &str, start: u32, users: &[u32]) -> Instance {
    let supported = profiles().into_iter().find(|supported| supported.name == profile).expect("a profile");
    let placement = supported.placements.into_iter().find(|placement| placement.start == start).expect("a placement");
    Instance { id, profile: profile.into(), placement, clients: users.iter().copied().map(client).collect() }
}

/// Applies steps to a GPU. NVML would reject what is asserted here.
fn done(mut gpu: MigState, steps: &[MigStep]) -> MigState {
    for (number, step) in steps.iter().enumerate() {
        match step {
            MigStep::Destroy(id) => {
                let at = gpu.instances.iter().position(|instance| instance.id == *id).expect("an instance");
                let gone = gpu.instances.remove(at);
                assert!(gone.clients.is_empty(), "{gone:?} is in use");
            }
            MigStep::SetMode(mode) => {
                assert!(gpu.instances.is_empty() && gpu.clients.is_empty(), "{gpu:?}");
                (gpu.enabled, gpu.pending) = (*mode, *mode);
            }
            MigStep::Create { profile, placement } => {
                assert!(gpu.enabled, "MIG is off");
                let supported = profiles().into_iter().find(|supported| supported.name == *profile).expect("a profile");
                assert!(supported.placements.contains(placement), "{profile} at {placement:?}");
                let other = gpu.instances.iter().find(|other| other.placement.overlaps(*placement));
                assert_eq!(other, None, "{profile} at {placement:?}");
                let id = 1000 + u32::try_from(number).expect("few steps");
                gpu.instances.push(Instance { id, profile: profile.clone(), placement: *placement, clients: vec![] });
            }
        }
    }
    gpu
}

fn counted(gpu: &MigState) -> GpuLayout {
    let mut layout = GpuLayout::new();
    gpu.instances.iter().for_each(|instance| *layout.entry(instance.profile.clone()).or_default() += 1);
    layout
}

#[test]
fn a_matching_layout_needs_no_steps() {
    let gpu = on(vec![instance(1, "3g.40gb", 4, &[7]), instance(2, "1g.10gb", 0, &[])]);
    assert_eq!(plan(&layout(&[("3g.40gb", 1), ("1g.10gb", 1), ("2g.20gb", 0)]), &gpu, &profiles()), Ok(vec![]));
    assert_eq!(plan(&GpuLayout::new(), &MigState::default(), &profiles()), Ok(vec![]));
}

#[test]
fn the_mode_is_changed_alone_and_only_if_the_gpu_is_unused() {
    let wanted = layout(&[("1g.10gb", 7)]);
    assert_eq!(plan(&wanted, &MigState::default(), &profiles()), Ok(vec![MigStep::SetMode(true)]));
    let used = MigState { clients: vec![client(7)], ..MigState::default() };
    let blocked = plan(&wanted, &used, &profiles()).expect_err("in use");
    assert_eq!(blocked.to_string(), "in use by training (7)");
    let set = MigState { pending: true, ..MigState::default() };
    assert_eq!(plan(&wanted, &set, &profiles()), Err(Obstacle::ResetNeeded));
    assert_eq!(
        plan(&GpuLayout::new(), &set, &profiles()),
        Ok(vec![MigStep::SetMode(false)]),
        "the mode was never applied, so no reset is needed"
    );
    let divided = on(vec![instance(1, "7g.80gb", 0, &[])]);
    assert_eq!(plan(&GpuLayout::new(), &divided, &profiles()), Ok(vec![MigStep::Destroy(1), MigStep::SetMode(false)]));
}

#[test]
fn an_instance_in_use_is_kept_over_an_unused_one() {
    let gpu = on(vec![instance(1, "1g.10gb", 0, &[]), instance(2, "1g.10gb", 6, &[7])]);
    assert_eq!(plan(&layout(&[("1g.10gb", 1)]), &gpu, &profiles()), Ok(vec![MigStep::Destroy(1)]));
}

#[test]
fn instances_in_the_way_are_moved_only_if_they_are_unused() {
    let wanted = layout(&[("4g.40gb", 1), ("1g.10gb", 1)]);
    let free = on(vec![instance(1, "1g.10gb", 0, &[])]);
    let moved = plan(&wanted, &free, &profiles()).expect("steps");
    assert_eq!((moved[0].clone(), moved.len()), (MigStep::Destroy(1), 3));
    let used = on(vec![instance(1, "1g.10gb", 0, &[7])]);
    assert_eq!(plan(&wanted, &used, &profiles()), Err(Obstacle::Blocked(vec![client(7)])));
}

#[test]
fn impossible_layouts_are_rejected_with_the_reason() {
    for (wanted, message) in [
        (
            layout(&[("9g.99gb", 1)]),
            "the GPU has no profile 9g.99gb; it has 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb",
        ),
        (layout(&[("1g.10gb", 8)]), "the GPU has no room for all of these profiles at once"),
        (layout(&[("4g.40gb", 1), ("2g.20gb", 2)]), "the GPU has no room for all of these profiles at once"),
        (layout(&[("1g.10gb", u32::MAX)]), "the GPU has no room for all of these profiles at once"),
    ] {
        assert_eq!(plan(&wanted, &on(vec![]), &profiles()).expect_err("an obstacle").to_string(), message);
    }
}

/// Generates a possible MIG state: some placements in random order, as far as their slices are free.
fn divided() -> impl Strategy<Value = MigState> {
    let places: Vec<(String, Placement)> = profiles()
        .into_iter()
        .flat_map(|supported| supported.placements.into_iter().map(move |place| (supported.name.clone(), place)))
        .collect();
    let count = places.len();
    let chosen = subsequence(places, 0..=count).prop_shuffle();
    (chosen, vec(any::<bool>(), count)).prop_map(|(chosen, used)| {
        let mut gpu = on(vec![]);
        for ((profile, placement), (id, used)) in chosen.into_iter().zip((1..).zip(used)) {
            if gpu.instances.iter().all(|other| !other.placement.overlaps(placement)) {
                let clients = if used { vec![client(id)] } else { vec![] };
                gpu.instances.push(Instance { id, profile, placement, clients });
            }
        }
        gpu
    })
}

proptest! {
    #[test]
    fn any_layout_becomes_any_other_and_instances_in_use_stay(from in divided(), to in divided()) {
        let wanted = counted(&to);
        match plan(&wanted, &from, &profiles()) {
            Ok(steps) => {
                let gpu = done(from, &steps);
                prop_assert_eq!(counted(&gpu), wanted.clone());
                prop_assert_eq!(plan(&wanted, &gpu, &profiles()), Ok(vec![]), "a second plan is empty");
            }
            Err(Obstacle::Blocked(clients)) => prop_assert!(!clients.is_empty()),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn an_unused_gpu_can_always_be_repartitioned(mut from in divided(), to in divided()) {
        from.instances.iter_mut().for_each(|instance| instance.clients.clear());
        prop_assert!(plan(&counted(&to), &from, &profiles()).is_ok());
    }
}
