use proptest::{collection::vec, prelude::*, sample::subsequence};

use super::*;

/// The profiles of a GPU with eight memory slices and seven compute slices, as shown in NVIDIA's MIG user guide.
fn offers() -> Vec<Offer> {
    let offer = |profile: &str, size, starts: &[u32]| Offer {
        profile: profile.into(),
        placements: starts.iter().map(|&start| Placement { start, size }).collect(),
    };
    vec![
        offer("1g.10gb", 1, &[0, 1, 2, 3, 4, 5, 6]),
        offer("1g.20gb", 2, &[0, 2, 4, 6]),
        offer("2g.20gb", 2, &[0, 2, 4]),
        offer("3g.40gb", 4, &[0, 4]),
        offer("4g.40gb", 4, &[0]),
        offer("7g.80gb", 8, &[0]),
    ]
}

fn layout(profiles: &[(&str, u32)]) -> Layout {
    profiles.iter().map(|(profile, count)| ((*profile).to_owned(), *count)).collect()
}

fn client(pid: u32) -> GpuClient {
    GpuClient { pid, name: "training".into() }
}

fn on(instances: Vec<Instance>) -> Divided {
    Divided { enabled: true, pending: true, instances, clients: vec![] }
}

fn instance(id: u32, profile: &str, start: u32, users: &[u32]) -> Instance {
    let offer = offers().into_iter().find(|offer| offer.profile == profile).expect("a profile");
    let placement = offer.placements.into_iter().find(|placement| placement.start == start).expect("a placement");
    Instance { id, profile: profile.into(), placement, clients: users.iter().copied().map(client).collect() }
}

/// Applies steps to a GPU. NVML would reject what is asserted here.
fn done(mut gpu: Divided, steps: &[Step]) -> Divided {
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Destroy(id) => {
                let at = gpu.instances.iter().position(|instance| instance.id == *id).expect("an instance");
                let gone = gpu.instances.remove(at);
                assert!(gone.clients.is_empty(), "{gone:?} is in use");
            }
            Step::SetMode(mode) => {
                assert!(gpu.instances.is_empty() && gpu.clients.is_empty(), "{gpu:?}");
                (gpu.enabled, gpu.pending) = (*mode, *mode);
            }
            Step::Create { profile, placement } => {
                assert!(gpu.enabled, "MIG is off");
                let offer = offers().into_iter().find(|offer| offer.profile == *profile).expect("a profile");
                assert!(offer.placements.contains(placement), "{profile} at {placement:?}");
                let other = gpu.instances.iter().find(|other| other.placement.overlaps(*placement));
                assert_eq!(other, None, "{profile} at {placement:?}");
                let id = 1000 + u32::try_from(number).expect("few steps");
                gpu.instances.push(Instance { id, profile: profile.clone(), placement: *placement, clients: vec![] });
            }
        }
    }
    gpu
}

fn counted(gpu: &Divided) -> Layout {
    let mut layout = Layout::new();
    gpu.instances.iter().for_each(|instance| *layout.entry(instance.profile.clone()).or_default() += 1);
    layout
}

#[test]
fn a_matching_layout_needs_no_steps() {
    let gpu = on(vec![instance(1, "3g.40gb", 4, &[7]), instance(2, "1g.10gb", 0, &[])]);
    assert_eq!(steps(&layout(&[("3g.40gb", 1), ("1g.10gb", 1), ("2g.20gb", 0)]), &gpu, &offers()), Ok(vec![]));
    assert_eq!(steps(&Layout::new(), &Divided::default(), &offers()), Ok(vec![]));
}

#[test]
fn the_mode_is_changed_alone_and_only_if_the_gpu_is_unused() {
    let wanted = layout(&[("1g.10gb", 7)]);
    assert_eq!(steps(&wanted, &Divided::default(), &offers()), Ok(vec![Step::SetMode(true)]));
    let used = Divided { clients: vec![client(7)], ..Divided::default() };
    let blocked = steps(&wanted, &used, &offers()).expect_err("in use");
    assert_eq!(blocked.to_string(), "in use by training (7)");
    let set = Divided { pending: true, ..Divided::default() };
    assert_eq!(steps(&wanted, &set, &offers()), Err(Obstacle::ResetNeeded));
    assert_eq!(
        steps(&Layout::new(), &set, &offers()),
        Ok(vec![Step::SetMode(false)]),
        "it was not reset, and does not have to be"
    );
    let divided = on(vec![instance(1, "7g.80gb", 0, &[])]);
    assert_eq!(steps(&Layout::new(), &divided, &offers()), Ok(vec![Step::Destroy(1), Step::SetMode(false)]));
}

#[test]
fn an_instance_in_use_is_kept_over_an_unused_one() {
    let gpu = on(vec![instance(1, "1g.10gb", 0, &[]), instance(2, "1g.10gb", 6, &[7])]);
    assert_eq!(steps(&layout(&[("1g.10gb", 1)]), &gpu, &offers()), Ok(vec![Step::Destroy(1)]));
}

#[test]
fn instances_in_the_way_are_moved_only_if_they_are_unused() {
    let wanted = layout(&[("4g.40gb", 1), ("1g.10gb", 1)]);
    let free = on(vec![instance(1, "1g.10gb", 0, &[])]);
    let moved = steps(&wanted, &free, &offers()).expect("steps");
    assert_eq!((moved[0].clone(), moved.len()), (Step::Destroy(1), 3));
    let used = on(vec![instance(1, "1g.10gb", 0, &[7])]);
    assert_eq!(steps(&wanted, &used, &offers()), Err(Obstacle::Blocked(vec![client(7)])));
}

#[test]
fn impossible_layouts_are_rejected_with_the_reason() {
    for (wanted, said) in [
        (
            layout(&[("9g.99gb", 1)]),
            "the GPU has no profile 9g.99gb; it has 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb",
        ),
        (layout(&[("1g.10gb", 8)]), "the GPU has no room for all of these profiles at once"),
        (layout(&[("4g.40gb", 1), ("2g.20gb", 2)]), "the GPU has no room for all of these profiles at once"),
        (layout(&[("1g.10gb", u32::MAX)]), "the GPU has no room for all of these profiles at once"),
    ] {
        assert_eq!(steps(&wanted, &on(vec![]), &offers()).expect_err("an obstacle").to_string(), said);
    }
}

/// Generates a possible MIG state: some placements in random order, as far as they are free.
fn divided() -> impl Strategy<Value = Divided> {
    let places: Vec<(String, Placement)> = offers()
        .into_iter()
        .flat_map(|offer| offer.placements.into_iter().map(move |place| (offer.profile.clone(), place)))
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
    fn any_layout_can_be_changed_to_any_other_and_no_instance_in_use_is_destroyed(from in divided(), to in divided()) {
        let wanted = counted(&to);
        match steps(&wanted, &from, &offers()) {
            Ok(steps) => {
                let gpu = done(from, &steps);
                prop_assert_eq!(counted(&gpu), wanted.clone());
                prop_assert_eq!(super::steps(&wanted, &gpu, &offers()), Ok(vec![]), "a second plan is empty");
            }
            Err(Obstacle::Blocked(clients)) => prop_assert!(!clients.is_empty()),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn an_unused_gpu_can_always_be_repartitioned(mut from in divided(), to in divided()) {
        from.instances.iter_mut().for_each(|instance| instance.clients.clear());
        prop_assert!(steps(&counted(&to), &from, &offers()).is_ok());
    }
}
