//! The table of desktop and workstation cards: for each architecture, a row per model. It is plain text instead of YAML because
//! it is the largest part of the data, and every command parses it.

use gpu_operator_crd::policy::Architecture;
use serde::{
    Deserialize,
    de::{IntoDeserializer, value::Error},
};

use super::entries::{CatalogueError, DeviceEntry, ModelEntry, illegal};

/// Parses the table.
pub(super) fn models(text: &str) -> Result<Vec<ModelEntry>, CatalogueError> {
    let mut architecture = None;
    let mut models = Vec::new();
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let row = || illegal("a row of a name and PCI ids below the heading of an architecture", line);
        if !line.starts_with(' ') {
            let heading: Result<Architecture, Error> = Architecture::deserialize(line.into_deserializer());
            architecture = Some(heading.map_err(|_| illegal("the name of an architecture", line))?);
            continue;
        }
        let mut words = line.split_whitespace();
        let (name, ids) = (words.next().ok_or_else(row)?, words.collect::<Vec<_>>());
        if ids.is_empty() {
            return Err(row());
        }
        models.push(ModelEntry::of_table(name, architecture.ok_or_else(row)?, devices(name, &ids)));
    }
    Ok(models)
}

fn devices(name: &str, ids: &[&str]) -> Vec<DeviceEntry> {
    let memory_mib = name.split('-').find_map(|word| word.strip_suffix("gb")?.parse::<u32>().ok()).map(|gb| gb * 1024);
    ids.iter().map(|id| DeviceEntry { id: (*id).to_owned(), subsystem: None, memory_mib }).collect()
}
