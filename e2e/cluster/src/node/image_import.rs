//! Importing images into a node's containerd.

use std::fs;

use anyhow::{Context, Result};
use harness::{images, node_id::NodeId, paths::Paths, progress::Step};

use super::control;
use crate::state::State;

/// Imports the images that a node does not have yet, and returns their names; without `all`, only those that every pod needs.
pub fn import(paths: &Paths, state: &State, node: NodeId, all: bool) -> Result<Vec<String>> {
    let imported = paths.cluster().join(format!("{}.imported", node.name()));
    fs::create_dir_all(&imported)?;
    let mut missing = Vec::new();
    for image in images::list(all)? {
        let built = image.stamp_file(paths);
        let record = imported.join(built.file_name().unwrap_or_default());
        let stamp = fs::read_to_string(&built).with_context(|| format!("reading {}", built.display()))?;
        if !fs::read_to_string(&record).is_ok_and(|old| old == stamp) {
            missing.push((image, record, stamp));
        }
    }
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let step = Step::start(format!("importing {} images into {}", missing.len(), node.name()));
    for (n, (image, record, stamp)) in missing.iter().enumerate() {
        step.tick(&format!("{} of {}", n + 1, missing.len()));
        let archive = image.archive(paths);
        let archive = archive.to_str().context("the checkout's path is not UTF-8")?;
        control::exec(paths, state, node, &["ctr", "--namespace=k8s.io", "images", "import", "--local", archive])?;
        fs::write(record, stamp)?;
    }
    step.done();
    Ok(missing.into_iter().map(|(image, ..)| image.name).collect())
}
