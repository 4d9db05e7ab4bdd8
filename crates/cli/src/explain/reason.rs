//! The explanation of a reason.

use serde::Serialize;

use super::reasons::{Topic, plain};
use crate::screen::{Screen, Tone, wrap};

/// The explanation of a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonReport {
    pub reason: &'static str,
    /// What it means: one entry for each kind of objects that have it.
    pub meanings: Vec<Meaning>,
}

/// What a reason means for one kind of objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Meaning {
    /// What the reason is, such as `a failure of a node`.
    pub kind: &'static str,
    /// The conditions that have it, or the type of its Event.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub context: &'static str,
    pub text: String,
    /// What to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// The title of the page of the documentation that lists it.
    pub page: &'static str,
}

/// Returns the explanation of a reason.
pub fn report(topic: Topic) -> ReasonReport {
    let meanings = topic.entries().iter().map(|entry| Meaning {
        kind: entry.list.title(),
        context: topic.context(entry),
        text: plain(entry.meaning),
        action: plain(entry.action),
        page: entry.list.page(),
    });
    ReasonReport { reason: topic.name(), meanings: meanings.collect() }
}

/// Returns an explanation as text.
pub fn text(report: &ReasonReport, screen: Screen) -> String {
    let mut lines = Vec::new();
    for Meaning { kind, context, text, action, page } in &report.meanings {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let context = if context.is_empty() { String::new() } else { format!(" ({context})") };
        let title = screen.paint(Tone::Strong, report.reason);
        lines.extend(wrap(&format!("{title}: {kind}{context}"), "", 2));
        lines.extend(wrap(text, "  ", 2));
        lines.push(String::new());
        let action = if action.is_empty() { "Nothing." } else { action };
        lines.extend(wrap(action, "Do: ", 4));
        lines.push(format!("See: {page}"));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::Reason;
    use gpu_operator_diagnose::Mistake;

    use super::*;
    use crate::screen::{WIDTH, columns};

    #[test]
    fn every_reason_is_explained_in_short_lines_without_links() {
        for topic in Topic::all() {
            let text = text(&report(topic), Screen::default());
            assert!(!text.contains("]("), "{text}");
            assert!(text.lines().count() >= 4 && text.contains("\nDo: ") && text.contains("\nSee: "), "{text}");
            // Who has the program need not have a checkout.
            assert!(!text.contains("docs/") && !text.contains(".md"), "{text}");
            let long = |line: &&str| columns(line) > WIDTH && line.trim_start().contains(' ');
            assert_eq!(text.lines().find(long), None, "{text}");
        }
    }

    #[test]
    fn a_reason_of_nodes_and_policies_has_both_meanings() {
        let print = |topic| text(&report(topic), Screen::default());
        insta::assert_snapshot!(print(Topic::Status(Reason::PolicyOverlap)));
        insta::assert_snapshot!(print(Topic::Status(Reason::DriverInUse)));
        insta::assert_snapshot!(print(Topic::Pod(Mistake::CudaTooNew)));
    }
}
