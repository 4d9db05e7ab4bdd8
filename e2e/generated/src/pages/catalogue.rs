//! The models that the operator knows, and the drivers that it recommends for them, from the catalogue of the plan.

use std::{cmp::Reverse, collections::BTreeMap};

use anyhow::{Context, Result};
use gpu_operator_plan::catalogue::{Accelerator, BranchRange, Catalogue, ModuleSupport, PciDevice};

use super::page::{Page, code, listed};
use crate::file::Generated;

const SOURCE: &str = "crates/plan/data/accelerators.yaml";
const DESKTOP_SOURCE: &str = "crates/plan/data/accelerators.yaml or desktop.txt";

/// Series of desktop cards, as their names begin.
const SERIES: [&str; 5] = ["geforce", "quadro", "rtx", "nvs", "titan"];

pub(super) fn pages() -> Result<Vec<Generated>> {
    let catalogue = Catalogue::builtin()?;
    Ok(vec![data_centre(&catalogue)?, desktop(&catalogue)?])
}

fn data_centre(catalogue: &Catalogue) -> Result<Generated> {
    let mut page = Page::new("catalogue", SOURCE, "Models and drivers");
    page.block(
        "The GPU models that the operator knows, with the driver branches that support them, and the driver version that it installs if a\n\
         policy sets none. Desktop and workstation cards are on a [page of their own](catalogue-desktop.md); models that are on neither can be\n\
         added in a policy ([`spec.models`](api-policy.md#specmodels)). Numbers in parentheses are PCI device IDs, as in `lspci -nn`.\n\
         `[1]` and so on mark facts that are not documented: see [Unverified](#unverified).",
    );
    let mut notes = Notes::default();
    releases(&mut page, catalogue, &mut notes);
    for (architecture, models) in by_architecture(catalogue, false) {
        page.heading(2, &architecture);
        let usual = usual(&models).context("an architecture without models")?;
        page.list(rules(catalogue, usual));
        // Two lists in succession would be one.
        page.block("Models:");
        page.list(models.iter().map(|model| {
            let common = rules(catalogue, usual);
            let own = rules(catalogue, model).into_iter().filter(|rule| !common.contains(rule));
            let lines = own.map(|rule| format!("  - {rule}"));
            std::iter::once(format!("{}{}", named(model, true), notes.marks(model)))
                .chain(lines)
                .collect::<Vec<_>>()
                .join("\n")
        }));
    }
    notes.add_to(&mut page);
    Ok(page.end())
}

/// Adds the recommended versions.
fn releases(page: &mut Page, catalogue: &Catalogue, notes: &mut Notes) {
    page.heading(2, "Recommended drivers");
    page.block(
        "The version, the highest CUDA version that it supports, and the systems that NVIDIA built its image for. The newest version that supports\n\
         all GPUs of a node and has an image for its system is installed, but no *optional* one, which a node gets only if its policy names it;\n\
         the lists below show it by model and system. On other systems the node reports `NoDriverImageForOS`.",
    );
    page.list(catalogue.releases().map(|release| {
        let cuda = catalogue.cuda_of(&release.version).unwrap_or("unknown");
        let cuda = format!("CUDA {cuda} {}", notes.mark(&format!("CUDA versions: {}", catalogue.cuda_believed())));
        let systems = systems(&release.os.iter().map(String::as_str).collect::<Vec<_>>());
        let optional = if release.is_default { "" } else { " (optional)" };
        format!(
            "`{}`{optional}: {cuda}; {systems} {}",
            release.version,
            notes.mark(&format!("images: {}", release.source))
        )
    }));
}

fn desktop(catalogue: &Catalogue) -> Result<Generated> {
    let mut page = Page::new("catalogue-desktop", DESKTOP_SOURCE, "Desktop and workstation cards");
    page.block(
        "The cards that the operator knows, in addition to the [models of data centres](catalogue.md), with their PCI device IDs. Each list begins\n\
         with what comes before its names in the model's label: `gtx-1080` of `nvidia-geforce-` is `nvidia-geforce-gtx-1080`. Variants for\n\
         laptops end with `-mobile`. Driver branches and kernel modules are those of the architecture; of a single card nothing is verified.\n\
         `[1]` and so on mark facts that are not documented: see [Unverified](#unverified).",
    );
    let mut notes = Notes::default();
    for (architecture, models) in by_architecture(catalogue, true) {
        page.heading(2, &architecture);
        let usual = usual(&models).context("an architecture without models")?;
        // Most cards of an architecture have the same marks, which are therefore written once.
        let of_all = notes.marks(usual);
        page.list(
            rules(catalogue, usual)
                .into_iter()
                .enumerate()
                .map(|(index, rule)| if index == 0 { format!("{rule}{of_all}") } else { rule }),
        );
        let mut series: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for model in models {
            let own = notes.marks(model);
            let mark = if own == of_all { String::new() } else { own };
            let name = series_of(&model.name);
            series.entry(name).or_default().push(format!("{}{mark}", named(model, false)));
        }
        page.block("Cards:");
        page.list(series.into_iter().map(|(series, models)| format!("`{}`: {}", prefix(series), models.join(", "))));
    }
    notes.add_to(&mut page);
    Ok(page.end())
}

/// Returns the index of a card's series; one more than there are for a card without one.
fn series_of(name: &str) -> usize {
    SERIES.iter().position(|series| name.starts_with(&format!("nvidia-{series}-"))).unwrap_or(SERIES.len())
}

fn prefix(series: usize) -> String {
    SERIES.get(series).map_or("nvidia-".to_owned(), |series| format!("nvidia-{series}-"))
}

/// Returns the models of the data centre or of the desktop, by architecture, in the order of the catalogue.
fn by_architecture(catalogue: &Catalogue, desktop: bool) -> Vec<(String, Vec<&Accelerator>)> {
    let mut all: Vec<(String, Vec<&Accelerator>)> = Vec::new();
    for model in catalogue.models().filter(|model| model.desktop == desktop) {
        let architecture = model.architecture.to_string();
        match all.iter_mut().find(|(other, _)| *other == architecture) {
            Some((_, models)) => models.push(model),
            None => all.push((architecture, vec![model])),
        }
    }
    all
}

/// Returns a model with the limits of the architecture, which a model's own only narrow; of several, one that has the same unverified facts
/// as most of the models.
fn usual<'a>(models: &[&'a Accelerator]) -> Option<&'a Accelerator> {
    let alike = |model: &Accelerator| models.iter().filter(|other| other.believed == model.believed).count();
    let limits = |model: &Accelerator| Reverse((model.driver.first, model.driver.first_version.is_some()));
    models.iter().rev().max_by_key(|model| (limits(model), alike(model))).copied()
}

/// Returns what holds for a model: its driver branches, kernel modules and recommended drivers.
fn rules(catalogue: &Catalogue, model: &Accelerator) -> Vec<String> {
    let BranchRange { first_version, .. } = &model.driver;
    let since = first_version.as_ref().map_or(String::new(), |version| format!(", there from version {version}"));
    let modules = match model.modules {
        ModuleSupport::ProprietaryOnly => "proprietary only",
        ModuleSupport::Either => "open or proprietary",
        ModuleSupport::OpenOnly => "open only",
    };
    vec![
        format!("Supported {}{since}.", model.driver),
        format!("Kernel modules: {modules}."),
        format!("Installed: {}.", recommended(catalogue, model)),
    ]
}

/// Returns the recommended versions of a model with the systems that get them, newest first.
fn recommended(catalogue: &Catalogue, model: &Accelerator) -> String {
    let all: Vec<&str> = catalogue.releases().flat_map(|release| &release.os).map(String::as_str).collect();
    let for_system = |system: &str| {
        let (id, version) = split(system);
        catalogue.default_driver_for(&[model], id, version).map(|release| release.version.as_str())
    };
    let versions: Vec<_> = catalogue.releases().map(|release| release.version.as_str()).collect();
    let lists = versions.into_iter().rev().filter_map(|version| {
        let mut with: Vec<&str> = all.iter().copied().filter(|system| for_system(system) == Some(version)).collect();
        with.sort_by_key(|system| (all.iter().position(|other| split(other).0 == split(system).0), numbers(system)));
        with.dedup();
        // What holds for a whole release of a system is not repeated for each of its minor ones.
        let shown: Vec<_> = with
            .iter()
            .copied()
            .filter(|system| system.split_once('.').is_none_or(|(major, _)| !with.contains(&major)))
            .collect();
        (!shown.is_empty()).then(|| format!("`{version}` on {}", systems(&shown)))
    });
    let lists: Vec<_> = lists.collect();
    if lists.is_empty() { "no recommended version".to_owned() } else { lists.join("; ") }
}

/// Splits the name of a system in tags into `ID` and `VERSION_ID`: `ubuntu22.04`.
fn split(system: &str) -> (&str, &str) {
    let digit = system.find(|letter: char| letter.is_ascii_digit()).unwrap_or(system.len());
    system.split_at(digit)
}

fn numbers(system: &str) -> Vec<u32> {
    split(system).1.split('.').filter_map(|number| number.parse().ok()).collect()
}

/// Returns systems by name: `Ubuntu 22.04 and 24.04, RHEL 8`.
fn systems(tags: &[&str]) -> String {
    let mut by_id: Vec<(&str, Vec<String>)> = Vec::new();
    for tag in tags {
        let (id, version) = split(tag);
        match by_id.iter_mut().find(|(other, _)| *other == id) {
            Some((_, versions)) => versions.push(version.to_owned()),
            None => by_id.push((id, vec![version.to_owned()])),
        }
    }
    let name = |id: &str| match id {
        "ubuntu" => "Ubuntu".to_owned(),
        "rhel" => "RHEL".to_owned(),
        "rocky" => "Rocky Linux".to_owned(),
        other => other.to_owned(),
    };
    by_id
        .into_iter()
        .map(|(id, versions)| format!("{} {}", name(id), listed(&versions, "and")))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns a model with its PCI ids, memory and other names.
fn named(model: &Accelerator, whole: bool) -> String {
    let name = if whole { &model.name } else { model.name.trim_start_matches(&prefix(series_of(&model.name))) };
    let ids: Vec<_> = model.devices.iter().map(id).collect();
    let aliases: Vec<_> = model.aliases.iter().map(|alias| code(alias)).collect();
    let aliases = if aliases.is_empty() { String::new() } else { format!(", also {}", listed(&aliases, "and")) };
    format!("`{name}` ({}){aliases}", ids.join(", "))
}

fn id(device: &PciDevice) -> String {
    match device.subsystem {
        Some(subsystem) => format!("{:04x} of {:04x}:{:04x}", device.device_id, subsystem.vendor, subsystem.device),
        None => format!("{:04x}", device.device_id),
    }
}

/// The unverified facts of a page, in the order of their marks.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn mark(&mut self, fact: &str) -> String {
        let index = self.0.iter().position(|other| other == fact).unwrap_or_else(|| {
            self.0.push(fact.to_owned());
            self.0.len() - 1
        });
        format!("[{}]", index + 1)
    }

    /// Returns the marks of a model's facts, after a space.
    fn marks(&mut self, model: &Accelerator) -> String {
        model.believed.as_ref().map_or(String::new(), |fact| format!(" {}", self.mark(fact)))
    }

    /// Adds the facts to a page.
    fn add_to(self, page: &mut Page) {
        page.heading(2, "Unverified");
        let items: Vec<_> = self.0.iter().enumerate().map(|(index, fact)| format!("{}. {fact}", index + 1)).collect();
        page.block(&items.join("\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_and_every_unverified_fact_is_on_its_page() {
        let catalogue = Catalogue::builtin().expect("a catalogue");
        let pages = pages().expect("pages");
        for model in catalogue.models() {
            let page = &pages[usize::from(model.desktop)].text;
            assert!(page.contains(&named(model, !model.desktop)), "{}", model.name);
            assert!(model.believed.iter().all(|fact| page.contains(&format!(". {fact}\n"))), "{}", model.name);
        }
    }

    #[test]
    fn each_system_gets_the_newest_version_with_an_image() {
        let catalogue = Catalogue::builtin().expect("a catalogue");
        for (name, expected) in [
            ("nvidia-tesla-k80", "`470.256.02` on Ubuntu 20.04, RHEL 8.6, 8.7, 8.8 and 8.9"),
            (
                "nvidia-tesla-p100",
                "`580.173.02` on Ubuntu 22.04 and 24.04, RHEL 8, 9 and 10, Rocky Linux 8, 9 and 10; `570.172.08` on Ubuntu 20.04",
            ),
        ] {
            let model = catalogue.model(name).expect("a model");
            assert_eq!(recommended(&catalogue, model), expected, "{name}");
        }
    }
}
