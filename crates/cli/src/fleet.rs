//! `kubectl gpu-fleet`: the command line of the kubectl plugin, and its completion.
//!
//! kubectl asks a plugin for completions by the program `kubectl_complete-gpu_fleet`, with the words so far. It reads one
//! candidate per line and a last line with a directive.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use k8s_openapi::jiff::Timestamp;
use thiserror::Error;

use crate::{
    bundle::{BundleError, SupportBundle},
    check::{CheckError, RunChecks},
    context::{COMMAND, Connection, ConnectionError, Context, Outcome},
    explain::{Explain, ExplainError},
    images::{Images, ImagesError},
    output::Screen,
    plan::{Plan, PlanError},
    rollout::{Rollout, RolloutError},
    status::{Status, StatusError},
};

/// kubectl finds it on the PATH.
const PROGRAM: &str = "kubectl-gpu_fleet";

/// Shows and explains the state of a fleet of GPU nodes.
#[derive(Debug, Parser)]
#[command(name = COMMAND, bin_name = COMMAND, version, max_term_width = 80)]
pub struct Fleet {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what is ready, what is not, since when and what to do.
    Status(Status),
    Explain(Explain),
    /// Report which nodes the policies in a file would disrupt, in which order and for which pods; changes nothing.
    Plan(Plan),
    /// List the images that the nodes of policies may pull, one per line; needs no cluster.
    Images(Images),
    /// Check whether the installation works or, with --pre, whether the cluster is ready for it.
    Check(RunChecks),
    /// Attempt failed updates of a policy again, or pause and resume its rollout.
    Rollout(Rollout),
    SupportBundle(SupportBundle),
    /// Print a script that completes this command: `kubectl`, as the program kubectl_complete-gpu_fleet on the PATH, or for a shell and the
    /// name kubectl-gpu_fleet.
    Completion {
        /// What asks for completion.
        #[arg(value_enum)]
        of: Completed,
    },
    /// Print what may follow some words, for kubectl.
    #[command(hide = true)]
    Complete {
        /// The words, of which the last one may be incomplete.
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
}

/// What asks for completion.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Completed {
    /// kubectl.
    Kubectl,
    /// The shell bash.
    Bash,
    /// The shell fish.
    Fish,
    /// PowerShell.
    Powershell,
    /// The shell zsh.
    Zsh,
}

/// A reason why a command cannot do what it should.
#[derive(Debug, Error)]
pub enum FleetError {
    /// There is no connection to a cluster.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Status(#[from] StatusError),
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Images(#[from] ImagesError),
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

impl Fleet {
    pub async fn run(self) -> Result<ExitCode, FleetError> {
        let outcome = match &self.command {
            Command::Status(status) => status.run(&self.context(status.follows()).await?).await?,
            Command::Images(images) => {
                images.run()?;
                Outcome::Good
            }
            Command::Explain(explain) => match explain.without_cluster(Screen::of_stdout())? {
                Some(outcome) => outcome,
                None => explain.run(&self.context(false).await?).await?,
            },
            Command::Completion { of } => {
                let shell = match of {
                    Completed::Kubectl => None,
                    Completed::Bash => Some(Shell::Bash),
                    Completed::Fish => Some(Shell::Fish),
                    Completed::Powershell => Some(Shell::PowerShell),
                    Completed::Zsh => Some(Shell::Zsh),
                };
                let mut script = Vec::from(SCRIPT);
                if let Some(shell) = shell {
                    script.clear();
                    clap_complete::generate(shell, &mut Self::command(), PROGRAM, &mut script);
                }
                io::stdout().write_all(&script)?;
                Outcome::Good
            }
            Command::Complete { words } => {
                io::stdout().write_all(completion(&Self::command(), words).as_bytes())?;
                Outcome::Good
            }
            Command::Check(check) => check.run(&self.context(false).await?).await?,
            Command::Rollout(rollout) => rollout.run(&self.context(false).await?).await?,
            Command::SupportBundle(bundle) => bundle.run(&self.context(false).await?).await?,
            Command::Plan(plan) => {
                let client = if plan.needs_cluster() { Some(self.context(false).await?.client) } else { None };
                if plan.run(client).await? { Outcome::Changes } else { Outcome::Good }
            }
        };
        Ok(ExitCode::from(outcome.code()))
    }

    async fn context(&self, for_watches: bool) -> Result<Context, FleetError> {
        let (client, namespace) = self.connection.client(for_watches).await?;
        Ok(Context { client, namespace, screen: Screen::of_stdout(), now: Timestamp::now() })
    }
}

/// What `kubectl_complete-gpu_fleet` has to contain.
const SCRIPT: &str = "#!/bin/sh\nexec kubectl-gpu_fleet complete -- \"$@\"\n";

/// The directive of cobra, kubectl's library, against a completion by file names.
const NO_FILES: &str = ":4";

/// Returns the answer to kubectl: the subcommands, flags and values that may follow the words before the last one and begin as it does. If
/// there are none, the shell completes file names.
fn completion(command: &clap::Command, words: &[String]) -> String {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let candidates = candidates(command, before, last);
    if candidates.is_empty() {
        return ":0\n".to_owned();
    }
    candidates.iter().fold(String::new(), |text, candidate| text + candidate + "\n") + NO_FILES + "\n"
}

fn candidates(root: &clap::Command, before: &[String], last: &str) -> Vec<String> {
    let mut command = root;
    for word in before {
        if let Some(subcommand) = command.find_subcommand(word) {
            command = subcommand;
        }
    }
    // A flag that takes a value is followed by one.
    let flag = before.last().and_then(|flag| flag.strip_prefix("--"));
    let mut arguments = command.get_arguments().chain(root.get_arguments().filter(|argument| argument.is_global_set()));
    let awaited = flag.and_then(|flag| arguments.find(|argument| argument.get_long() == Some(flag)));
    let awaited = awaited.filter(|argument| argument.get_action().takes_values());
    let all: Vec<String> = if let Some(argument) = awaited {
        argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect()
    } else if last.starts_with('-') {
        let flags = command.get_arguments().chain(root.get_arguments().filter(|argument| argument.is_global_set()));
        flags
            .filter(|argument| !argument.is_hide_set())
            .filter_map(|flag| Some(format!("--{}", flag.get_long()?)))
            .collect()
    } else {
        let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
        let values = command.get_positionals().flat_map(clap::Arg::get_possible_values);
        let values = values.map(|value| value.get_name().to_owned());
        subcommands.map(|command| command.get_name().to_owned()).chain(values).collect()
    };
    let mut fitting: Vec<_> = all.into_iter().filter(|candidate| candidate.starts_with(last)).collect();
    fitting.sort();
    fitting.dedup();
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Fleet::command().debug_assert();
    }

    /// Returns a command and all commands below it.
    fn all(command: &clap::Command) -> Vec<&clap::Command> {
        let below = command.get_subcommands().flat_map(all);
        std::iter::once(command).chain(below).collect()
    }

    #[test]
    fn only_flags_decide_where_the_operator_is() {
        let root = Fleet::command();
        let arguments = all(&root).into_iter().flat_map(clap::Command::get_arguments);
        let by_environment: Vec<_> = arguments.filter(|argument| argument.get_env().is_some()).collect();
        assert!(by_environment.is_empty(), "{by_environment:?}");
    }

    #[test]
    fn help_names_no_file_of_a_checkout() {
        let mut root = Fleet::command();
        root.build();
        for command in all(&root) {
            let help = command.clone().render_long_help().to_string();
            assert!(!help.contains("docs/") && !help.contains(".md"), "{help}");
        }
    }

    #[test]
    fn subcommands_flags_and_values_are_completed() {
        let complete = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            completion(&Fleet::command(), &words)
        };
        assert_eq!(complete(&["sta"]), "status\n:4\n");
        assert!(complete(&[""]).contains("plan\n") && !complete(&[""]).contains("complete\n"));
        assert_eq!(complete(&["status", "--wat"]), "--watch\n:4\n");
        assert_eq!(complete(&["status", "--conte"]), "--context\n:4\n");
        assert_eq!(complete(&["status", "--output", ""]), "json\ntext\n:4\n");
        assert_eq!(complete(&["completion", "ba"]), "bash\n:4\n");
        // A file.
        assert_eq!(complete(&["plan", "--filename", ""]), ":0\n");
        assert_eq!(complete(&["unknown", "x"]), ":0\n");
    }
}
