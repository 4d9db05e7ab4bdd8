//! `kubectl gpu-fleet import`: prints a policy with the settings of NVIDIA's GPU Operator. Fields that it cannot have are comments at its
//! head, so a file that is written with `>` is complete.

mod driver;
pub mod fields;
mod objects;
mod plugin;
mod pools;
mod rollout;
mod selector;
mod source;
#[cfg(test)]
mod tests;
mod toolkit;
mod translate;

use std::{
    fs,
    io::{self, Read, Write},
};

use gpu_operator_crd::ClusterGpuPolicy;
use gpu_operator_plan::catalogue::{Catalogue, CatalogueError};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Client,
    api::{ApiResource, GroupVersionKind, ListParams},
};
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use crate::{
    output::wrap,
    policy_file::{self, FileError},
    read::{self, ReadError},
};
use objects::Objects;
use source::Remark;
use translate::{Imported, import};

/// Print a policy with the settings of NVIDIA's GPU Operator; changes nothing.
///
/// Reads its `ClusterPolicy` and `NVIDIADriver` objects, and the ConfigMaps that they name. Fields that a policy cannot have are listed as
/// comments at its head, each with what to do instead.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Exit codes: 0 if a policy was printed, with remarks or without; 1 on errors.

Example:
  kubectl gpu-fleet import > policy.yaml
  kubectl gpu-fleet plan --filename policy.yaml")]
pub struct Import {
    /// File with these objects, as YAML or JSON, instead of the cluster; `-` reads standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with = "values")]
    filename: Option<String>,
    /// File with values of NVIDIA's chart instead of objects, as printed by `helm get values RELEASE --all --output yaml`; `-` reads standard
    /// input.
    #[arg(long, value_name = "FILE")]
    values: Option<String>,
}

#[derive(Debug, Error)]
pub enum ImportError {
    #[error("cannot read {0}: {1}")]
    File(String, #[source] io::Error),
    #[error("{0}: document {1} is not valid YAML: {2}")]
    Yaml(String, usize, #[source] serde_yaml::Error),
    #[error(
        "{0} contains no ClusterPolicy or NVIDIADriver of nvidia.com{1}; write them with: kubectl get clusterpolicies,nvidiadrivers -o yaml. \
         For values of NVIDIA's chart, write --values instead of --filename"
    )]
    NoObject(String, String),
    #[error(
        "{0} contains no values of NVIDIA's chart; write them with: helm get values RELEASE --all --output yaml. For objects, write --filename instead of --values"
    )]
    NoValues(String),
    #[error(
        "the cluster has no ClusterPolicy and no NVIDIADriver; read them from a file with --filename, or NVIDIA's chart with --values"
    )]
    NotInstalled,
    #[error(
        "the right to {0} is missing; bind the ClusterRole nodestack-gpu-operator-cli of the chart, or let an administrator run kubectl get \
         clusterpolicies,nvidiadrivers -o yaml, and read its output with --filename"
    )]
    Forbidden(String),
    #[error(transparent)]
    Cluster(ReadError),
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    #[error("the policy cannot be printed: {0}")]
    Print(#[from] serde_yaml::Error),
    #[error(transparent)]
    Policy(#[from] FileError),
    #[error("cannot write the policy: {0}")]
    Write(#[from] io::Error),
}

impl From<ReadError> for ImportError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Forbidden(right) => Self::Forbidden(right),
            error => Self::Cluster(error),
        }
    }
}

impl Import {
    pub fn needs_cluster(&self) -> bool {
        self.filename.is_none() && self.values.is_none()
    }

    /// Prints the policy.
    pub async fn run(&self, client: Option<Client>) -> Result<(), ImportError> {
        let objects = match (&self.filename, &self.values, client) {
            (Some(file), ..) => of_file(file, &text(file)?)?,
            (_, Some(file), _) => of_values(file, &text(file)?)?,
            (_, _, Some(client)) => of_cluster(&client).await?,
            _ => return Err(ImportError::NotInstalled),
        };
        let imported = import(objects, &Catalogue::builtin()?);
        if !imported.remarks.is_empty() {
            tracing::warn!("read the {} remarks at the head of the policy before you apply it", imported.remarks.len());
        }
        let printed = print(&imported)?;
        policy_file::policies("the imported policy", &printed)?;
        Ok(io::stdout().write_all(printed.as_bytes())?)
    }
}

fn text(file: &str) -> Result<String, ImportError> {
    let read = if file == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    read.map_err(|error| ImportError::File(file.to_owned(), error))
}

fn documents(file: &str, text: &str) -> Result<Vec<Value>, ImportError> {
    let documents = serde_yaml::Deserializer::from_str(text).enumerate();
    let parse = |(index, document)| {
        Value::deserialize(document).map_err(|error| ImportError::Yaml(file.to_owned(), index + 1, error))
    };
    documents.map(parse).collect()
}

fn of_file(file: &str, text: &str) -> Result<Objects, ImportError> {
    let objects = Objects::of(documents(file, text)?);
    if objects.is_empty() {
        let others: Vec<&str> = objects.others.iter().map(String::as_str).filter(|kind| !kind.is_empty()).collect();
        let others = if others.is_empty() { String::new() } else { format!(", only {}", others.join(", ")) };
        return Err(ImportError::NoObject(file.to_owned(), others));
    }
    Ok(objects)
}

fn of_values(file: &str, text: &str) -> Result<Objects, ImportError> {
    match documents(file, text)?.into_iter().next() {
        Some(Value::Object(values)) if !values.contains_key("kind") => Ok(Objects::of_values(values)),
        _ => Err(ImportError::NoValues(file.to_owned())),
    }
}

async fn of_cluster(client: &Client) -> Result<Objects, ImportError> {
    let mut found = Vec::new();
    for (version, kind, plural) in
        [("v1", "ClusterPolicy", "clusterpolicies"), ("v1alpha1", "NVIDIADriver", "nvidiadrivers")]
    {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("nvidia.com", version, kind), plural);
        let mut take = |object| {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            if let Some(fields) = object.as_object_mut() {
                fields.insert("apiVersion".to_owned(), json!(resource.api_version));
                fields.insert("kind".to_owned(), json!(kind));
            }
            found.push(object);
        };
        match read::each(client, None, &resource, ListParams::default(), &mut take).await {
            Ok(()) | Err(ReadError::NotInstalled(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let namespace = found.iter().find_map(|object| object["status"]["namespace"].as_str());
    let namespace = namespace.unwrap_or("gpu-operator").to_owned();
    let mut objects = Objects::of(found);
    if objects.is_empty() {
        return Err(ImportError::NotInstalled);
    }
    for name in objects.config_map_names() {
        match read::get::<ConfigMap>(client, Some(&namespace), &name).await {
            Ok(Some(found)) => drop(objects.config_maps.insert(name, found.data.unwrap_or_default())),
            // It is remarked as not read.
            Ok(None) | Err(ReadError::Forbidden(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(objects)
}

/// Returns fields with what they have in common once: `, dcgmExporter (enabled, image)`.
fn named(fields: &[String]) -> String {
    let [first, others @ ..] = fields else { return String::new() };
    let is_common =
        |folder: &&str| others.iter().all(|other| other.strip_prefix(folder).is_some_and(|rest| rest.starts_with('.')));
    let mut folders = first.rmatch_indices('.').map(|(end, _)| &first[..end]);
    match folders.find(is_common).filter(|_| !others.is_empty()) {
        Some(folder) => {
            let rest: Vec<&str> = fields.iter().map(|field| &field[folder.len() + 1..]).collect();
            format!(", {folder} ({})", rest.join(", "))
        }
        None => format!(", {}", fields.join(", ")),
    }
}

/// Returns the policy as YAML, with the remarks as comments.
fn print(imported: &Imported) -> Result<String, serde_yaml::Error> {
    let mut lines = vec!["# From the settings of NVIDIA's GPU Operator, by kubectl gpu-fleet import.".to_owned()];
    for Remark { object, fields, text } in &imported.remarks {
        let fields = named(fields);
        lines.push("#".to_owned());
        // The indentation of a line that goes on is a comment, too.
        let of = |text: &str| wrap(text, "# ", 2).into_iter().map(|line| format!("#{}", &line[1..]));
        lines.extend(of(&format!("{object}{fields}:")));
        lines.extend(of(text));
    }
    let policy = ClusterGpuPolicy::new("all", imported.policy.clone());
    Ok(lines.join("\n") + "\n" + &serde_yaml::to_string(&policy)?)
}
