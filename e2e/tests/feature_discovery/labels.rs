//! Compares the operator's labels with those of GPU feature discovery.

use std::collections::BTreeSet;

use gpu_operator_plan::{output, world::ResourceLayout};

use crate::{
    gfd::{self, Labels},
    machine::{
        A100, B200, Cards, H100, K80, K620, L40S, Machine, P100, SEVENTHS, T4, TWO_KINDS, V100, divided, joined, whole,
    },
};

/// The maximum number of runs of GPU feature discovery if its result is random.
const RUNS: usize = 64;

const CLUSTER: &str = "6b2c0001-0203-4abb-8405-060708090aff";
const TIME_SLICING: &str = "{sharing: {timeSlicing: {replicas: 4}}}";
const SINGLE: &str = "{mig: {strategy: Single}}";
const MIXED: &str = "{mig: {strategy: Mixed}}";

/// The name of each case, the GPUs of its machine, and the policy's `devicePlugin`.
const CASES: [(&str, &[Cards], &str); 21] = [
    ("K80", &[whole(4, K80)], "{}"),
    ("Quadro K620, which drives displays", &[whole(1, K620)], "{}"),
    ("P100", &[whole(4, P100)], "{}"),
    ("V100", &[whole(8, V100)], "{}"),
    ("T4", &[whole(8, T4)], "{}"),
    ("A100", &[whole(8, A100)], "{}"),
    ("L40S", &[whole(4, L40S)], "{}"),
    ("H100", &[whole(8, H100)], "{}"),
    ("B200", &[whole(8, B200)], "{}"),
    ("B200 in a fabric of several machines", &[joined(4, B200, CLUSTER, 7)], "{}"),
    ("B200 in two cliques", &[joined(2, B200, CLUSTER, 7), joined(2, B200, CLUSTER, 8)], "{}"),
    ("time slicing", &[whole(2, T4)], TIME_SLICING),
    ("time slicing, renamed", &[whole(2, T4)], "{sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}}"),
    ("MPS", &[whole(2, L40S)], "{sharing: {mps: {replicas: 8}}}"),
    ("MIG, single", &[divided(2, A100, &SEVENTHS)], SINGLE),
    ("MIG, single, without MIG instances", &[whole(2, A100)], SINGLE),
    ("MIG, single, with two profiles", &[divided(2, A100, &TWO_KINDS)], SINGLE),
    ("MIG, mixed", &[divided(2, A100, &TWO_KINDS)], MIXED),
    ("MIG, mixed, with one whole GPU", &[divided(1, H100, &TWO_KINDS), whole(1, H100)], MIXED),
    (
        "MIG, mixed, with time slicing",
        &[divided(2, A100, &TWO_KINDS)],
        "{mig: {strategy: Mixed}, sharing: {timeSlicing: {replicas: 4}}}",
    ),
    ("MIG without a strategy", &[divided(2, A100, &SEVENTHS)], "{}"),
];

fn offer(plugin: &str) -> ResourceLayout {
    ResourceLayout::of(&serde_yaml::from_str(plugin).expect("a device plugin"))
}

fn operator_labels(machine: &Machine, offer: &ResourceLayout) -> Labels {
    let report = machine.report();
    output::gfd::labels(&report, offer).unwrap_or_else(|| panic!("no labels for {report:#?}")).into_iter().collect()
}

/// Returns the labels in which two sets differ, one per line.
fn differences(third_party: &Labels, operators: &Labels) -> Vec<String> {
    let keys: BTreeSet<&String> = third_party.keys().chain(operators.keys()).collect();
    let differ = keys.into_iter().filter(|key| third_party.get(*key) != operators.get(*key));
    differ
        .map(|key| format!("  {key}: NVIDIA's {:?}, the operator's {:?}", third_party.get(key), operators.get(key)))
        .collect()
}

#[test]
fn every_machine_has_the_labels_of_gpu_feature_discovery() {
    let mut wrong = Vec::new();
    for (case, cards, plugin) in CASES {
        let (machine, offer) = (Machine::new(cards), offer(plugin));
        let differences = differences(&gfd::labels(&machine, &offer), &operator_labels(&machine, &offer));
        if !differences.is_empty() {
            wrong.push(format!("{case}:\n{}", differences.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_virtual_gpu_has_the_labels_of_gpu_feature_discovery() {
    let (machine, offer) = (Machine::new(&[whole(2, L40S)]), offer("{}"));
    machine.virtualise("550.90", "r550_00");
    let third_party = gfd::labels(&machine, &offer);
    assert_eq!(third_party.get("nvidia.com/vgpu.host-driver-version").map(String::as_str), Some("550.90"));
    let differences = differences(&third_party, &operator_labels(&machine, &offer));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// GPU feature discovery describes one of several models at random. The operator's labels must equal one of its
/// results.
#[test]
fn several_models_have_one_of_the_label_sets_of_gfd() {
    for cards in [[whole(2, T4), whole(1, A100)], [whole(1, A100), whole(2, T4)]] {
        let (machine, offer) = (Machine::new(&cards), offer("{}"));
        let operators = operator_labels(&machine, &offer);
        let mut last = Vec::new();
        let is_equal = (0..RUNS).any(|_| {
            last = differences(&gfd::labels(&machine, &offer), &operators);
            last.is_empty()
        });
        assert!(is_equal, "different in all {RUNS} runs; differences in the last one:\n{}", last.join("\n"));
    }
}
