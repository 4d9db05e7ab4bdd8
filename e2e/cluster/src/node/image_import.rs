//! Importing images into the containerd of each node.

use std::{collections::BTreeSet, fs, thread, time::Duration};

use anyhow::{Context, Result, anyhow};
use harness::{images, node_id::NodeId, paths::Paths, progress::Step};

use super::control;
use crate::state::State;

/// Imports the images that each node does not have yet, and returns their names; without `all`, only those that every pod needs.
pub fn import(paths: &Paths, state: &State, all: bool) -> Result<BTreeSet<String>> {
    let step = Step::start("importing images into the nodes");
    let imported = thread::scope(|scope| {
        let nodes: Vec<_> =
            state.nodes.real().map(|node| scope.spawn(move || of_node(paths, state, node, all))).collect();
        while nodes.iter().any(|node| !node.is_finished()) {
            step.tick("");
            thread::sleep(Duration::from_millis(50));
        }
        let joined = nodes.into_iter().map(|node| node.join().map_err(|_| anyhow!("the import has panicked"))?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    step.done();
    Ok(imported.into_iter().flatten().collect())
}

/// Imports the images that one node does not have yet, and returns their names.
fn of_node(paths: &Paths, state: &State, node: NodeId, all: bool) -> Result<Vec<String>> {
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
    for (image, record, stamp) in &missing {
        let archive = image.archive(paths);
        let archive = archive.to_str().context("the checkout's path is not UTF-8")?;
        let import = ["ctr", "--namespace=k8s.io", "images", "import", "--local", archive];
        control::exec(paths, state, node, &import).with_context(|| node.name())?;
        fs::write(record, stamp)?;
    }
    Ok(missing.into_iter().map(|(image, ..)| image.name).collect())
}
