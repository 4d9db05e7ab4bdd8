//! The data files, and names of models.

use std::collections::BTreeSet;

use crate::catalogue::{Architecture, Catalogue, Subsystem, load, model, tests::catalogue, unknown_model_name};

/// Returns the error of the built-in catalogue after an edit, which must have an effect.
fn edited(from: &str, to: &str) -> String {
    let text = load::BUILTIN;
    let changed = text.replacen(from, to, 1);
    assert_ne!(text, changed);
    Catalogue::from_files(&changed, load::DESKTOP).unwrap_err().to_string()
}

#[test]
fn products_that_share_a_pci_id_are_distinguished_by_subsystem() {
    let catalogue = catalogue();
    let name = |id, subsystem: &str| {
        catalogue.model_of_pci(id, Some(subsystem.parse().unwrap())).map(|m| m.name.clone()).unwrap()
    };
    assert_eq!(name(0x25b6, "10de:157e"), "nvidia-a2");
    assert_eq!(name(0x25b6, "10de:14a9"), "nvidia-a16");
    assert_eq!(name(0x25b6, "1028:0001"), "nvidia-a2-a16");
    assert_eq!(name(0x1e30, "10de:129e"), "nvidia-quadro-rtx-8000");
    assert_eq!(name(0x1e78, "10de:13d9"), "nvidia-quadro-rtx-6000");
    assert_eq!(name(0x2330, "10de:16c1"), "nvidia-h100-80gb");
}

#[test]
fn a_subsystem_is_two_hexadecimal_numbers() {
    assert_eq!("10de:157e".parse(), Ok(Subsystem { vendor: 0x10de, device: 0x157e }));
    for text in ["", "10de", "10de:", "10de:xyz", "10de:157e:1"] {
        assert!(text.parse::<Subsystem>().is_err(), "{text}");
    }
}

#[test]
fn a_switch_or_an_unknown_id_is_not_a_model() {
    let catalogue = catalogue();
    for id in [0x1af1, 0x22a3] {
        assert!(catalogue.is_switch(id));
        assert_eq!(catalogue.model_of_pci(id, None), None);
    }
    assert!(!catalogue.is_switch(0x2330));
    assert_eq!(catalogue.model_of_pci(0xffff, None), None);
}

#[test]
fn names_and_aliases_are_unique_legal_label_values() {
    let catalogue = catalogue();
    let mut seen = BTreeSet::new();
    for model in catalogue.models() {
        for word in std::iter::once(&model.name).chain(&model.aliases) {
            assert!(model::is_label_value(word), "{word}");
            assert!(seen.insert(word.clone()), "{word} twice");
            assert_eq!(catalogue.model(word), Some(model));
        }
        assert!(model.name.starts_with("nvidia-"), "{}", model.name);
        assert!(model.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{}", model.name);
    }
}

#[test]
fn every_value_of_a_cloud_that_means_one_model_finds_it() {
    let catalogue = catalogue();
    for gke in [
        "nvidia-tesla-k80",
        "nvidia-tesla-p4",
        "nvidia-tesla-p100",
        "nvidia-tesla-v100",
        "nvidia-tesla-t4",
        "nvidia-tesla-a100",
        "nvidia-a100-80gb",
        "nvidia-l4",
        "nvidia-h100-80gb",
        "nvidia-h200-141gb",
        "nvidia-b200",
        "nvidia-gb200",
        "nvidia-gb300",
        "nvidia-rtx-pro-6000",
    ] {
        assert_eq!(catalogue.model(gke).map(|m| m.name.as_str()), Some(gke));
    }
    for (alias, name) in [
        ("nvidia-h100-mega-80gb", "nvidia-h100-80gb"),
        ("t4", "nvidia-tesla-t4"),
        ("v100", "nvidia-tesla-v100"),
        ("a10g", "nvidia-a10g"),
        ("rtx-pro-server-6000", "nvidia-rtx-pro-6000"),
    ] {
        assert_eq!(catalogue.model(alias).map(|m| m.name.as_str()), Some(name), "{alias}");
    }
    assert_eq!(catalogue.model("a100"), None, "it may have 40 or 80 GB");
}

#[test]
fn memory_is_per_pci_device_and_per_model_if_all_devices_agree() {
    let catalogue = catalogue();
    let p100 = catalogue.model("nvidia-tesla-p100").unwrap();
    assert_eq!((p100.memory_of_pci(0x15f7), p100.memory_of_pci(0x15f9)), (Some(12_288), Some(16_384)));
    assert_eq!(p100.memory_mib, None);
    assert_eq!(catalogue.model("nvidia-h100-80gb").unwrap().memory_mib, Some(81_920));
    assert_eq!(catalogue.model("nvidia-tesla-k80").unwrap().memory_mib, None);
    for device in catalogue.models().flat_map(|m| &m.devices) {
        assert!(device.memory_mib.is_none_or(|mib| (3_072..=524_288).contains(&mib)), "{device:x?}");
    }
}

#[test]
fn what_is_unverified_stays_marked() {
    let catalogue = catalogue();
    let believed = |name: &str| catalogue.model(name).unwrap().believed.clone().unwrap_or_default();
    assert!(believed("nvidia-b100").contains("TS4"), "{}", believed("nvidia-b100"));
    assert!(believed("nvidia-b100").contains("570"), "the architecture's doubt stands beside the model's");
    assert!(believed("nvidia-rtx-2080-ti").contains("another card"));
    assert!(believed("nvidia-tesla-m60").contains("580"));
    for name in ["nvidia-b300", "nvidia-gb300", "nvidia-gb10"] {
        assert!(believed(name).contains("580"), "{name}: {}", believed(name));
    }
    assert!(believed("nvidia-gh200").contains("535"));
    assert_eq!(believed("nvidia-b200"), "", "its first version is documented");
    for name in ["nvidia-tesla-k80", "nvidia-tesla-p100", "nvidia-tesla-v100"] {
        assert_eq!(believed(name), "");
    }
    assert!(catalogue.releases().all(|release| release.source.ends_with("built, not looked up in a registry")));
}

#[test]
fn the_page_on_drivers_lists_every_version() {
    let page = include_str!("../../../../../docs/guides/drivers.md");
    for release in catalogue().releases() {
        assert!(page.contains(&format!("\n| {}", release.version)), "{}", release.version);
    }
}

#[test]
fn an_unknown_model_gets_a_legal_name() {
    for (product, expected) in [
        (None, "nvidia-10de-2684"),
        (Some(""), "nvidia-10de-2684"),
        (Some("NVIDIA"), "nvidia-10de-2684"),
        (Some("日本"), "nvidia-10de-2684"),
        (Some("NVIDIA GeForce RTX 4090"), "nvidia-geforce-rtx-4090"),
        (Some("Tesla T4"), "nvidia-tesla-t4"),
        (Some(" NVIDIA A100-SXM4_40GB [x.y] "), "nvidia-a100-sxm4-40gb-x-y"),
    ] {
        assert_eq!(unknown_model_name(0x2684, product), expected, "{product:?}");
    }
    // Whatever the length at which it is cut, no hyphen is left at the end.
    for length in 50..80 {
        let name = unknown_model_name(1, Some(&format!("{} b", "a".repeat(length))));
        assert!(model::is_label_value(&name), "{name}");
    }
    assert_eq!(unknown_model_name(1, Some(&"a".repeat(200))).len(), 63);
}

#[test]
fn a_label_value_is_validated_as_by_kubernetes() {
    for legal in ["a", "A1", "a-b_c.d", &"a".repeat(63)] {
        assert!(model::is_label_value(legal), "{legal}");
    }
    for illegal in ["", "-a", "a-", ".a", "a b", "ä", &"a".repeat(64)] {
        assert!(!model::is_label_value(illegal), "{illegal}");
    }
}

#[test]
fn an_invalid_data_file_is_rejected_with_the_invalid_value() {
    let cases = [
        ("{id: \"102d\"}", "{id: \"1023\"}", "duplicate PCI device (1023, None) in"),
        ("name: nvidia-l2", "name: nvidia-l4", "duplicate name or alias nvidia-l4 in"),
        ("aliases: [l4]", "aliases: [t4]", "duplicate name or alias t4 in"),
        (
            "name: nvidia-l2",
            "name: nvidia l2",
            "\"nvidia l2\" in the catalogue of accelerators: expected a legal label value",
        ),
        ("id: \"102d\"", "id: \"102\"", "\"102\" in the catalogue of accelerators: expected a PCI device id"),
        ("10de:157e", "10de-157e", "\"10de-157e\" in the catalogue of accelerators: expected a PCI subsystem"),
        ("switches: [\"1af1\"", "switches: [\"102d\"", "duplicate PCI device 102d in"),
        ("version: \"535.309.01\"", "version: \"535.261.03\"", "duplicate driver 535.261.03 in"),
        (
            "version: \"535.309.01\"",
            "version: \"535\"",
            "\"535\" in the catalogue of accelerators: expected a full driver version",
        ),
        (
            "[ubuntu22.04, rhel8,",
            "[ubuntu22.04, \"rhel 8\",",
            "\"rhel 8\" in the catalogue of accelerators: expected the name of an operating system",
        ),
        (
            "{branch: 575, ",
            "{branch: 570, ",
            "\"575.57.08\" in the catalogue of accelerators: expected a version of its branch",
        ),
        ("  - name: Volta", "  - name: Kepler", "does not define architecture Volta"),
        ("modules: Either", "modules: Eiter", "invalid catalogue of accelerators"),
        ("aliases: [l4]", "alias: [l4]", "invalid catalogue of accelerators"),
    ];
    for (from, to, expected) in cases {
        let error = edited(from, to);
        assert!(error.contains(expected), "{from} → {to}: {error}");
    }
}

#[test]
fn the_table_of_desktop_cards_is_read_row_by_row() {
    let catalogue = catalogue();
    let card = |id| catalogue.model_of_pci(id, None).unwrap();
    for (id, name, architecture, memory) in [
        (0x1381, "nvidia-geforce-gtx-750", Architecture::Maxwell, None),
        (0x17f1, "nvidia-quadro-m6000-24gb", Architecture::Maxwell, Some(24_576)),
        (0x1b06, "nvidia-geforce-gtx-1080-ti", Architecture::Pascal, None),
        (0x1c02, "nvidia-geforce-gtx-1060-3gb", Architecture::Pascal, Some(3_072)),
        (0x1d81, "nvidia-titan-v", Architecture::Volta, None),
        (0x1e82, "nvidia-geforce-rtx-2080", Architecture::Turing, None),
        (0x1fb1, "nvidia-t600", Architecture::Turing, None),
        (0x2204, "nvidia-geforce-rtx-3090", Architecture::Ampere, None),
        (0x249d, "nvidia-geforce-rtx-3070-mobile", Architecture::Ampere, None),
        (0x2684, "nvidia-geforce-rtx-4090", Architecture::Ada, None),
        (0x2b85, "nvidia-geforce-rtx-5090", Architecture::Blackwell, None),
    ] {
        let found = card(id);
        assert_eq!(
            (found.name.as_str(), found.architecture.known(), found.memory_mib),
            (name, Some(architecture), memory),
            "{id:04x}"
        );
        assert!(found.desktop, "{name}");
    }
    for (table, expected) in [
        ("Ada\n  nvidia-x\n", "a row of a name and PCI ids"),
        ("  nvidia-x 2684\n", "a row of a name and PCI ids"),
        ("Adda\n  nvidia-x 2684\n", "\"Adda\" in the catalogue of accelerators: expected the name of an architecture"),
        ("Ada\n  nvidia-x 268\n", "a PCI device id"),
        ("Ada\n  nvidia-x 2684\n  nvidia-y 2684\n", "duplicate PCI device (2684, None) in"),
        ("Ada\n  nvidia-l4 2684\n", "duplicate name or alias nvidia-l4 in"),
    ] {
        let error = Catalogue::from_files(load::BUILTIN, table).unwrap_err().to_string();
        assert!(error.contains(expected), "{table}: {error}");
    }
}

#[test]
fn only_desktop_cards_have_desktop_files() {
    let catalogue = catalogue();
    for (name, desktop) in [
        ("nvidia-quadro-k620", true),
        ("nvidia-rtx-2080-ti", true),
        ("nvidia-rtx-6000-ada", true),
        ("nvidia-rtx-pro-6000-workstation", true),
        ("nvidia-t600", true),
        ("nvidia-rtx-pro-6000", false),
        ("nvidia-rtx-pro-4500-server", false),
        ("nvidia-tesla-t4", false),
        ("nvidia-t4g", false),
    ] {
        assert_eq!(catalogue.model(name).unwrap().desktop, desktop, "{name}");
    }
}
