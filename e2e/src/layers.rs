//! A test of the order of the folders that the crate's documentation lists.

use std::{fs, path::Path};

/// The folders; each imports only from those before it.
const ORDER: [&str; 6] = ["harness", "standin", "cluster", "fleet", "benchmark", "xtask"];

/// Returns the modules at the root of the crate to which a source text refers, by `crate::NAME` or in `crate::{…}`.
fn root_modules(text: &str) -> Vec<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let list = rest.strip_prefix('{').unwrap_or(rest);
        let mut depth = 0;
        let mut name = String::new();
        for character in list.chars() {
            match character {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' if depth == 0 && rest.starts_with('{') => found.push(std::mem::take(&mut name)),
                _ if depth > 0 => {}
                _ if character.is_alphanumeric() || "_: ".contains(character) => name.push(character),
                _ => break,
            }
        }
        found.push(name);
    }
    found.iter().filter_map(|path| Some(path.trim().split("::").next()?.to_owned())).collect()
}

fn check(folder: &Path, position: usize) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check(&path, position);
            continue;
        }
        for name in root_modules(&fs::read_to_string(&path).unwrap()) {
            let imported = ORDER.iter().position(|folder| *folder == name);
            assert!(imported.is_none_or(|imported| imported <= position), "{} imports from {name}", path.display());
        }
    }
}

#[test]
fn each_folder_imports_only_from_those_before_it() {
    for (position, folder) in ORDER.iter().enumerate() {
        check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder), position);
    }
}

#[test]
fn references_are_found_in_paths_and_in_nested_imports() {
    let text =
        "use crate::{\n    cluster::{a, b::c},\n    harness::d,\n};\n// crate::xtask\nlet x = crate::fleet::E(1);\n";
    assert_eq!(root_modules(text), ["cluster", "harness", "", "fleet"]);
}
