//! What becomes of the fields of NVIDIA's operator, from the table of `kubectl gpu-fleet import`.

use gpu_operator_cli::import::fields::{FIELDS, Field, Outcome};

use super::page::{Page, code};
use crate::file::Generated;

const SOURCE: &str = "crates/cli/src/import/fields.rs";

pub(super) fn page() -> Generated {
    let mut page = Page::new("nvidia-fields", SOURCE, "Fields of NVIDIA's GPU Operator");
    page.block(
        "What [`kubectl gpu-fleet import`](../guides/migration.md#import) makes of each field of a ClusterPolicy. An `NVIDIADriver` has the fields\n\
         of `driver` at its top, and `gds` and `gdrcopy`. The values of NVIDIA's chart have the names of the ClusterPolicy, except `driver.nvidiaDriverCRD`\n\
         and `driver.upgradePolicy.gpuPodDeletion` (`podDeletion`). A field stands for all that are below it and are not listed themselves.",
    );
    page.block(
        "The list is complete for 26.3 and 26.7. Later fields are listed by the command as unknown. Components that are switched off, and those for\n\
         virtual machines if `sandboxWorkloads.enabled` is false, become nothing, and neither do values that are NVIDIA's defaults and need nothing.",
    );
    page.heading(2, "Fields that become members of a policy");
    list(&mut page, |outcome| match outcome {
        Outcome::Becomes(text) => Some(text),
        Outcome::NotServed(_) => None,
    });
    page.heading(2, "Fields without a counterpart");
    list(&mut page, |outcome| match outcome {
        Outcome::Becomes(_) => None,
        Outcome::NotServed(text) => Some(text),
    });
    page.end()
}

/// Of the fields with such an outcome.
fn list(page: &mut Page, text_of: impl Fn(&Outcome) -> Option<&str>) {
    let item = |field: &Field| {
        let paths: Vec<String> = field.paths.iter().map(|path| code(path)).collect();
        text_of(&field.outcome).map(|text| format!("{}: {text}", paths.join(", ")))
    };
    page.list(FIELDS.iter().filter_map(item));
}
