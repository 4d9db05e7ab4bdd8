//! Configurations of container runtimes: NVIDIA's entries are removed again, and other entries stay.

use std::path::{Path, PathBuf};

use node_tools::runtime::{
    config_files::{ConfigFile, Record, Role, Texts, config_files, move_version_1_to_main},
    daemon_json,
    entries::RuntimeKind,
    toml_file,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{BIN, IMPORT, added, entries};

/// Returns a `daemon.json` as changed by the installer.
fn installed(found: Option<&str>, default: bool) -> String {
    let mut whole: Map<String, Value> = found.map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default();
    let runtimes = whole.entry("runtimes").or_insert(json!({}));
    for (name, program) in [("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy")] {
        runtimes[name] = json!({"args": [], "path": format!("{BIN}/nvidia-container-runtime{program}")});
    }
    if default {
        whole.insert("default-runtime".into(), "nvidia".into());
    }
    serde_json::to_string_pretty(&whole).unwrap()
}

#[test]
fn a_default_set_by_others_stays() {
    let mut whole: Value = serde_json::from_str(&installed(None, true)).unwrap();
    whole["default-runtime"] = json!("kata");
    let rest = daemon_json::without_entries(&whole.to_string(), None, &entries()).unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&rest).unwrap(), json!({"default-runtime": "kata"}));
}

#[test]
fn a_third_party_nvidia_runtime_stays() {
    let text = r#"{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}"#;
    assert!(!daemon_json::contains_entries(text, &entries()));
    assert_eq!(
        daemon_json::without_entries(text, None, &entries()).unwrap().as_deref().map(str::trim),
        Some(expanded(text).trim())
    );
}

fn expanded(text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap();
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    serde::Serialize::serialize(&value, &mut serde_json::Serializer::with_formatter(&mut bytes, formatter)).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_file_with_an_unexpected_format_is_not_changed() {
    assert!(daemon_json::without_entries("[1]", None, &entries()).is_err());
    assert!(daemon_json::without_entries("{", None, &entries()).is_err());
    assert!(toml_file::without_entries("a = ", None, None, &entries()).is_err());
    let list = config_files(RuntimeKind::Docker, Some(Path::new("/d.json")), None);
    let now = Texts::from([(PathBuf::from("/d.json"), Some("{".into()))]);
    let error = Record::snapshot(&list, &now, None, added()).unwrap_err();
    assert_eq!(error.to_string(), "/d.json");
}

#[test]
fn a_main_file_and_its_import_go_unless_they_were_found() {
    let text = "imports = [\"/etc/containerd/conf.d/*.toml\"]\nversion = 2\n";
    assert_eq!(toml_file::without_entries(text, None, Some(IMPORT), &entries()).unwrap(), None);
    let since = format!("{text}x = 1\n");
    let rest = toml_file::without_entries(&since, Some(text), Some(IMPORT), &entries()).unwrap();
    assert_eq!(rest, Some(since));
}

#[test]
fn an_import_that_others_have_added_since_stays() {
    let text = "imports = [\"/etc/containerd/conf.d/*.toml\", \"/etc/site/*.toml\"]\nversion = 2\n";
    let rest = toml_file::without_entries(text, Some("version = 2\n"), Some(IMPORT), &entries()).unwrap();
    assert_eq!(rest.as_deref(), Some("imports = [\"/etc/site/*.toml\"]\nversion = 2\n"));
}

#[test]
fn a_file_with_the_same_content_is_restored_byte_for_byte() {
    // As the installer writes it: sorted, and without comments.
    let found = "# mine\nversion = 2\n[plugins.\"io.containerd.grpc.v1.cri\"] # why\nsandbox_image = 'x'\n";
    let text = "imports = [\"/etc/containerd/conf.d/*.toml\"]\nversion = 2\n\n[plugins]\n\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    sandbox_image = \"x\"\n";
    assert_eq!(
        toml_file::without_entries(text, Some(found), Some(IMPORT), &entries()).unwrap().as_deref(),
        Some(found)
    );
}

const VERSION_1: &str = r#"version = 1

[plugins]

  [plugins.cri]
    sandbox_image = "x"

    [plugins.cri.containerd]
      default_runtime_name = "nvidia"

      [plugins.cri.containerd.runtimes]

        [plugins.cri.containerd.runtimes.nvidia]
          runtime_type = "io.containerd.runc.v2"

          [plugins.cri.containerd.runtimes.nvidia.options]
            BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
            Runtime = "/usr/local/nvidia/toolkit/nvidia-container-runtime"

        [plugins.cri.containerd.runtimes.nvidia-cdi]
          runtime_type = "io.containerd.runc.v2"

          [plugins.cri.containerd.runtimes.nvidia-cdi.options]
            BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi"

    # Added by the site.
    [plugins.cri.registry]
      [plugins.cri.registry.mirrors."docker.io"]
        endpoint = ["https://m"]
"#;

#[test]
fn only_a_version_1_configuration_is_moved_into_the_main_file() {
    let list =
        config_files(RuntimeKind::Containerd, Some(Path::new("/c/config.toml")), Some(Path::new("/c/conf.d/n.toml")));
    let now = |beside: &str| {
        Texts::from([("/c/config.toml".into(), Some(String::new())), ("/c/conf.d/n.toml".into(), Some(beside.into()))])
    };
    let moved = move_version_1_to_main(&list, &now(VERSION_1)).unwrap();
    assert_eq!((moved.main, moved.drop_in), (Path::new("/c/config.toml"), Path::new("/c/conf.d/n.toml")));
    assert_eq!(moved.text, VERSION_1);
    assert_eq!(move_version_1_to_main(&list, &now("version = 2\n[plugins]\n")), None);
    assert_eq!(move_version_1_to_main(&list, &now("[crio.runtime.runtimes.nvidia]\n")), None);
}

#[test]
fn in_a_version_1_file_cdi_is_enabled_and_removed_again() {
    let list =
        config_files(RuntimeKind::Containerd, Some(Path::new("/c/config.toml")), Some(Path::new("/c/conf.d/n.toml")));
    let default = "      default_runtime_name = \"nvidia\"\n";
    let installed = VERSION_1.replace(default, "      enable_cdi = true\n");
    let now = Texts::from([(PathBuf::from("/c/conf.d/n.toml"), Some(installed))]);
    let moved = move_version_1_to_main(&list, &now).unwrap().text;
    let table = toml_edit::Document::parse(moved.as_str()).unwrap();
    let cri = &table.as_table()["plugins"]["cri"];
    assert_eq!(cri["enable_cdi"].as_bool(), Some(true), "{moved}");
    assert!(cri["containerd"].get("enable_cdi").is_none(), "{moved}");
    for (found, stays) in [("[plugins.cri]\n", false), ("[plugins.cri]\n  enable_cdi = true\n", true)] {
        let rest = toml_file::without_entries(&moved, Some(found), None, &entries()).unwrap().unwrap();
        assert!(rest.contains("Added by the site"), "{rest}");
        assert_eq!(rest.contains("enable_cdi"), stays, "{rest}");
    }
}

fn docker() -> (Vec<ConfigFile>, PathBuf) {
    let path = PathBuf::from("/etc/docker/daemon.json");
    (config_files(RuntimeKind::Docker, Some(&path), None), path)
}

fn texts(path: &Path, text: Option<&str>) -> Texts {
    Texts::from([(path.to_owned(), text.map(str::to_owned))])
}

#[test]
fn the_original_survives_an_upgrade_and_an_interrupted_step() {
    let (list, path) = docker();
    let found = "{\"a\" : 1}\n";
    let record = Record::snapshot(&list, &texts(&path, Some(found)), None, added()).unwrap();
    // The installer may make changes that are unknown here, which must not count as changes by others.
    let mut first: Value = serde_json::from_str(&installed(Some(found), false)).unwrap();
    first["features"] = json!({"cdi": true});
    let first = first.to_string();
    // Interrupted before the installer's result was recorded.
    let cut_off = Record::snapshot(&list, &texts(&path, Some(&first)), Some(&record), added()).unwrap();
    assert_eq!(cut_off.files[&path].found.as_deref(), Some(found));
    // An upgrade: the file has not been changed by others.
    let settled = cut_off.settle(&texts(&path, Some(&first)));
    let upgrade = Record::snapshot(&list, &texts(&path, Some(&first)), Some(&settled), added()).unwrap();
    assert_eq!(upgrade.files[&path].found.as_deref(), Some(found));
    // Others have changed the file: their version is recorded, without NVIDIA's entries.
    let mut changed: Value = serde_json::from_str(&first).unwrap();
    changed["b"] = json!(2);
    let upgrade = Record::snapshot(&list, &texts(&path, Some(&changed.to_string())), Some(&settled), added()).unwrap();
    let kept: Value = serde_json::from_str(upgrade.files[&path].found.as_deref().unwrap()).unwrap();
    assert_eq!(kept, json!({"a": 1, "b": 2, "features": {"cdi": true}}));
}

#[test]
fn a_drop_in_is_removed_unless_a_third_party_has_replaced_it() {
    let path = PathBuf::from("/c/n.toml");
    let list = [ConfigFile { path: path.clone(), role: Role::DropIn }];
    let drop_in =
        "[crio.runtime.runtimes.nvidia]\nruntime_path = \"/usr/local/nvidia/toolkit/nvidia-container-runtime\"\n";
    let record =
        Record::snapshot(&list, &texts(&path, None), None, added()).unwrap().settle(&texts(&path, Some(drop_in)));
    let gone = record.revert(&texts(&path, Some(&format!("# x\n{drop_in}")))).unwrap();
    assert_eq!(gone, texts(&path, None));
    assert_eq!(record.revert(&texts(&path, Some("[crio]\n"))).unwrap(), Texts::new());
}

/// Generates a `daemon.json` without the installer's entries.
fn foreign() -> BoxedStrategy<Map<String, Value>> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9 :/\"\\\\ü]{0,12}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z-]{1,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    let runtime = prop_oneof![Just("kata"), Just("nvidia"), Just("nvidia-cdi")]
        .prop_map(|name| json!({name: {"path": "/opt/other", "runtimeArgs": ["--x"]}}));
    let key = "[a-z][a-z-]{0,10}"
        .prop_filter("known keys have their own forms", |key| key != "runtimes" && key != "default-runtime");
    let rest = prop::collection::btree_map(key, value, 0..6);
    (rest, prop::option::of(runtime), prop::option::of(prop_oneof![Just("runc"), Just("nvidia")]))
        .prop_map(|(rest, runtimes, default)| {
            let mut whole: Map<String, Value> = rest.into_iter().collect();
            whole.extend(runtimes.map(|runtimes| ("runtimes".to_owned(), runtimes)));
            whole.extend(default.map(|default| ("default-runtime".to_owned(), default.into())));
            whole
        })
        .boxed()
}

proptest! {
    #[test]
    fn installing_and_reverting_changes_no_other_entries(whole in foreign(), default: bool, added: bool) {
        let (list, path) = docker();
        let found = serde_json::to_string(&whole).unwrap();
        let record = Record::snapshot(&list, &texts(&path, Some(&found)), None, crate::added()).unwrap();
        let left = installed(Some(&found), default);
        let record = record.settle(&texts(&path, Some(&left)));
        if added {
            // Another program has added a key since.
            let mut since: Map<String, Value> = serde_json::from_str(&left).unwrap();
            since.insert("Added".into(), json!([1, "x"]));
            let now = texts(&path, Some(&Value::Object(since).to_string()));
            let reverted = record.revert(&now).unwrap();
            let rest: Map<String, Value> = serde_json::from_str(reverted[&path].as_deref().unwrap()).unwrap();
            let mut expected = whole;
            expected.insert("Added".into(), json!([1, "x"]));
            prop_assert_eq!(rest, expected);
        } else {
            let reverted = record.revert(&texts(&path, Some(&left))).unwrap();
            prop_assert_eq!(reverted, texts(&path, Some(&found)));
        }
    }
}
