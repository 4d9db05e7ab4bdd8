//! `kubectl gpu-fleet plan`: reports what applying a policy would do, and changes nothing. In its text, what a reader has to decide on
//! comes first.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    io,
    path::PathBuf,
};

use gpu_operator_crd::{ClusterGpuPolicy, keys};
use gpu_operator_plan::{
    catalogue::{Catalogue, CatalogueError},
    desired::images::is_fixed,
    forecast::{Forecast, Inputs, Outcome, StageChange, Update, forecast},
    image_list::digest_field,
};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde::Serialize;
use thiserror::Error;

use crate::{
    context::OperatorNamespace,
    objects::{Objects, ObjectsError},
    output::Output,
    policy_file::{self, FileError},
};

/// Reports which nodes the policies in a file would disrupt, in which order and for which pods. Exits with 0 if they would change nothing, with
/// 2 if they would change something, and with 1 on errors.
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// File with policies, as YAML or JSON; `-` reads standard input.
    #[arg(short, long, value_name = "FILE")]
    filename: String,
    /// Read the objects of the cluster from the YAML and JSON files of this folder instead of from the API server.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    #[command(flatten)]
    operator: OperatorNamespace,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Error)]
pub enum PlanError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}: a policy has no name; write metadata.name")]
    NoName(String),
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    #[error("cannot write the plan: {0}")]
    Write(#[from] io::Error),
}

impl Plan {
    pub fn needs_cluster(&self) -> bool {
        self.from.is_none()
    }

    /// Prints what the policies would do, and returns whether that is anything.
    pub async fn run(&self, client: Option<Client>) -> Result<bool, PlanError> {
        let policies = policy_file::read(&self.filename)?;
        if policies.iter().any(|policy| policy.metadata.name.as_ref().is_none_or(String::is_empty)) {
            return Err(PlanError::NoName(self.filename.clone()));
        }
        let objects = match (&self.from, client) {
            (Some(folder), _) => Objects::of_folder(folder, &self.operator.name)?,
            (None, Some(client)) => Objects::of_cluster(&client, &self.operator.name).await?,
            (None, None) => return Err(io::Error::from(io::ErrorKind::NotConnected).into()),
        };
        let report = report(&objects, &policies, Timestamp::now())?;
        self.output.print(&report, text)?;
        Ok(report.policies.iter().any(|forecast| !forecast.is_empty()))
    }
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub policies: Vec<Forecast>,
    /// What is not known, as messages.
    pub notes: Vec<String>,
}

/// Returns what these policies would do if they were applied now.
pub fn report(objects: &Objects, policies: &[ClusterGpuPolicy], now: Timestamp) -> Result<Report, CatalogueError> {
    let catalogue = Catalogue::builtin()?;
    let (settings, note) = objects.settings();
    let (world, budgets) = (objects.world(), &objects.budgets);
    let inputs = Inputs { settings: &settings, catalogue: &catalogue, world: &world, budgets, now };
    let notes = objects.notes.iter().cloned().chain(note).collect();
    Ok(Report { policies: forecast(inputs, policies), notes })
}

fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    for forecast in &report.policies {
        policy(forecast, &mut lines);
        lines.push(String::new());
    }
    lines.extend(report.notes.iter().map(|note| format!("Note: {note}.")));
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.join("\n") + "\n"
}

fn policy(forecast: &Forecast, lines: &mut Vec<String>) {
    let Forecast { policy, nodes, updates, waiting, leaving, excluded, changes, problems } = forecast;
    if forecast.is_empty() {
        lines.push(format!("Policy {policy} changes nothing on its {}.", count(*nodes, "node")));
    } else {
        let waves = updates.iter().filter_map(|update| update.wave).max().unwrap_or_default();
        let blocked = updates.iter().filter(|update| update.blocked_by.is_some()).count();
        let in_turn = updates.iter().filter(|update| update.wave.is_some()).count();
        let mut line = format!("Policy {policy} governs {}", count(*nodes, "node"));
        let _ = write!(line, ": {in_turn} updated in {}", count(waves as usize, "wave"));
        for (number, what) in [
            (updates.len() - in_turn, "installed at once"),
            (blocked, "of the updates blocked"),
            (waiting.len(), "not updated"),
            (leaving.len(), "given up"),
        ] {
            if number > 0 {
                let _ = write!(line, ", {number} {what}");
            }
        }
        lines.push(line + ".");
    }
    let section = |title: &str, body: Vec<String>, lines: &mut Vec<String>| {
        if !body.is_empty() {
            lines.push(String::new());
            lines.push(title.to_owned());
            lines.extend(body.into_iter().map(|line| format!("  {line}")));
        }
    };
    let problem =
        problems.iter().map(|problem| format!("{}, {}: {}", problem.condition, problem.reason, problem.message));
    section("Conditions of the policy:", problem.collect(), lines);
    section("What updates change:", stages(updates).into_iter().chain(by_tag(updates)).collect(), lines);
    let mut waves: BTreeMap<Option<u32>, Vec<&Update>> = BTreeMap::new();
    for update in updates {
        waves.entry(update.wave).or_default().push(update);
    }
    for (wave, updates) in waves {
        let title = match wave {
            None => "At once, because these nodes have no GPU to lose:".to_owned(),
            Some(wave) => {
                let not_before = updates.iter().filter_map(|update| update.not_before).min();
                let from = not_before.map(|time| format!(", not before {time}")).unwrap_or_default();
                format!("Wave {wave}{from}:")
            }
        };
        section(&title, updates.into_iter().map(update).collect(), lines);
    }
    let waits = waiting.iter().map(|waiting| format!("{}: {}: {}", waiting.node, waiting.reason, waiting.message));
    section("Not updated:", waits.collect(), lines);
    let names = leaving.iter().map(ToString::to_string).collect();
    section("Given up, which lose their GPU stack once no pod uses their GPUs:", names, lines);
    let names = excluded.iter().map(ToString::to_string).collect();
    section(&format!("Selected, but excluded by their label {}:", keys::MANAGED), names, lines);
    section("Without disruption:", changes.clone(), lines);
}

/// Returns what becomes of the stages of nodes, and on how many.
fn stages(updates: &[Update]) -> Vec<String> {
    let mut known: BTreeMap<&StageChange, usize> = BTreeMap::new();
    for change in updates.iter().flat_map(|update| &update.stages) {
        *known.entry(change).or_default() += 1;
    }
    let line = |(change, nodes): (&StageChange, usize)| {
        let StageChange { stage, from, to } = change;
        let what = match (from, to) {
            (Some(from), Some(to)) if from == to => format!("other settings of {to}"),
            (Some(from), Some(to)) => format!("{from} -> {to}"),
            (None, Some(to)) => format!("new: {to}"),
            (Some(from), None) => format!("removed: {from}"),
            (None, None) => "changed".to_owned(),
        };
        format!("{}: {what} ({})", stage.as_str(), count(nodes, "node"))
    };
    known.into_iter().map(line).collect()
}

/// Returns the line about images that their registry can replace, because they have no digest.
fn by_tag(updates: &[Update]) -> Option<String> {
    let is_by_tag = |change: &&StageChange| change.to.as_ref().is_some_and(|image| !is_fixed(image));
    let fields: BTreeSet<&str> = updates
        .iter()
        .flat_map(|update| &update.stages)
        .filter(is_by_tag)
        .map(|change| digest_field(change.stage, change.to.as_deref().unwrap_or_default()))
        .collect();
    let fields = fields.into_iter().collect::<Vec<_>>().join(", ");
    (!fields.is_empty()).then(|| format!("a registry can replace images that have no digest; write it to {fields}"))
}

fn update(update: &Update) -> String {
    let Update { node, cordon, cordoned, underway, pods, blocked_by, .. } = update;
    let mut parts = Vec::new();
    if *underway {
        parts.push("already begun".to_owned());
    }
    if let Some(why) = blocked_by {
        parts.push(format!("BLOCKED by {why}"));
    }
    for (outcome, words) in [(Outcome::Evicted, "evicts"), (Outcome::Awaited, "waits for the end of")] {
        let names: Vec<_> = pods.iter().filter(|pod| pod.outcome == outcome).map(|pod| pod.pod.as_str()).collect();
        if !names.is_empty() {
            parts.push(format!("{words} {}", names.join(", ")));
        }
    }
    if *cordoned {
        parts.push("stays cordoned, because another user has cordoned it".to_owned());
    } else if *cordon {
        parts.push("is cordoned meanwhile".to_owned());
    }
    if parts.is_empty() {
        parts.push("disrupts no pod".to_owned());
    }
    format!("{node}: {}", parts.join("; "))
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{gpunode::DisruptionScope, policy::Stage, reason::Reason};
    use gpu_operator_plan::forecast::{PodOutcome, Problem, Waiting};

    use super::*;

    fn update_of(node: &str, wave: Option<u32>) -> Update {
        let change = |stage, from: &str, to: &str| StageChange { stage, from: Some(from.into()), to: Some(to.into()) };
        Update {
            node: node.into(),
            pool: "p".into(),
            wave,
            not_before: None,
            underway: false,
            scope: DisruptionScope::GpuPods,
            stages: vec![
                change(Stage::Driver, "driver:1", "driver:2"),
                change(Stage::Toolkit, "toolkit:1", "toolkit:1"),
            ],
            cordon: true,
            cordoned: false,
            pods: vec![],
            blocked_by: None,
        }
    }

    fn pod(name: &str, outcome: Outcome) -> PodOutcome {
        PodOutcome { pod: name.into(), outcome, message: String::new() }
    }

    fn empty() -> Forecast {
        Forecast {
            policy: "all".into(),
            nodes: 1,
            updates: vec![],
            waiting: vec![],
            leaving: vec![],
            excluded: vec![],
            changes: vec![],
            problems: vec![],
        }
    }

    #[test]
    fn images_with_a_digest_need_no_other() {
        let change = |stage, to: &str| StageChange { stage, from: Some("driver:1".into()), to: Some(to.into()) };
        let update = |stages| [Update { stages, ..update_of("a", None) }];
        let fixed = vec![
            change(Stage::Driver, "cos-nvidia-installer:fixed"),
            change(Stage::Toolkit, "toolkit@sha256:ab"),
            StageChange { stage: Stage::Mps, from: Some("plugin:1".into()), to: None },
        ];
        assert_eq!(by_tag(&update(fixed.clone())), None);
        let plugin = [change(Stage::DevicePlugin, "plugin:1"), change(Stage::Mps, "plugin:1")];
        let line = by_tag(&update([&fixed[..], &plugin].concat())).unwrap();
        assert!(line.ends_with("write it to devicePlugin.image.digest"), "{line}");
    }

    #[test]
    fn every_part_has_its_lines() {
        let pods = vec![pod("t/a", Outcome::Evicted), pod("t/b", Outcome::Evicted), pod("t/c", Outcome::Awaited)];
        let new = vec![StageChange { stage: Stage::Driver, from: None, to: Some("driver:2".into()) }];
        let not_before = "2026-01-02T00:00:00Z".parse().ok();
        let updates = vec![
            Update { pods, ..update_of("a", Some(1)) },
            Update { underway: true, cordon: false, cordoned: true, ..update_of("b", Some(1)) },
            Update { not_before, blocked_by: Some("pod t/d: why".into()), ..update_of("c", Some(2)) },
            Update { cordon: false, stages: new, ..update_of("d", None) },
        ];
        let (node, pool, message) = ("e".into(), "p".into(), "update pending".into());
        let waiting = vec![Waiting { node, pool, reason: Reason::RolloutPending, message, pods: vec![] }];
        let (condition, reason, message) = ("Stalled".into(), "RolloutHalted".into(), "words".into());
        let forecast = Forecast {
            nodes: 6,
            updates,
            waiting,
            leaving: vec!["f".into()],
            excluded: vec!["g".into()],
            changes: vec!["label a=b on 2 nodes".into()],
            problems: vec![Problem { condition, reason, message }],
            ..empty()
        };
        let text = text(&Report { policies: vec![forecast, empty()], notes: vec!["no operator found".into()] });
        let expected = "\
Policy all governs 6 nodes: 3 updated in 2 waves, 1 installed at once, 1 of the updates blocked, 1 not updated, 1 given up.

Conditions of the policy:
  Stalled, RolloutHalted: words

What updates change:
  driver: new: driver:2 (1 node)
  driver: driver:1 -> driver:2 (3 nodes)
  toolkit: other settings of toolkit:1 (3 nodes)
  a registry can replace images that have no digest; write it to driver.image.digest, toolkit.image.digest

At once, because these nodes have no GPU to lose:
  d: disrupts no pod

Wave 1:
  a: evicts t/a, t/b; waits for the end of t/c; is cordoned meanwhile
  b: already begun; stays cordoned, because another user has cordoned it

Wave 2, not before 2026-01-02T00:00:00Z:
  c: BLOCKED by pod t/d: why; is cordoned meanwhile

Not updated:
  e: RolloutPending: update pending

Given up, which lose their GPU stack once no pod uses their GPUs:
  f

Selected, but excluded by their label gpu.nodestack.dev/managed:
  g

Without disruption:
  label a=b on 2 nodes

Policy all changes nothing on its 1 node.

Note: no operator found.
";
        assert_eq!(text, expected);
    }
}
