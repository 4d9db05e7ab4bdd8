//! Completion of the command line, as kubectl asks plugins for it: it runs the program `kubectl_complete-gpu_fleet` with the words so far,
//! and reads one candidate per line and a last line with a directive.

use clap::Command;

/// What `kubectl_complete-gpu_fleet` has to contain.
pub const SCRIPT: &str = "#!/bin/sh\nexec kubectl-gpu_fleet complete -- \"$@\"\n";

/// The directive of cobra, kubectl's library, against a completion by file names.
const NO_FILES: &str = ":4";

/// Returns the answer to kubectl: the subcommands, flags and values that may follow the words before the last one and begin as it does. If
/// there are none, the shell completes file names.
pub fn answer(command: &Command, words: &[String]) -> String {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let candidates = candidates(command, before, last);
    if candidates.is_empty() {
        return ":0\n".to_owned();
    }
    candidates.iter().fold(String::new(), |text, candidate| text + candidate + "\n") + NO_FILES + "\n"
}

fn candidates(root: &Command, before: &[String], last: &str) -> Vec<String> {
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
    use clap::CommandFactory;

    use super::*;
    use crate::fleet::Fleet;

    #[test]
    fn subcommands_flags_and_values_are_completed() {
        let complete = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            answer(&Fleet::command(), &words)
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
