//! `docs/operate/scale.md`, whose figures are written by the benchmark and whose text is written by hand, and
//! `docs/operate/scale.svg`.

use std::{fs, thread::available_parallelism};

use anyhow::{Context, Result};
use harness::{outln, paths::Paths};

use super::{figures::Figures, plot};

const END: &str = "<!-- end -->\n";

/// A section of the page with figures.
#[derive(Clone, Copy, Debug)]
pub(super) enum Section {
    /// The operator, during the installation of fleets.
    Fleets,
    /// The operator, while the health of GPUs changes.
    Health,
    /// The operator, while the driver of the fleet is updated.
    Update,
    Probe,
}

impl Section {
    /// Returns the line after which the figures begin; they end with the end mark.
    fn begin(self) -> String {
        let option = match self {
            Self::Fleets => "",
            Self::Health => " --health",
            Self::Update => " --update",
            Self::Probe => " --probe",
        };
        format!("<!-- Written by `cargo xtask benchmark{option} --write`, up to the end mark. -->\n")
    }
}

/// Replaces the figures of a section. `circumstances` describes what they depend on in addition to the machine.
pub(super) fn write(paths: &Paths, section: Section, circumstances: &str, figures: &str) -> Result<()> {
    let page = paths.root.join("docs/operate/scale.md");
    let text = fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let figures = format!("On a machine with {}; {circumstances}.\n\n{figures}\n", machine()?);
    let text = replaced(&text, section, &figures).with_context(|| {
        let begin = section.begin();
        format!(
            "{} has no section for these figures, which must begin with the line {} and end with {END}",
            page.display(),
            begin.trim()
        )
    })?;
    fs::write(&page, text).with_context(|| format!("writing {}", page.display()))?;
    outln!("wrote {}", page.display());
    Ok(())
}

/// Plots the figures of fleets.
pub(super) fn draw(paths: &Paths, all: &[Figures]) -> Result<()> {
    let file = paths.root.join("docs/operate/scale.svg");
    fs::write(&file, plot::svg(all)).with_context(|| format!("writing {}", file.display()))?;
    outln!("wrote {}", file.display());
    Ok(())
}

fn machine() -> Result<String> {
    let memory = fs::read_to_string("/proc/meminfo")?;
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let kib: u64 = total.context("no MemTotal in /proc/meminfo")?.trim().parse()?;
    Ok(format!("{} processor cores and {} GiB of memory", available_parallelism()?, kib >> 20))
}

fn replaced(page: &str, section: Section, figures: &str) -> Option<String> {
    let begin = section.begin();
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n{figures}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_replace_older_ones_and_leave_the_rest() {
        let place = |section: Section, figures: &str| format!("words\n{}\n{figures}{END}", section.begin());
        let page = |fleets, probe| place(Section::Fleets, fleets) + &place(Section::Probe, probe) + "more words\n";
        let new = replaced(&page("old\n", "old\n"), Section::Probe, "new\n").unwrap();
        assert_eq!(new, page("old\n", "new\n"));
        assert_eq!(replaced(&new, Section::Probe, "new\n").unwrap(), new);
        assert_eq!(replaced(&new, Section::Health, "new\n"), None);
    }

    #[test]
    fn the_page_of_this_checkout_has_all_sections() {
        let page = include_str!("../../../docs/operate/scale.md");
        for section in [Section::Fleets, Section::Update, Section::Health, Section::Probe] {
            assert!(replaced(page, section, "new").is_some(), "{section:?}");
        }
    }
}
