//! The pages that explain reasons, from the texts of `kubectl gpu-fleet explain`.

use anyhow::{Result, bail};
use gpu_operator_crd::reason::{Class, Explanation, explanations};

use super::page::Page;
use crate::file::Generated;

/// The source of the lists.
const TEXTS: &str = "crates/crd/src/reason";
/// The maximum length of a line, in columns.
const WIDTH: usize = 138;

/// The lists of reasons, by their names in the templates.
const LISTS: [(&str, &[Class]); 8] = [
    ("normal", &[Class::Normal]),
    ("in-progress", &[Class::InProgress, Class::Waiting]),
    ("excluded", &[Class::Unavailable]),
    ("warnings", &[Class::Warning]),
    ("node-conditions", &[Class::StageCondition]),
    ("policy", &[Class::Policy, Class::PolicyFailure]),
    ("failures", &[Class::Failure]),
    ("findings", &[Class::Pod]),
];

/// Returns the pages. Their templates contain `{{name}}` in place of each list.
pub(super) fn pages() -> Result<Vec<Generated>> {
    let templates = [
        ("reference", "reasons", "Phases and reasons", include_str!("reasons.md")),
        ("reference", "failures", "Failures of nodes", include_str!("failures.md")),
        ("operate", "diagnosis", "Pod diagnosis", include_str!("diagnosis.md")),
    ];
    let mut missing: Vec<&str> = LISTS.map(|(name, _)| name).to_vec();
    let mut pages = Vec::new();
    for (folder, name, title, template) in templates {
        let mut page = Page::in_folder(folder, name, &format!("{TEXTS} and e2e/generated/src/pages/{name}.md"), title);
        for block in template.trim().split("\n\n") {
            match block.strip_prefix("{{").and_then(|block| block.strip_suffix("}}")) {
                Some(list) => {
                    page.list(items(list)?);
                    missing.retain(|name| *name != list);
                }
                None => page.block(block),
            }
        }
        pages.push(page.end());
    }
    if !missing.is_empty() {
        bail!("no page contains the lists {missing:?}");
    }
    Ok(pages)
}

/// Returns the items of a list.
fn items(name: &str) -> Result<Vec<String>> {
    let Some((_, classes)) = LISTS.iter().find(|(other, _)| *other == name) else {
        bail!("there is no list {name}");
    };
    let listed = explanations().filter(|reason| classes.contains(&reason.class));
    Ok(listed.map(|reason| item(&reason)).collect())
}

fn item(reason: &Explanation) -> String {
    let Explanation { name, context, meaning, action, .. } = reason;
    let context = if context.is_empty() { String::new() } else { format!(" ({context})") };
    // The list adds two columns before the first line.
    let mut lines = wrapped(&format!("`{name}`{context}: {meaning}"), "", 2);
    if !action.is_empty() {
        lines.extend(wrapped(action, "  - ", 4));
    }
    lines.join("\n")
}

/// Returns the words of a text. Code is one word, so that commands can be copied.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut in_code = false;
    for word in text.split_whitespace() {
        match words.last_mut().filter(|_| in_code) {
            Some(code) => {
                code.push(' ');
                code.push_str(word);
            }
            None => words.push(word.to_owned()),
        }
        in_code ^= word.matches('`').count() % 2 == 1;
    }
    words
}

/// Breaks a text into lines between words, the first with a prefix and all others with an indentation.
fn wrapped(text: &str, first: &str, rest: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    // The marker of an item that has no prefix here.
    let mut width = first.chars().count().max(rest);
    for (index, word) in words(text).into_iter().enumerate() {
        let length = word.chars().count();
        if index > 0 && width + 1 + length > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(rest)));
            width = rest;
        } else if index > 0 {
            line.push(' ');
            width += 1;
        }
        line.push_str(&word);
        width += length;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_on_a_page_with_what_to_do() {
        let pages = pages().expect("pages").into_iter().map(|page| page.text).collect::<String>();
        let normal = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let joined = normal(&pages);
        let mut count = 0;
        for Explanation { name, meaning, action, .. } in explanations() {
            assert!(joined.contains(&format!("`{name}`")), "{name}");
            assert!(joined.contains(&normal(meaning)), "{name}");
            assert!(joined.contains(&normal(action)), "{name}");
            count += 1;
        }
        assert_eq!(pages.lines().filter(|line| line.starts_with("- `")).count(), count);
        assert!(pages.lines().all(|line| line.chars().count() <= WIDTH + 20), "{pages}");
    }
}
