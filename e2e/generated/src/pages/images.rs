//! The images that the operator may use, from the constants of the plan, the catalogue and the chart.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use gpu_operator_crd::policy::Images;
use gpu_operator_plan::{
    assess::validation::{OLDEST_TEST, TESTS},
    catalogue::Catalogue,
    desired::{
        driver,
        images::{self, Upstream},
    },
};

use super::page::{Page, code};
use crate::file::Generated;

pub(super) fn page(checkout: &Path) -> Result<Generated> {
    let mut page =
        Page::new("images", "crates/plan/src/desired/images.rs and crates/plan/data/accelerators.yaml", "Images");
    page.block(
        "Every image that the operator uses by default. In a policy, `images.registry` replaces the registry of all of them but those of the\n\
         chart and those that are preloaded on GKE's nodes, and `image` of each part (`repository`, `tag`, `digest`) replaces a single one. No\n\
         default image has been pulled by a test; the [support matrix](../operate/support-matrix.md) shows what stands in for them.",
    );
    chart(&mut page, checkout)?;
    let catalogue = Catalogue::builtin()?;
    let parts: [fn(&mut Page); 4] = [driver, toolkit, device_plugin, validation];
    for part in parts {
        part(&mut page);
    }
    page.heading(2, "A list for a mirror");
    page.block(
        "Which of these a fleet needs follows from its GPUs and operating systems: [catalogue.md](catalogue.md). Copy each to the same path below\n\
         the registry of your own ([air gap](../start/air-gap.md)). Images with precompiled modules are not listed, because there is one for each kernel.",
    );
    page.block(&format!("```text\n{}\n```", to_mirror(&catalogue).join("\n")));
    Ok(page.end())
}

/// Adds the operator's own images.
fn chart(page: &mut Page, checkout: &Path) -> Result<()> {
    let file = checkout.join("charts/gpu-operator/Chart.yaml");
    let chart: serde_yaml::Value = serde_yaml::from_str(&fs::read_to_string(&file)?)?;
    let version = chart["appVersion"].as_str().context("Chart.yaml has no appVersion")?;
    page.heading(2, "Operator and probe");
    page.block(
        "Set by the chart's [values](values.md#image). They are not published: [Install](../start/install.md) shows how to build and push them.",
    );
    page.list([
        format!("`REPOSITORY/gpu-operator:{version}`: the operator, and the pods of `helm test` and of the hook for `helm uninstall`. `REPOSITORY` is `image.repository`."),
        format!(
            "`REPOSITORY/nvml-probe:{version}`: the probe, and in the pods of drivers, toolkits and device plugins the containers that wait, \
             check and clean up.",
        ),
    ]);
    Ok(())
}

fn driver(page: &mut Page) {
    page.heading(2, "Driver");
    page.block("By `driver.source`, which `Auto` chooses for each node ([drivers](../guides/drivers.md#sources)):");
    let from_nvidia = |tag: &str| code(&nvidia(images::DRIVER, tag));
    page.list([
        format!("`Container`: {}.", from_nvidia("VERSION-SYSTEM")),
        format!(
            "`Container` with `container.precompiled: true`: {}, if it exists.",
            from_nvidia(&driver::precompiled_tag("BRANCH", "KERNEL", "SYSTEM"))
        ),
        format!("`CloudInstaller`: on Container-Optimized OS `{}`, preloaded on the nodes and in no registry.", images::preloaded(None, images::GKE_COS)),
        format!("`CloudInstaller`: on Ubuntu `{}`, preloaded as well.", images::preloaded(None, images::GKE_UBUNTU)),
        "`RunFile`: no default; set `driver.image`, for example to one that is built from [images/run-file](../guides/run-file.md).".to_owned(),
        "`Preinstalled`: none.".to_owned(),
    ]);
}

fn toolkit(page: &mut Page) {
    page.heading(2, "Container toolkit");
    page.list([format!(
        "{}: with `toolkit.injection` `CDI`, `NRI` or `Runtime`. None with `None`, with Google's device plugin, and on hosts that have a \
         toolkit of their own.",
        code(&nvidia(images::TOOLKIT.0, images::TOOLKIT.1))
    )]);
}

fn device_plugin(page: &mut Page) {
    page.heading(2, "Device plugin");
    page.block("By `devicePlugin.flavor`:");
    page.list([
        format!(
            "`Nvidia`: {}, also for the control daemon of MPS.",
            code(&nvidia(images::DEVICE_PLUGIN.0, images::DEVICE_PLUGIN.1))
        ),
        format!(
            "`Google`: {}. Unverified: that it can be pulled from outside GKE.",
            code(&default(images::GKE_DEVICE_PLUGIN))
        ),
        "`External`: none.".to_owned(),
    ]);
    page.block(&format!(
        "With `allocation.mode: DRA` NVIDIA's DRA driver is in its place: {}.",
        code(&default(images::DRA_DRIVER))
    ));
}

fn validation(page: &mut Page) {
    page.heading(2, "Validation");
    page.block(
        "NVIDIA's vectorAdd, if `readiness.validation.mode` is not `Never`; by the driver's branch, which determines the CUDA version.\n\
         Unverified: that each runs on every model and processor that its CUDA version supports.",
    );
    let newer = TESTS.map(|(branch, tag)| format!("From branch {branch}: {}.", code(&nvidia(images::SAMPLES, tag))));
    let oldest = format!(
        "Older branches: {}. Those before 440 do not support CUDA 10.2: set `readiness.validation.image`.",
        code(&nvidia(images::SAMPLES, OLDEST_TEST))
    );
    page.list(newer.into_iter().chain([oldest]));
}

/// Returns the references of all default images that are in a registry and have a constant tag.
fn to_mirror(catalogue: &Catalogue) -> Vec<String> {
    let tests = TESTS.into_iter().map(|(_, tag)| tag).chain([OLDEST_TEST]);
    let drivers = catalogue.releases().flat_map(|release| {
        release.os.iter().map(|system| nvidia(images::DRIVER, &format!("{}-{system}", release.version)))
    });
    [nvidia(images::TOOLKIT.0, images::TOOLKIT.1), nvidia(images::DEVICE_PLUGIN.0, images::DEVICE_PLUGIN.1)]
        .into_iter()
        .chain([images::GKE_DEVICE_PLUGIN, images::DRA_DRIVER].map(default))
        .chain(tests.map(|tag| nvidia(images::SAMPLES, tag)))
        .chain(drivers)
        .collect()
}

fn nvidia(path: &str, tag: &str) -> String {
    images::reference(&Images::default(), None, path, tag)
}

fn default(upstream: Upstream<'_>) -> String {
    images::reference_of(&Images::default(), None, upstream)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use harness::paths::Paths;

    /// Returns the references of images with a default in the golden files of the plan.
    fn used(checkout: &Path) -> BTreeSet<String> {
        let folder = checkout.join("crates/plan/tests/plan/snapshots");
        let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let texts = files.map(|file| fs::read_to_string(file).expect("a golden file")).collect::<String>();
        let words = texts.split(|c: char| c.is_whitespace() || "\"',`()[]{}".contains(c));
        let is_default = |word: &&str| {
            [images::REGISTRY, images::GKE_DEVICE_PLUGIN.host, images::DRA_DRIVER.host]
                .iter()
                .any(|host| word.starts_with(&format!("{host}/")))
                || [images::GKE_COS, images::GKE_UBUNTU].contains(word)
        };
        words.filter(is_default).map(str::to_owned).collect()
    }

    #[test]
    fn every_image_in_the_plans_golden_files_is_on_the_page() {
        let checkout = Paths::new().root;
        let page = page(&checkout).expect("a page").text;
        let used = used(&checkout);
        assert!(used.len() > 6, "{used:?}");
        for image in used.iter().filter(|image| !image.contains("-generic-")) {
            assert!(page.contains(image.as_str()), "{image}");
        }
    }
}
