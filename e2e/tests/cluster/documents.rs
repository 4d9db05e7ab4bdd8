//! The objects in README, docs and examples are accepted by a real API server without changes, except for their names.

#[allow(dead_code, reason = "another test uses the rest of this file")]
use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use cluster_client::handle::Cluster;
use test_support::yaml_blocks::{Written, objects};

use crate::{
    nodes::{self, Need},
    support::install_chart,
};

/// The name of all applied objects.
const DRY_RUN: &str = "documents-dry-run";

/// Applies an object as a reader would, but as a dry run.
fn apply(cluster: &Cluster, object: &str) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), object)?;
    let file = file.path().display().to_string();
    let flags =
        ["--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "--field-manager=documents"];
    cluster.kubectl(&[&["apply", "-f", &file][..], &flags].concat())?;
    Ok(())
}

#[test]
fn every_block_of_yaml_is_accepted_by_the_api_server() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome: Result<()> = runtime.block_on(async {
        let cluster = Cluster::connect().await?;
        let _hold = nodes::some(&cluster, &Need::default());
        install_chart(&cluster)?;
        let all = objects(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        for Written { at, object } in &all {
            let mut object = object.clone();
            // An object of the same name, left by another test, would be merged with it.
            object["metadata"]["name"] = DRY_RUN.into();
            apply(&cluster, &object.to_string()).with_context(|| at.clone())?;
        }
        // Checks that the dry run does reject invalid objects.
        let mut wrong = all.first().context("no block of YAML")?.object.clone();
        wrong["metadata"]["name"] = DRY_RUN.into();
        wrong["spec"]["driver"] = serde_json::json!({});
        let rejection = apply(&cluster, &wrong.to_string()).err().context("an unknown field is accepted")?;
        ensure!(format!("{rejection:#}").contains(".spec.driver"), "{rejection:#}");
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error:?}");
    }
}
