//! Drivers, their images and kernel modules.

use gpu_operator_crd::policy::KernelModule;

use crate::catalogue::{
    Architecture::*,
    tests::{catalogue, models},
    *,
};

fn default_of(names: &[&str]) -> Result<u32, String> {
    let catalogue = catalogue();
    catalogue
        .default_driver(&models(&catalogue, names))
        .map(|release| release.numbers.major())
        .map_err(|e| e.to_string())
}

fn supports(name: &str, version: &str) -> Result<(), String> {
    let catalogue = catalogue();
    catalogue.supports(catalogue.model(name).unwrap(), version).map_err(|e| e.to_string())
}

fn flavour(name: &str, version: &str, requested: KernelModule) -> Result<Flavour, String> {
    let catalogue = catalogue();
    module_flavour(catalogue.model(name).unwrap(), version, requested).map_err(|e| e.to_string())
}

fn os(driver: &str, id: &str, version: &str) -> Result<String, String> {
    catalogue().driver_image_os(&[], driver, id, version).map_err(|e| e.to_string())
}

#[test]
fn every_model_has_a_default_driver_and_flavour() {
    let catalogue = catalogue();
    for model in catalogue.models() {
        let release = catalogue.default_driver(&[model]).unwrap();
        assert_eq!(catalogue.supports(model, &release.version), Ok(()), "{}", model.name);
        assert_eq!(branch_of(&release.version).map(u32::from), Some(release.numbers.major()));
        let flavour = module_flavour(model, &release.version, KernelModule::Auto).unwrap();
        match model.modules {
            ModuleSupport::ProprietaryOnly => assert_eq!(flavour, Flavour::Proprietary, "{}", model.name),
            ModuleSupport::OpenOnly => assert_eq!(flavour, Flavour::Open, "{}", model.name),
            ModuleSupport::Either => assert_eq!(flavour, Flavour::Open, "{}: newest branch", model.name),
        }
        let newer = |newer: &&Release| newer.is_default && newer.numbers.major() > release.numbers.major();
        for newer in catalogue.releases().filter(newer) {
            assert!(catalogue.supports(model, &newer.version).is_err(), "{} could have {}", model.name, newer.version);
        }
    }
}

#[test]
fn modules_follow_the_architecture() {
    for model in catalogue().models() {
        let architecture = model.architecture.known().unwrap();
        let expected = match architecture {
            Kepler | Maxwell | Pascal | Volta => ModuleSupport::ProprietaryOnly,
            Hopper if model.name.starts_with("nvidia-gh200") => ModuleSupport::OpenOnly,
            Turing | Ampere | Ada | Hopper => ModuleSupport::Either,
            Blackwell => ModuleSupport::OpenOnly,
        };
        assert_eq!(model.modules, expected, "{}", model.name);
        let last = match architecture {
            Kepler => Some(470),
            Maxwell | Pascal | Volta => Some(580),
            _ => None,
        };
        assert_eq!(model.driver.last, last, "{}", model.name);
    }
}

#[test]
fn the_default_driver_is_the_newest_that_all_models_support() {
    assert_eq!(default_of(&["nvidia-tesla-k80"]), Ok(470));
    assert_eq!(default_of(&["nvidia-tesla-p100"]), Ok(580));
    assert_eq!(default_of(&["nvidia-h100-80gb"]), Ok(595));
    assert_eq!(default_of(&["nvidia-tesla-p100", "nvidia-h100-80gb"]), Ok(580));
    assert_eq!(default_of(&["nvidia-tesla-k80", "nvidia-tesla-t4"]), Ok(470));
    assert_eq!(default_of(&[]), Ok(595));
}

#[test]
fn a_version_that_is_no_default_must_be_named() {
    assert_eq!(supports("nvidia-h100-80gb", "610.57.04"), Ok(()));
    assert_eq!(flavour("nvidia-gb300", "610.57.04", KernelModule::Auto), Ok(Flavour::Open));
    assert_eq!(os("610.57.04", "ubuntu", "26.04").as_deref(), Ok("ubuntu26.04"));
    assert_eq!(os("610.80.01", "rhel", "10.1").as_deref(), Ok("rhel10"), "a later version of the branch");
    assert!(os("610.57.04", "ubuntu", "20.04").unwrap_err().contains("write driver.version: 570.172.08"));
    assert_eq!(catalogue().cuda_of("610.57.04"), Some("13.3"));
    // Cards that a later branch dropped.
    for (name, last) in [("nvidia-tesla-k80", 470), ("nvidia-tesla-m60", 580), ("nvidia-tesla-v100", 580)] {
        assert!(supports(name, "610.57.04").unwrap_err().contains(&format!("up to branch {last}")), "{name}");
    }
    // No node gets it unasked: neither the newest card on the newest system nor a node without known GPUs.
    for names in [&["nvidia-gb300"][..], &["nvidia-gb10"], &[]] {
        assert_eq!(default_on(names, "ubuntu", "26.04").as_deref(), Ok("595.91.07-ubuntu26.04 open"), "{names:?}");
    }
}

#[test]
fn the_newest_cards_need_a_later_branch_than_their_architecture() {
    for name in ["nvidia-b300", "nvidia-gb300", "nvidia-gb10"] {
        assert!(supports(name, "575.57.08").unwrap_err().contains("from branch 580 on"), "{name}");
        assert_eq!(supports(name, "580.173.02"), Ok(()), "{name}");
        assert!(
            flavour(name, "580.173.02", KernelModule::Proprietary).unwrap_err().contains("open kernel modules only")
        );
    }
    // One of the same architecture that does not.
    assert_eq!(supports("nvidia-rtx-pro-5000", "570.172.08"), Ok(()));
    assert_eq!(default_on(&["nvidia-gb10"], "ubuntu", "20.04").ok(), None);
}

#[test]
fn any_two_models_get_a_common_driver_or_an_error() {
    let catalogue = catalogue();
    // Of the models of which the same holds, one stands for all.
    let mut kinds: Vec<&Accelerator> = Vec::new();
    for model in catalogue.models() {
        let same = |kind: &&Accelerator| {
            (&kind.architecture, kind.modules, &kind.driver) == (&model.architecture, model.modules, &model.driver)
        };
        if !kinds.iter().any(same) {
            kinds.push(model);
        }
    }
    for (one, other) in kinds.iter().flat_map(|one| kinds.iter().map(move |other| (*one, *other))) {
        let pair = [one, other];
        let runs = |release: &&Release| {
            release.is_default
                && pair.iter().all(|m| catalogue.supports(m, &release.version).is_ok())
                && common_module_flavour(&pair, &release.version, KernelModule::Auto).is_ok()
        };
        let expected = catalogue.releases().filter(runs).last();
        match catalogue.default_driver(&pair) {
            Ok(release) => assert_eq!(Some(release), expected, "{} and {}", one.name, other.name),
            Err(error) => {
                assert_eq!(expected, None, "{error}");
                let text = error.to_string();
                assert!(text.contains(&one.title()) && text.contains(&other.title()), "{text}");
            }
        }
    }
}

#[test]
fn models_without_a_common_driver_are_listed_with_their_limits() {
    assert_eq!(
        default_of(&["nvidia-tesla-k80", "nvidia-h100-80gb"]).unwrap_err(),
        "no driver supports all GPUs of the node, nvidia-tesla-k80 (Kepler) up to branch 470, nvidia-h100-80gb (Hopper) \
         from branch 525: move some of them to another node"
    );
    let mixed = default_of(&["nvidia-tesla-p100", "nvidia-rtx-pro-6000"]).unwrap_err();
    assert!(mixed.contains("nvidia-tesla-p100 (Pascal) runs with the proprietary kernel modules only"), "{mixed}");
    assert!(mixed.contains("nvidia-rtx-pro-6000 (Blackwell)"), "{mixed}");
}

#[test]
fn a_common_branch_that_is_not_recommended_can_still_be_written() {
    let text = load::BUILTIN;
    let start = text.find("  - version: \"470.").unwrap();
    let end = text.find("  - version: \"535.").unwrap();
    let without_470 = format!("{}{}", &text[..start], &text[end..]);
    let catalogue = Catalogue::from_files(&without_470, load::DESKTOP).unwrap();
    let error = catalogue.default_driver(&models(&catalogue, &["nvidia-tesla-k80", "nvidia-tesla-t4"])).unwrap_err();
    assert!(matches!(error, NoCommonDriver::NotRecommended { .. }), "{error}");
    assert!(error.to_string().contains("set driver.version"), "{error}");
    let k80 = catalogue.model("nvidia-tesla-k80").unwrap();
    assert!(catalogue.supports(k80, "595").unwrap_err().to_string().ends_with("use a version such as 470"));
}

#[test]
fn an_unsupported_driver_is_rejected_with_a_suggestion() {
    assert_eq!(supports("nvidia-tesla-k80", "470.256.02"), Ok(()));
    assert_eq!(supports("nvidia-tesla-k80", "470"), Ok(()));
    assert_eq!(
        supports("nvidia-tesla-k80", "595.91.07").unwrap_err(),
        "nvidia-tesla-k80 (Kepler) is supported up to branch 470; use a version such as 470.256.02"
    );
    assert_eq!(
        supports("nvidia-h100-80gb", "470.256.02").unwrap_err(),
        "nvidia-h100-80gb (Hopper) is supported from branch 525 on; use a version such as 595.91.07"
    );
    assert_eq!(
        supports("nvidia-b200", "570.124.06").unwrap_err(),
        "nvidia-b200 (Blackwell) is supported from version 570.133.20 on; use a version such as 595.91.07"
    );
    assert_eq!(supports("nvidia-b200", "570.133.20"), Ok(()));
    assert_eq!(supports("nvidia-b200", "570"), Ok(()));
    assert_eq!(supports("nvidia-b200", "575.51.03"), Ok(()));
    assert_eq!(
        supports("nvidia-tesla-p100", "latest").unwrap_err(),
        "\"latest\" is not a driver version; write a full version such as 580.173.02"
    );
}

#[test]
fn the_branch_is_the_first_number_of_a_version() {
    assert_eq!(branch_of("580.173.02"), Some(580));
    assert_eq!(branch_of("396.26"), Some(396));
    assert_eq!(branch_of("580"), Some(580));
    for text in
        ["", "58", "5800", "R580", "580.", "580..1", "580.1.2.3", "580.x", "+58.1", "sha256:580", "580.9999999999"]
    {
        assert_eq!(branch_of(text), None, "{text}");
    }
}

#[test]
fn driver_images_are_named_by_operating_system() {
    for (driver, id, version, tag) in [
        ("595.91.07", "ubuntu", "22.04", "ubuntu22.04"),
        ("595.91.07", "rhel", "9.4", "rhel9"),
        ("580.173.02", "rocky", "9.6", "rocky9"),
        // Older images of Red Hat's systems are named by the minor version too.
        ("470.256.02", "rhel", "8.8", "rhel8.8"),
        ("535.261.03", "rhel", "8.10", "rhel8.10"),
        // Versions that the catalogue lacks are like the newest before them of their branch, or like the oldest.
        ("535.230.02", "ubuntu", "20.04", "ubuntu20.04"),
        ("535.400.01", "rhel", "9.6", "rhel9"),
        // A branch that the catalogue lacks is not judged.
        ("550.163.01", "sles", "15.5", "sles15.5"),
        ("550.163.01", "ol", "9.4", "ol9"),
    ] {
        assert_eq!(os(driver, id, version).as_deref(), Ok(tag), "{driver} {id} {version}");
    }
}

#[test]
fn a_system_without_an_image_is_an_error_with_those_that_exist() {
    assert_eq!(
        os("535.309.01", "rocky", "8.10").unwrap_err(),
        "driver 535.309.01 has no known image for rocky8.10, only for ubuntu22.04, rhel8, rhel9, rocky9; write \
         driver.version: 595.91.07 or 580.173.02, write driver.image with an image of your own, write source: RunFile, or \
         install the driver on the host"
    );
    let debian = os("580.173.02", "debian", "12").unwrap_err();
    assert!(debian.contains("debian12") && !debian.contains("driver.version"), "{debian}");
    for (driver, id, version) in
        [("470.256.02", "ubuntu", "22.04"), ("470.256.02", "rhel", "8.10"), ("535.400.01", "ubuntu", "20.04")]
    {
        assert!(os(driver, id, version).unwrap_err().contains("no known image"), "{driver} {id} {version}");
    }
    for (id, version) in [("", "22.04"), ("ubuntu", ""), ("ubuntu", "22/04"), ("a b", "1"), ("rhel", ".4")] {
        assert!(os("550.1.1", id, version).unwrap_err().contains("matches no driver image"), "{id} {version}");
    }
}

/// Returns what a node with these GPUs and this system gets by default: version, tag and modules, or the message.
fn default_on(names: &[&str], id: &str, version_id: &str) -> Result<String, String> {
    let catalogue = catalogue();
    let gpus = models(&catalogue, names);
    let release = match catalogue.default_driver_for(&gpus, id, version_id) {
        Some(release) => release,
        None => catalogue.default_driver(&gpus).map_err(|error| error.to_string())?,
    };
    let os = catalogue.driver_image_os(&gpus, &release.version, id, version_id).map_err(|error| error.to_string())?;
    let flavour = common_module_flavour(&gpus, &release.version, KernelModule::Auto).map_err(|e| e.to_string())?;
    Ok(format!("{}-{os} {flavour}", release.version))
}

#[test]
fn every_model_and_system_gets_its_default_or_a_solution() {
    const NO_470: &str = "driver 470.256.02 has no known image for ubuntu22.04, only for ubuntu20.04, rhel8.6, rhel8.7, \
                          rhel8.8, rhel8.9; write driver.image with an image of your own, write source: RunFile, or \
                          install the driver on the host";
    for (model, id, version, expected) in [
        ("nvidia-tesla-k80", "ubuntu", "20.04", Ok("470.256.02-ubuntu20.04 proprietary")),
        ("nvidia-tesla-k80", "rhel", "8.8", Ok("470.256.02-rhel8.8 proprietary")),
        ("nvidia-tesla-k80", "ubuntu", "22.04", Err(NO_470)),
        ("nvidia-tesla-k80", "rhel", "8.10", Err("no known image for rhel8.10")),
        ("nvidia-tesla-t4", "ubuntu", "20.04", Ok("570.172.08-ubuntu20.04 open")),
        ("nvidia-tesla-t4", "ubuntu", "22.04", Ok("595.91.07-ubuntu22.04 open")),
        ("nvidia-tesla-t4", "rhel", "8.10", Ok("595.91.07-rhel8 open")),
        ("nvidia-tesla-t4", "rocky", "8.10", Ok("595.91.07-rocky8 open")),
        ("nvidia-tesla-t4", "ol", "9.4", Err("no known image for ol9.4")),
        ("nvidia-tesla-t4", "ubuntu", "18.04", Err("no known image for ubuntu18.04")),
        ("nvidia-tesla-v100", "ubuntu", "24.04", Ok("580.173.02-ubuntu24.04 proprietary")),
        ("nvidia-tesla-v100", "ubuntu", "20.04", Ok("570.172.08-ubuntu20.04 proprietary")),
        ("nvidia-tesla-p100", "ubuntu", "26.04", Err("driver 580.173.02 has no known image for ubuntu26.04")),
        ("nvidia-tesla-p100", "rocky", "10.0", Ok("580.173.02-rocky10 proprietary")),
        ("nvidia-geforce-gtx-1080-ti", "ubuntu", "24.04", Ok("580.173.02-ubuntu24.04 proprietary")),
        ("nvidia-geforce-gtx-1080-ti", "rhel", "10.0", Ok("580.173.02-rhel10 proprietary")),
        ("nvidia-geforce-rtx-4090", "ubuntu", "24.04", Ok("595.91.07-ubuntu24.04 open")),
        ("nvidia-geforce-rtx-5090", "ubuntu", "20.04", Ok("570.172.08-ubuntu20.04 open")),
        ("nvidia-h100-80gb", "ubuntu", "22.04", Ok("595.91.07-ubuntu22.04 open")),
        ("nvidia-h100-80gb", "rhel", "9.6", Ok("595.91.07-rhel9 open")),
        ("nvidia-b200", "ubuntu", "24.04", Ok("595.91.07-ubuntu24.04 open")),
        ("nvidia-b200", "ubuntu", "20.04", Ok("570.172.08-ubuntu20.04 open")),
        ("nvidia-b300", "ubuntu", "20.04", Err("driver 595.91.07 has no known image for ubuntu20.04")),
        // Every image is built for arm64 as well.
        ("nvidia-gb200", "ubuntu", "24.04", Ok("595.91.07-ubuntu24.04 open")),
    ] {
        match (default_on(&[model], id, version), expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{model} {id} {version}"),
            (Err(got), Err(expected)) => assert!(got.contains(expected), "{model} {id} {version}: {got}"),
            (got, expected) => panic!("{model} {id} {version}: {got:?}, expected {expected:?}"),
        }
    }
    assert_eq!(
        default_on(&["nvidia-tesla-p100", "nvidia-h100-80gb"], "ubuntu", "20.04").as_deref(),
        Ok("570.172.08-ubuntu20.04 proprietary")
    );
}

#[test]
fn the_kernel_module_follows_from_model_and_branch() {
    use KernelModule::{Auto, Open, Proprietary};
    assert_eq!(flavour("nvidia-tesla-k80", "470.256.02", Auto), Ok(Flavour::Proprietary));
    assert_eq!(flavour("nvidia-tesla-p100", "580.173.02", Auto), Ok(Flavour::Proprietary));
    assert_eq!(flavour("nvidia-tesla-p100", "580.173.02", Proprietary), Ok(Flavour::Proprietary));
    assert_eq!(flavour("nvidia-tesla-t4", "595.91.07", Auto), Ok(Flavour::Open));
    assert_eq!(flavour("nvidia-tesla-t4", "560.28.03", Auto), Ok(Flavour::Open));
    assert_eq!(flavour("nvidia-tesla-t4", "550.90.07", Auto), Ok(Flavour::Proprietary));
    assert_eq!(flavour("nvidia-tesla-t4", "550.90.07", Open), Ok(Flavour::Open));
    assert_eq!(flavour("nvidia-tesla-t4", "595.91.07", Proprietary), Ok(Flavour::Proprietary));
    assert_eq!(flavour("nvidia-gh200", "550.90.07", Auto), Ok(Flavour::Open));
    assert_eq!(flavour("nvidia-b200", "580.173.02", Auto), Ok(Flavour::Open));
    assert_eq!(flavour("nvidia-b200", "580.173.02", Open), Ok(Flavour::Open));
}

#[test]
fn an_unsupported_kernel_module_is_rejected_with_another() {
    use KernelModule::{Auto, Open, Proprietary};
    assert_eq!(
        flavour("nvidia-tesla-p100", "580.173.02", Open).unwrap_err(),
        "nvidia-tesla-p100 (Pascal) runs with the proprietary kernel modules only; write driver.container.kernelModule: \
         Proprietary, or Auto to leave the choice to the operator"
    );
    assert_eq!(
        flavour("nvidia-b200", "580.173.02", Proprietary).unwrap_err(),
        "nvidia-b200 (Blackwell) runs with the open kernel modules only; write driver.container.kernelModule: Open, or Auto to \
         leave the choice to the operator"
    );
    assert!(flavour("nvidia-tesla-t4", "470.256.02", Open).unwrap_err().contains("exist from branch 515 on"));
    assert!(flavour("nvidia-b200", "470.256.02", Auto).unwrap_err().contains("exist from branch 515 on"));
    assert!(flavour("nvidia-tesla-t4", "newest", Auto).unwrap_err().contains("not a driver version"));
}

#[test]
fn several_models_load_the_flavour_that_runs_them_all() {
    let catalogue = catalogue();
    let common = |names: &[&str], requested| common_module_flavour(&models(&catalogue, names), "580.173.02", requested);
    assert_eq!(common(&["nvidia-h100-80gb", "nvidia-tesla-p100"], KernelModule::Auto), Ok(Flavour::Proprietary));
    assert_eq!(common(&["nvidia-h100-80gb", "nvidia-b200"], KernelModule::Auto), Ok(Flavour::Open));
    assert_eq!(common(&[], KernelModule::Auto), Ok(Flavour::Open));
    for requested in [KernelModule::Auto, KernelModule::Open, KernelModule::Proprietary] {
        let mixed = common(&["nvidia-tesla-p100", "nvidia-b200"], requested);
        assert!(matches!(mixed, Err(FlavourUnsupported::Mixed { .. })), "{mixed:?}");
    }
}
