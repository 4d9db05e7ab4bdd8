//! The table of PCI device ids, written a second time to detect mistakes in the data file; for desktop cards, only the ranges of
//! ids by architecture.

use std::collections::BTreeSet;

use crate::catalogue::{
    Architecture::{self, *},
    Catalogue, load,
    tests::catalogue,
};

/// Every PCI device id that the catalogue must know, with the name and the architecture it stands for.
const KNOWN: &[(&[u16], &str, Architecture)] = &[
    (&[0x1023], "nvidia-tesla-k40m", Kepler),
    (&[0x102d], "nvidia-tesla-k80", Kepler),
    (&[0x1431], "nvidia-tesla-m4", Maxwell),
    (&[0x13bd], "nvidia-tesla-m10", Maxwell),
    (&[0x17fd], "nvidia-tesla-m40", Maxwell),
    (&[0x13f2], "nvidia-tesla-m60", Maxwell),
    (&[0x13bb], "nvidia-quadro-k620", Maxwell),
    (&[0x1bb3], "nvidia-tesla-p4", Pascal),
    (&[0x1bb4], "nvidia-tesla-p6", Pascal),
    (&[0x1b39], "nvidia-tesla-p10", Pascal),
    (&[0x1b38], "nvidia-tesla-p40", Pascal),
    (&[0x15f7, 0x15f8, 0x15f9], "nvidia-tesla-p100", Pascal),
    (&[0x1cb2], "nvidia-quadro-p600", Pascal),
    (&[0x1cb6, 0x1cbd], "nvidia-quadro-p620", Pascal),
    (&[0x1cb1, 0x1cfb], "nvidia-quadro-p1000", Pascal),
    (&[0x1bb1], "nvidia-quadro-p4000", Pascal),
    (&[0x1b30], "nvidia-quadro-p6000", Pascal),
    (&[0x1db1, 0x1df5, 0x1db4, 0x1db3, 0x1db5, 0x1db6, 0x1db8], "nvidia-tesla-v100", Volta),
    (&[0x1df6], "nvidia-tesla-v100s", Volta),
    (&[0x1dba], "nvidia-quadro-gv100", Volta),
    (&[0x1e30, 0x1e78], "nvidia-quadro-rtx-6000-8000", Turing),
    (&[0x1e36], "nvidia-quadro-rtx-6000", Turing),
    (&[0x1eb8], "nvidia-tesla-t4", Turing),
    (&[0x1eb4], "nvidia-t4g", Turing),
    (&[0x1e37], "nvidia-tesla-t10", Turing),
    (&[0x1e04, 0x1e07], "nvidia-rtx-2080-ti", Turing),
    (&[0x20b0, 0x20b1, 0x20f1], "nvidia-tesla-a100", Ampere),
    (&[0x20b2, 0x20b5], "nvidia-a100-80gb", Ampere),
    (&[0x20b3], "nvidia-a100-64gb", Ampere),
    (&[0x20bd, 0x20f6], "nvidia-a800-40gb", Ampere),
    (&[0x20f3, 0x20f5], "nvidia-a800-80gb", Ampere),
    (&[0x20b7], "nvidia-a30", Ampere),
    (&[0x20b8], "nvidia-a100x", Ampere),
    (&[0x20b9], "nvidia-a30x", Ampere),
    (&[0x25b6], "nvidia-a2-a16", Ampere),
    (&[0x2236], "nvidia-a10", Ampere),
    (&[0x2237], "nvidia-a10g", Ampere),
    (&[0x2238], "nvidia-a10m", Ampere),
    (&[0x2235], "nvidia-a40", Ampere),
    (&[0x2230], "nvidia-rtx-a6000", Ampere),
    (&[0x27b8], "nvidia-l4", Ada),
    (&[0x27b6], "nvidia-l2", Ada),
    (&[0x27b7], "nvidia-l16", Ada),
    (&[0x26b5], "nvidia-l40", Ada),
    (&[0x26b9], "nvidia-l40s", Ada),
    (&[0x26b8], "nvidia-l40g", Ada),
    (&[0x26b7, 0x26ba], "nvidia-l20", Ada),
    (&[0x26b1], "nvidia-rtx-6000-ada", Ada),
    (&[0x26b2], "nvidia-rtx-5000-ada", Ada),
    (&[0x26b3], "nvidia-rtx-5880-ada", Ada),
    (&[0x2331], "nvidia-h100-pcie", Hopper),
    (&[0x2330], "nvidia-h100-80gb", Hopper),
    (&[0x2339], "nvidia-h100-94gb", Hopper),
    (&[0x2338, 0x233d], "nvidia-h100-96gb", Hopper),
    (&[0x2337], "nvidia-h100-64gb", Hopper),
    (&[0x2321], "nvidia-h100-nvl", Hopper),
    (&[0x2322], "nvidia-h800-pcie", Hopper),
    (&[0x2324], "nvidia-h800", Hopper),
    (&[0x2329], "nvidia-h20", Hopper),
    (&[0x232c], "nvidia-h20-3e", Hopper),
    (&[0x233a], "nvidia-h800-nvl", Hopper),
    (&[0x2335], "nvidia-h200-141gb", Hopper),
    (&[0x233b], "nvidia-h200-nvl", Hopper),
    (&[0x2342], "nvidia-gh200", Hopper),
    (&[0x2348], "nvidia-gh200-144gb", Hopper),
    (&[0x2920, 0x29bc], "nvidia-b100", Blackwell),
    (&[0x2901, 0x2909], "nvidia-b200", Blackwell),
    (&[0x2941], "nvidia-gb200", Blackwell),
    (&[0x3182], "nvidia-b300", Blackwell),
    (&[0x31c2, 0x31c3, 0x31a1], "nvidia-gb300", Blackwell),
    (&[0x2bb1], "nvidia-rtx-pro-6000-workstation", Blackwell),
    (&[0x2bb4], "nvidia-rtx-pro-6000-max-q", Blackwell),
    (&[0x2bb5], "nvidia-rtx-pro-6000", Blackwell),
    (&[0x2bb3], "nvidia-rtx-pro-5000", Blackwell),
    (&[0x2c3a], "nvidia-rtx-pro-4500-server", Blackwell),
    (&[0x2bb9], "nvidia-rtx-pro-6000d", Blackwell),
    (&[0x2e12], "nvidia-gb10", Blackwell),
];

#[test]
fn every_known_pci_id_is_its_model() {
    let catalogue = catalogue();
    for (ids, name, architecture) in KNOWN {
        for id in *ids {
            let model = catalogue.model_of_pci(*id, None).unwrap_or_else(|| panic!("{id:04x} is unknown"));
            assert_eq!((model.name.as_str(), model.architecture.known()), (*name, Some(*architecture)), "{id:04x}");
        }
    }
}

#[test]
fn the_catalogue_has_no_pci_id_that_the_table_lacks() {
    let table: BTreeSet<_> = KNOWN.iter().flat_map(|(ids, ..)| ids.iter().copied()).collect();
    let without_desktop = Catalogue::from_files(load::BUILTIN, "").unwrap();
    let ids: BTreeSet<_> = without_desktop.models().flat_map(|m| m.devices.iter().map(|d| d.device_id)).collect();
    assert_eq!(ids, table);
    assert_eq!(KNOWN.iter().map(|(ids, ..)| ids.len()).sum::<usize>(), table.len());
}

/// NVIDIA assigns device ids by chip, so the id also identifies the architecture.
const RANGES: &[(Architecture, &[(u16, u16)])] = &[
    (Maxwell, &[(0x0fbc, 0x0fbc), (0x1340, 0x1436), (0x1617, 0x1676), (0x174d, 0x17f1)]),
    (Pascal, &[(0x15f0, 0x15f9), (0x1b00, 0x1d56)]),
    (Volta, &[(0x1d81, 0x1df6)]),
    (Turing, &[(0x1e02, 0x21d1)]),
    (Ampere, &[(0x20b0, 0x20fd), (0x2203, 0x25fb)]),
    (Ada, &[(0x2681, 0x28f8)]),
    (Blackwell, &[(0x2901, 0x31c3)]),
];

#[test]
fn every_desktop_card_has_an_id_of_its_architecture() {
    let catalogue = catalogue();
    for model in catalogue.models().filter(|model| model.desktop) {
        let ranges = RANGES.iter().find(|(architecture, _)| model.architecture == *architecture).unwrap().1;
        for device in &model.devices {
            let inside = ranges.iter().any(|(first, last)| (*first..=*last).contains(&device.device_id));
            assert!(inside, "{} {:04x} is not of {}", model.name, device.device_id, model.architecture);
        }
    }
    assert_eq!(catalogue.models().filter(|model| model.desktop).count() / 100, 2, "some hundred of them");
}
