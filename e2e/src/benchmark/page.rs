//! docs/scale.md, of which the figures are written by the benchmark and the words by hand, and docs/scale.svg.

use std::{fs, thread::available_parallelism};

use anyhow::{Context, Result};

use super::{figures::Figures, picture, table};
use crate::paths::Paths;

const BEGIN: &str = "<!-- Written by `cargo xtask benchmark --write`, up to the end mark. -->\n";
const END: &str = "<!-- end -->\n";

/// Puts the figures in place of those that are there.
pub(super) fn write(paths: &Paths, all: &[Figures]) -> Result<()> {
    let page = paths.root.join("docs/scale.md");
    let text = fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let text = replaced(&text, &format!("{}\n{}\n", circumstances(all)?, table::tables(all)))
        .with_context(|| format!("{}: not one place for figures, marked at its begin and end", page.display()))?;
    fs::write(&page, text)?;
    let picture = paths.root.join("docs/scale.svg");
    fs::write(&picture, picture::svg(all))?;
    say!("written: {} and {}", page.display(), picture.display());
    Ok(())
}

/// What the figures depend on.
fn circumstances(all: &[Figures]) -> Result<String> {
    let memory = fs::read_to_string("/proc/meminfo")?;
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    let kib: u64 = total.context("no MemTotal in /proc/meminfo")?.trim().parse()?;
    let settled = all.first().map_or(0, |figures| figures.settled_for.as_secs());
    Ok(format!(
        "On a machine with {} processor cores and {} GiB of memory; settled fleets were watched for {settled} s.\n",
        available_parallelism()?,
        kib >> 20,
    ))
}

fn replaced(page: &str, figures: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{figures}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_take_the_place_of_older_ones_and_leave_the_words() {
        let page = format!("words\n{BEGIN}\nold\n{END}more words\n");
        let new = replaced(&page, "new\n").unwrap();
        assert_eq!(new, format!("words\n{BEGIN}\nnew\n{END}more words\n"));
        assert_eq!(replaced(&new, "new\n").unwrap(), new);
        assert_eq!(replaced("words\n", "new\n"), None);
    }

    #[test]
    fn the_page_of_this_checkout_has_a_place_for_figures() {
        let page = include_str!("../../../docs/scale.md");
        assert!(replaced(page, "new").is_some());
    }
}
