//! `support-bundle`: collects what is needed to analyse a problem into one archive that contains no credentials.

use std::{
    collections::BTreeSet,
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
        archive::{Archive, Manifest},
        collect::{Collector, Options},
    },
    context::{Context, OperatorNamespace, Outcome, duration},
    output::{Format, Output, wrap},
    read::{ReadError, classify},
};

mod allowed;
mod archive;
mod collect;

/// The number of absences that are printed.
const SHOWN: usize = 10;

/// Collect what is needed to analyse a problem into one archive, without credentials.
///
/// It contains policies, GpuNodes, chosen fields of Nodes and of the operator's DaemonSets and pods, Events, and the logs of the operator's
/// own containers. It contains no values of variables, arguments or URLs, and no logs or messages of other programs. What cannot be read is
/// listed in manifest.json, with the missing right.
#[derive(clap::Args, Debug)]
pub struct SupportBundle {
    /// Path of the archive. Defaults to gpu-fleet-support-bundle-TIME.tar.gz in the current directory.
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// Read only log lines of this last period, such as 2h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    logs_since: Option<Duration>,
    /// Number of nodes of which logs are read; those that are not ready come first.
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
        let archive = Archive::new(fs::File::create(&path).map_err(write)?, context.now);
        let (client, namespace) = (&context.client, self.namespace.name.as_str());
        let mut collector = Collector { client, namespace, archive, missing: BTreeSet::new(), progress };
        let nodes_with_logs = collector.collect(self.options()).await.map_err(write)?;
        let manifest = Manifest {
            collected_at: context.now,
            cli_version: env!("CARGO_PKG_VERSION"),
            server_version: version.ok(),
            operator_namespace: self.namespace.name.clone(),
            nodes_with_logs,
            missing: collector.missing,
        };
        collector.archive.finish(&manifest).map_err(write)?;
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
        Options { nodes: (!self.no_logs).then_some(self.nodes), since }
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
    let missing = &manifest.missing;
    if missing.is_empty() {
        return String::new();
    }
    let mut lines = vec![format!("missing: {}; manifest.json lists all", missing.len())];
    for absence in missing.iter().take(SHOWN) {
        lines.extend(wrap(&format!("{}: {}", absence.what, absence.reason), "  ", 4));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests;
