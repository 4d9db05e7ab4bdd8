//! How many lines of Rust each crate may have, tests included: what is added makes room for itself. A crate that needs more gets more by a
//! change of this list, and one that has shrunk gives back what it does not need.

use std::{collections::BTreeMap, fs};

use super::{all_files, crates, none};

/// In hundreds of lines.
const BUDGETS: [(&str, usize); 24] = [
    ("crates/cli", 96),
    ("crates/common", 14),
    ("crates/crd", 59),
    ("crates/diagnose", 20),
    ("crates/host", 77),
    ("crates/node-tools", 56),
    ("crates/nvml-probe", 88),
    ("crates/operator", 70),
    ("crates/plan", 464),
    ("crates/test-api-server", 11),
    ("crates/test-support", 37),
    ("e2e", 118),
    ("e2e/benchmark", 18),
    ("e2e/checks", 15),
    ("e2e/client", 10),
    ("e2e/cluster", 32),
    ("e2e/fleet", 14),
    ("e2e/generated", 16),
    ("e2e/harness", 25),
    ("e2e/standins/docker", 3),
    ("e2e/standins/node", 12),
    ("e2e/standins/nvml", 37),
    ("e2e/standins/plugin", 8),
    ("e2e/xtask", 19),
];
/// A budget may exceed its crate by this part, in percent, and by a hundred lines.
const SLACK: usize = 10;

#[test]
fn every_crate_keeps_to_its_budget_of_lines() {
    let mut lines: BTreeMap<String, usize> = crates().into_iter().map(|name| (name, 0)).collect();
    for (name, file) in all_files() {
        let (of, _) = name.rsplit_once("/src/").or_else(|| name.split_once("/tests/")).expect("a file of a crate");
        *lines.entry(of.to_owned()).or_default() += fs::read_to_string(&file).expect("a readable file").lines().count();
    }
    let found = lines.iter().filter_map(|(name, lines)| {
        let budget = BUDGETS.iter().find(|(of, _)| of == name).map_or(0, |(_, hundreds)| hundreds * 100);
        let is_wide = budget > lines + lines * SLACK / 100 + 100;
        (*lines > budget || is_wide).then(|| format!("(\"{name}\", {}),", lines.div_ceil(100)))
    });
    none("crates whose budget does not fit; what they need at present is", found);
}
