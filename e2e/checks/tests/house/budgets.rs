//! How many lines of Rust each crate may have, tests included: what is added makes room for itself. A crate that needs more gets more by a
//! change of this list, and one that has shrunk gives back what it does not need.

use std::{collections::BTreeMap, fs};

use super::{all_files, crates, none};

/// In hundreds of lines.
const BUDGETS: [(&str, usize); 0] = [];
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
