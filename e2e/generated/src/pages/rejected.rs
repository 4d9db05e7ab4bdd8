//! Invalid policies, with their messages and corrections, from the list that the tests verify.

use test_support::rejected::{REJECTED, Rejection, Report};

use super::page::{Page, code};
use crate::file::Generated;

const SOURCE: &str = "crates/test-support/data/rejected.yaml";

/// The text of the overview that precedes the reported policies.
const OVERVIEW: &str = include_str!("rejected.md");

/// Values by key, in the order in which they were added.
type Entries<V> = Vec<(String, V)>;

pub(super) fn pages() -> Vec<Generated> {
    let mut overview = Page::new("rejected", SOURCE, "Invalid policies");
    overview.block(OVERVIEW.trim());
    overview.list(REJECTED.reported.iter().map(reported));
    overview.block(
        "Errors that only the API server detects later, such as a missing priority class, a quota or an admission policy, are reported as\n\
         `PodsForbidden` or `ApplyFailed` with the API server's own message: see [reasons.md](reasons.md).",
    );
    let of_defaults = |row: &&Rejection| row.at.starts_with("spec.defaults");
    let (defaults, others): (Vec<_>, Vec<_>) = REJECTED.by_rule.iter().partition(of_defaults);
    let rules = "Rejected on apply because of a rule; [rejected.md](rejected.md) describes how. Each entry is a message, with the field that it \
                 names, and below it\nwhat is invalid and valid. The messages of other fields are on ";
    vec![
        overview.end(),
        rejections(
            "rejected-by-rule",
            "Invalid settings of a policy",
            &format!("{rules}[another page](rejected-defaults.md)."),
            &others,
        ),
        rejections(
            "rejected-defaults",
            "Invalid settings of driver, toolkit and device plugin",
            &format!(
                "{rules}[another page](rejected-by-rule.md). In a pool, `spec.pools[…]` replaces `spec.defaults`."
            ),
            &defaults,
        ),
        rejections(
            "rejected-by-type",
            "Invalid types, bounds and names",
            "Rejected on apply with the API server's own messages, which contain the field and the expected value; [rejected.md](rejected.md)\n\
             describes how. While an object has such an error, the API server does not evaluate all [rules](rejected-by-rule.md); they follow\n\
             once it is corrected.",
            &REJECTED.by_type.iter().collect::<Vec<_>>(),
        ),
    ]
}

/// Returns a page of policies that the API server rejects, by the part of the policy.
fn rejections(name: &'static str, title: &str, text: &str, rows: &[&Rejection]) -> Generated {
    let mut page = Page::new(name, SOURCE, title);
    page.block(text);
    let mut parts: Entries<Entries<Vec<String>>> = Vec::new();
    for row in rows {
        let head = format!("`{}` at `{}`", row.message, row.at);
        let items = entry(&mut parts, part(&row.at));
        // Several policies may have the same message.
        entry(items, head).extend(pair(&row.written, Some(&row.write), row.note.as_deref()));
    }
    for (part, items) in parts {
        page.heading(2, &code(&part));
        page.list(items.into_iter().map(|(head, lines)| format!("{head}\n{}", lines.join("\n"))));
    }
    page.end()
}

/// Returns the part of a policy to which a field belongs: `spec.pools`, `spec.defaults.driver`.
fn part(at: &str) -> String {
    let names = at.split(['.', '[']).filter(|name| !name.ends_with(']'));
    names.take(if at.starts_with("spec.defaults.") { 3 } else { 2 }).collect::<Vec<_>>().join(".")
}

/// Returns the value of a key, which is added at the end if it is missing.
fn entry<V: Default>(list: &mut Entries<V>, key: String) -> &mut V {
    let index = list.iter().position(|(other, _)| *other == key).unwrap_or(list.len());
    if index == list.len() {
        list.push((key, V::default()));
    }
    &mut list[index].1
}

/// Returns a policy that the operator reports.
fn reported(row: &Report) -> String {
    let place = match (&row.pool, &row.node) {
        (Some(pool), _) => format!("pool `{pool}`"),
        (None, Some(node)) => format!("node `{node}`"),
        (None, None) => "condition `Ready` of a second policy, beside an older one that selects every node".to_owned(),
    };
    let lines = pair(&row.written, row.write.as_deref(), row.note.as_deref());
    format!("`{}`, `{}`, {place}\n{}", row.message, row.reason, lines.join("\n"))
}

/// Returns an invalid policy and its correction.
fn pair(written: &str, write: Option<&str>, note: Option<&str>) -> Vec<String> {
    let correction = match (write, note) {
        (Some(write), Some(note)) => format!("Valid: `{write}` ({note})"),
        (Some(write), None) => format!("Valid: `{write}`"),
        (None, note) => format!("Write: {}", note.unwrap_or_default()),
    };
    vec![format!("  - Invalid: `{written}`"), format!("  - {correction}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_its_message_and_its_correction_are_on_a_page() {
        let pages = pages().into_iter().map(|page| page.text).collect::<String>();
        let rejected = REJECTED.by_rule.iter().chain(&REJECTED.by_type);
        let rejected = rejected.map(|row| (&row.written, &row.message, Some(&row.write), &row.note));
        let reported = REJECTED.reported.iter().map(|row| (&row.written, &row.message, row.write.as_ref(), &row.note));
        for (written, message, write, note) in rejected.chain(reported) {
            assert!(pages.contains(&format!("\n  - Invalid: `{written}`\n")), "{written}");
            assert!(pages.contains(&format!("\n- `{message}`")), "{message}");
            assert!(write.is_none_or(|write| pages.contains(&format!("\n  - Valid: `{write}`"))), "{write:?}");
            assert!(note.as_ref().is_none_or(|note| pages.contains(note)), "{note:?}");
        }
    }

    #[test]
    fn a_field_belongs_to_a_part() {
        for (at, expected) in [
            ("spec.defaults", "spec.defaults"),
            ("spec.defaults.driver.configMaps.repositories.keys[0]", "spec.defaults.driver"),
            ("spec.pools[0].nodeLabels[0].key", "spec.pools"),
            ("spec.nodeSelector.matchLabels[zone]", "spec.nodeSelector"),
            ("spec.defaults.tolerations[0]", "spec.defaults.tolerations"),
        ] {
            assert_eq!(part(at), expected, "{at}");
        }
    }
}
