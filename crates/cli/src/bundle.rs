//! `support-bundle`: collects what is needed to analyse a problem into one archive without credentials.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::api::ApiResource;
use thiserror::Error;

use crate::{
    bundle::{
        archive::{About, Manifest, pack},
        collect::{Collected, Options, collect},
        pods::LogOptions,
    },
    context::{Context, OperatorNamespace, Outcome, duration},
    output::{Format, Output, wrap},
    read::{ReadError, classify},
};

mod archive;
mod collect;
mod pods;
mod redact;

const LIMIT: usize = 50 << 20;
const LOG: usize = 1 << 20;
/// The limit for all logs, in bytes. The archive is made in memory.
const ALL_LOGS: usize = 128 << 20;
/// The number of absences of each kind that are printed.
const SHOWN: usize = 10;

/// Collect what is needed to analyse a problem into one archive, without credentials.
///
/// It contains policies, GpuNodes, Nodes, the operator's objects, Events, logs and metrics, and neither Secrets nor ConfigMaps.
/// Credentials are removed from everything else; look into the archive before you pass it on. What cannot be read is listed
/// in manifest.json, with the missing right.
#[derive(clap::Args, Debug)]
pub struct SupportBundle {
    /// Path of the archive. Defaults to gpu-fleet-support-bundle-TIME.tar.gz in the current directory.
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// Read only log lines of this last period, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    logs_since: Option<Duration>,
    /// Number of nodes of which pods, logs and metrics are read; those that need attention come first.
    #[arg(long, value_name = "N", default_value_t = 50)]
    nodes: usize,
    /// Read no logs.
    #[arg(long)]
    no_logs: bool,
    #[command(flatten)]
    namespace: OperatorNamespace,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Error)]
pub enum BundleError {
    #[error("cannot write {0}: {1}; write another path with --output-file")]
    Write(PathBuf, #[source] io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write the output: {0}")]
    Print(#[from] io::Error),
}

impl SupportBundle {
    /// Writes the archive, and prints its path, or its manifest as JSON.
    pub async fn run(&self, context: &Context) -> Result<Outcome, BundleError> {
        let version = server_version(context).await;
        if let Err(error @ (ReadError::Unreachable(_) | ReadError::Rejected(..))) = version {
            return Err(error.into());
        }
        let path = self.output_file.clone().unwrap_or_else(|| {
            PathBuf::from(format!("gpu-fleet-support-bundle-{}.tar.gz", context.now.strftime("%Y%m%dT%H%M%SZ")))
        });
        let write = |error| BundleError::Write(path.clone(), error);
        // Before anything is read: reading may take minutes.
        let mut file = fs::File::create(&path).map_err(write)?;
        let Collected { mut contents, nodes } = collect(&context.client, &self.namespace.name, self.options()).await;
        let server_version = version.map_err(|error| contents.add_unread("the server's version", &error)).ok();
        let about = About {
            collected_at: context.now,
            cli_version: env!("CARGO_PKG_VERSION"),
            server_version,
            operator_namespace: self.namespace.name.clone(),
            nodes,
        };
        let (archive, manifest) = pack(contents, &about, LIMIT).map_err(write)?;
        file.write_all(&archive).map_err(write)?;
        // If standard error is closed, the bundle has been written all the same.
        let _ = io::stderr().write_all(summary(&manifest).as_bytes());
        if self.output.format == Format::Json {
            let _ = writeln!(io::stderr(), "written: {}", path.display());
        }
        self.output.print(&manifest, |_| format!("{}\n", path.display()))?;
        Ok(Outcome::Good)
    }

    fn options(&self) -> Options {
        let since = self.logs_since.and_then(|since| i64::try_from(since.as_secs()).ok());
        let logs = LogOptions { enabled: !self.no_logs, since, limit: LOG };
        Options { nodes: self.nodes, logs, all_logs: ALL_LOGS, progress }
    }
}

/// Prints a line to standard error. If it is closed, the bundle is still written.
fn progress(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

async fn server_version(context: &Context) -> Result<String, ReadError> {
    let plural = "/version".to_owned();
    let resource = ApiResource { plural, ..ApiResource::erase::<Node>(&()) };
    let version = context.client.apiserver_version().await;
    version.map(|version| version.git_version).map_err(|error| classify("get", &resource, None, error))
}

fn summary(manifest: &Manifest) -> String {
    let mut lines = Vec::new();
    for (heading, absences) in [("not read", &manifest.not_read), ("left out because of a limit", &manifest.left_out)] {
        if !absences.is_empty() {
            lines.push(format!("{heading}: {}; manifest.json lists all", absences.len()));
        }
        for absence in absences.iter().take(SHOWN) {
            lines.extend(wrap(&format!("{}: {}", absence.what, absence.reason), "  ", 4));
        }
    }
    lines.push("look into the archive before you pass it on".to_owned());
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests;
