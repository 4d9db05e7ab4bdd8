//! The configuration of container runtimes: what is not NVIDIA's stays byte for byte, or the file is left unchanged.

use std::path::{Path, PathBuf};

use node_tools::runtime::{
    config_files::{Record, Texts, config_files, move_version_1_to_main},
    daemon_json,
    entries::RuntimeKind,
    toml_file,
};
use proptest::{prelude::*, sample::select};
use test_support::damaged::{self, flood};

use crate::{IMPORT, added, entries};

/// What the installer appends to a file.
const ADDED: &str = "\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia-cdi.options]\n  BinaryName = \"/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi\"\n";

fn samples(kind: &str) -> Vec<Vec<u8>> {
    damaged::corpus(env!("CARGO_MANIFEST_DIR"), kind)
}

fn toml() -> BoxedStrategy<String> {
    damaged::text([samples("containerd_toml"), samples("crio_toml")].concat())
}

/// Fails unless removing NVIDIA's entries from a file leaves everything else, and removing them again changes nothing.
fn removes(text: &str, found: Option<&str>) {
    let Ok(rest) = toml_file::without_entries(text, found, Some(IMPORT), &entries()) else { return };
    let Some(rest) = rest else { return };
    assert!(rest.len() <= text.len().max(found.map_or(0, str::len)), "nothing is added:\n{text}\n{rest}");
    let again = toml_file::without_entries(&rest, found, Some(IMPORT), &entries()).expect("still TOML");
    assert_eq!(again.as_deref(), Some(rest.as_str()), "removed again from\n{text}");
    // A line that stays is unchanged.
    let lines: Vec<_> = text.lines().chain(found.into_iter().flat_map(str::lines)).collect();
    for line in rest.lines().filter(|line| !line.contains("imports") && !line.contains("default_runtime")) {
        assert!(lines.contains(&line), "line {line:?} was changed:\n{text}");
    }
}

#[test]
fn every_sample_is_valid() {
    for sample in [samples("containerd_toml"), samples("crio_toml")].concat() {
        let text = String::from_utf8(sample).unwrap();
        removes(&text, None);
        let kept = toml_file::without_entries(&text, Some(&text), Some(IMPORT), &entries()).expect("TOML");
        assert_eq!(kept.as_deref(), Some(text.as_str()));
    }
    for sample in samples("daemon_json") {
        let text = String::from_utf8(sample).unwrap();
        let kept = daemon_json::without_entries(&text, Some(&text), &entries()).expect("JSON");
        assert_eq!(kept.as_deref(), Some(text.as_str()));
    }
}

#[test]
fn a_file_of_a_mebibyte_or_nested_deeply_is_handled_or_rejected() {
    let table = |at| {
        format!("[a{at}.runtimes.nvidia]\nruntime_path = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"\n")
    };
    let tables = (0..6000).map(table).collect::<Vec<_>>().concat();
    let rest = toml_file::without_entries(&tables, None, None, &entries()).unwrap();
    assert_eq!(rest, None, "nothing but NVIDIA's entries");
    for text in [
        format!("[{}a]\nb = 1\n", "a.".repeat(20_000)),
        format!("{}a = 1\n", "a.".repeat(20_000)),
        format!("a = {}", "[".repeat(20_000)),
        format!("a = {}", "{ a = ".repeat(20_000)),
        String::from_utf8(flood(b"# comment\n")).unwrap(),
        String::from_utf8(flood(b"[[a]]\n")).unwrap(),
    ] {
        removes(&text, None);
        let _ = toml_file::contains_entries(&text, &entries());
        let _ = daemon_json::without_entries(&text, None, &entries());
    }
    for open in ["[", "{\"runtimes\":"] {
        assert!(daemon_json::without_entries(&open.repeat(20_000), None, &entries()).is_err());
    }
}

proptest! {
    #![proptest_config(test_support::random::config(256))]

    #[test]
    fn a_damaged_toml_file_is_edited_without_a_trace_or_rejected(text in toml(), found in prop::option::of(toml())) {
        let _ = toml_file::contains_entries(&text, &entries());
        let _ = toml_file::version(&text);
        removes(&text, found.as_deref());
        if let Ok(kept) = toml_file::without_entries(&text, Some(&text), Some(IMPORT), &entries()) {
            prop_assert_eq!(kept, Some(text));
        }
    }

    #[test]
    fn what_is_added_to_a_damaged_toml_file_is_removed(text in toml(), newline in select(vec!["\n", ""])) {
        let found = format!("{text}{newline}");
        let installed = format!("{found}{ADDED}");
        if let Ok(rest) = toml_file::without_entries(&installed, Some(&found), Some(IMPORT), &entries()) {
            prop_assert_eq!(rest, Some(found));
        }
    }

    #[test]
    fn a_damaged_daemon_json_is_edited_or_rejected(
        text in damaged::text(samples("daemon_json")),
        found in prop::option::of(damaged::text(samples("daemon_json"))),
    ) {
        let _ = daemon_json::contains_entries(&text, &entries());
        if let Ok(kept) = daemon_json::without_entries(&text, Some(&text), &entries()) {
            prop_assert_eq!(kept.as_ref(), Some(&text));
        }
        if let Ok(Some(rest)) = daemon_json::without_entries(&text, found.as_deref(), &entries()) {
            let again = daemon_json::without_entries(&rest, found.as_deref(), &entries()).expect("still JSON");
            prop_assert_eq!(again, Some(rest));
        }
    }

    #[test]
    fn reverting_restores_the_files_that_were_found(
        kind in select(vec![RuntimeKind::Containerd, RuntimeKind::CriO, RuntimeKind::Docker]),
        main in prop::option::of(prop_oneof![toml(), damaged::text(samples("daemon_json"))]),
        dropped_in in prop::option::of(toml()),
        left in prop_oneof![toml(), damaged::text(samples("daemon_json"))],
        changed in any::<bool>(),
    ) {
        let (config, drop_in) = (Path::new("/etc/runtime/config"), Path::new("/etc/runtime/conf.d/99-nvidia.toml"));
        let drop_in = Some(drop_in).filter(|_| kind != RuntimeKind::Docker);
        let files = config_files(kind, Some(config), drop_in);
        let mut now = Texts::from([(config.to_owned(), main)]);
        now.extend(drop_in.map(|path| (PathBuf::from(path), dropped_in)));
        let Ok(record) = Record::snapshot(&files, &now, None, added()) else { return Ok(()) };
        let installed: Texts = now.keys().map(|path| (path.clone(), Some(left.clone()))).collect();
        let record = record.settle(&installed);
        let stored = serde_json::to_string(&record).unwrap();
        let record: Record = serde_json::from_str(&stored).unwrap();
        let _ = move_version_1_to_main(&files, &installed);
        if changed {
            // The files have changed since.
            let _ = record.revert(&now);
            return Ok(());
        }
        let mut reverted = installed.clone();
        reverted.extend(record.revert(&installed).expect("unchanged files"));
        for (path, kept) in &record.files {
            prop_assert_eq!(&reverted[path], &kept.found);
            if !kept.role.contains_entries(&now[path], &entries()) {
                prop_assert_eq!(&kept.found, &now[path], "the original");
            }
        }
    }
}
