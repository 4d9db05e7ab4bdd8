//! The explanation of a reason.

use gpu_operator_crd::reason::{Class, Explanation, explanations};

use crate::report::{Line, Look, Report};

/// The number of similar names in an error.
const NAMES: usize = 3;

/// Returns the explanation of a reason by its name, in upper or lower case.
pub fn named(name: &str) -> Result<Explanation, String> {
    explanations().find(|known| known.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let wanted = name.to_ascii_lowercase();
        let likeness = |known: &str| strsim::jaro_winkler(&wanted, &known.to_ascii_lowercase());
        let mut similar: Vec<&'static str> = explanations().map(|known| known.name).collect();
        similar.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
        similar.truncate(NAMES);
        format!("there is no such reason; similar ones are {}", similar.join(", "))
    })
}

/// Returns what a reason of a class is, and the title of the page of the documentation that lists it. Where the documentation is, the
/// program does not know.
fn kind(class: Class) -> (&'static str, &'static str) {
    const REASONS: &str = "Phases and reasons";
    match class {
        Class::Normal => ("a normal reason of a node", REASONS),
        Class::InProgress | Class::Waiting => ("a reason of a node in progress", REASONS),
        Class::Unavailable => ("a reason of an excluded node", REASONS),
        Class::Warning => ("a warning about a node", REASONS),
        Class::StageCondition => ("a reason of a GpuNode's condition", REASONS),
        Class::Policy | Class::PolicyFailure => ("a reason of a policy or a pool", REASONS),
        Class::Failure => ("a failure of a node", "Failures of nodes"),
        Class::Pod => ("a finding about a pod", "Pod diagnosis"),
    }
}

pub fn report(reason: &Explanation) -> Report {
    let Explanation { name, class, context, meaning, action } = *reason;
    let (kind, page) = kind(class);
    let kind = if context.is_empty() { kind.to_owned() } else { format!("{kind} ({context})") };
    let title = Line { cells: vec![kind], look: Look::Title, ..Line::named(name, "") };
    let title = title.with(vec![Line::text(plain(meaning))]);
    let action = if action.is_empty() { "Nothing.".to_owned() } else { plain(action) };
    let sections = vec![vec![title], vec![Line::label("Do", action), Line::label("See", page)]];
    Report { is_good: true, sections }
}

/// Returns a text with its links replaced by their texts. A bracket that begins no link, such as that of a list in YAML, is part of the text.
pub fn plain(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, link, after)) = split_at_link(rest) {
        plain += before;
        plain += link;
        rest = after;
    }
    plain + rest
}

/// Returns the text before the first link, the text of the link, and what follows the link.
fn split_at_link(text: &str) -> Option<(&str, &str, &str)> {
    text.match_indices("](").find_map(|(middle, between)| {
        let start = text[..middle].rfind('[')?;
        let target = middle + between.len();
        let end = target + text[target..].find(')')?;
        Some((&text[..start], &text[start + 1..middle], &text[end + 1..]))
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::testing::{SCREEN, assert_narrow};

    fn print(name: &str) -> String {
        report(&named(name).expect("a reason")).text(SCREEN, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn every_reason_is_explained_in_short_lines_without_links() {
        for reason in explanations() {
            let text = print(reason.name);
            assert!(!text.contains("]("), "{text}");
            assert!(text.lines().count() >= 4 && text.contains("\nDo: ") && text.contains("\nSee: "), "{text}");
            // Who has the program need not have a checkout.
            assert!(!text.contains("docs/") && !text.contains(".md"), "{text}");
            assert_narrow(&text);
        }
    }

    #[test]
    fn a_reason_has_its_kind_meaning_action_and_page() {
        insta::assert_snapshot!(print("PolicyOverlap"));
        insta::assert_snapshot!(print("DriverInUse"));
        insta::assert_snapshot!(print("CudaTooNew"));
    }

    #[test]
    fn an_unknown_reason_is_answered_with_similar_names() {
        assert_eq!(named("driverinuse").map(|reason| reason.name), Ok("DriverInUse"));
        let error = named("DriverUsed").expect_err("an error");
        assert!(error.contains("DriverInUse"), "{error}");
    }

    #[test]
    fn links_become_their_texts() {
        for (text, shown) in [
            ("Set `layout: []`, see [here](#there) ([b](reasons.md#c)).", "Set `layout: []`, see here (b)."),
            ("[Drivers](../guides/drivers.md) and [again](../guides/drivers.md)", "Drivers and again"),
            ("a]( and [b]", "a]( and [b]"),
        ] {
            assert_eq!(plain(text), shown);
        }
    }
}
