//! What is explained about a reason.

/// The explanation of a reason in one of the lists of the reference.
///
/// The texts may contain code in backticks and Markdown links, which are relative to the page of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The list that contains it.
    pub list: List,
    /// The condition that has the reason, such as `Ready=False`, or another context. Empty for a reason of nodes.
    pub condition: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What to do. Empty if nothing has to be done.
    pub action: &'static str,
}

/// A list of reasons in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Reasons of nodes without a problem.
    Normal,
    /// Reasons of nodes in progress.
    InProgress,
    /// Reasons of nodes that are not counted.
    Excluded,
    /// Warnings about nodes that are ready.
    Warning,
    /// Reasons that only the conditions of a GpuNode have.
    NodeCondition,
    /// Reasons of policies and pools, and of Events.
    Policy,
    /// Failures of nodes.
    Failure,
    /// Findings about pods.
    Pod,
}

impl List {
    /// Returns what the reasons of the list are, for a heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Normal => "a normal reason of a node",
            Self::InProgress => "a reason of a node in progress",
            Self::Excluded => "a reason of an excluded node",
            Self::Warning => "a warning about a node",
            Self::NodeCondition => "a reason of a GpuNode's condition",
            Self::Policy => "a reason of a policy or a pool",
            Self::Failure => "a failure of a node",
            Self::Pod => "a finding about a pod",
        }
    }

    /// Returns the page of the documentation that contains the list, with the anchor of the list.
    #[must_use]
    pub fn page(self) -> &'static str {
        match self {
            Self::Normal => "docs/reference/reasons.md#normal",
            Self::InProgress => "docs/reference/reasons.md#in-progress",
            Self::Excluded => "docs/reference/reasons.md#excluded-nodes",
            Self::Warning => "docs/reference/reasons.md#warnings",
            Self::NodeCondition => "docs/reference/reasons.md#only-in-the-conditions-of-a-gpunode",
            Self::Policy => "docs/reference/reasons.md#reasons-of-a-policy-or-a-pool",
            Self::Failure => "docs/reference/failures.md#failures-of-nodes",
            Self::Pod => "docs/operate/diagnosis.md#reasons",
        }
    }
}

impl Entry {
    /// Returns the pages that its texts link to, and then the page of its list.
    #[must_use]
    pub fn pages(&self) -> Vec<String> {
        let targets = parts(self.meaning).chain(parts(self.action)).filter_map(|part| part.target);
        let mut pages = Vec::new();
        for page in targets.map(|target| resolved(self.list.page(), target)).chain([self.list.page().to_owned()]) {
            if !pages.contains(&page) {
                pages.push(page);
            }
        }
        pages
    }
}

/// Returns a text with its links replaced by their texts.
#[must_use]
pub fn plain(text: &str) -> String {
    parts(text).map(|part| part.text).collect()
}

/// A part of a text: a link, or what is between links.
struct Part<'t> {
    text: &'t str,
    target: Option<&'t str>,
}

/// Returns the parts of a text. A bracket that begins no link, such as that of a list in YAML, is part of the text.
fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (before, link) = split_at_link(rest);
        if !before.is_empty() {
            rest = &rest[before.len()..];
            return Some(Part { text: before, target: None });
        }
        let (part, length) = link?;
        rest = &rest[length..];
        Some(part)
    })
}

/// Returns the text before the first link, and the link with its length.
fn split_at_link(text: &str) -> (&str, Option<(Part<'_>, usize)>) {
    let link = text.match_indices("](").find_map(|(middle, between)| {
        let start = text[..middle].rfind('[')?;
        let target = middle + between.len();
        let end = target + text[target..].find(')')?;
        let part = Part { text: &text[start + 1..middle], target: Some(&text[target..end]) };
        Some((start, part, end + 1 - start))
    });
    match link {
        Some((start, part, length)) => (&text[..start], Some((part, length))),
        None => (text, None),
    }
}

/// Returns the path in the checkout of a link on a page.
fn resolved(page: &str, target: &str) -> String {
    let page = page.split_once('#').map_or(page, |(page, _)| page);
    if target.starts_with('#') {
        return format!("{page}{target}");
    }
    let mut folders: Vec<&str> = page.split('/').collect();
    folders.pop();
    let mut rest = target;
    while let Some(above) = rest.strip_prefix("../") {
        folders.pop();
        rest = above;
    }
    folders.push(rest);
    folders.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_their_texts_and_pages() {
        let entry = Entry {
            list: List::Failure,
            condition: "",
            meaning: "Set `layout: []`, see [here](#there) ([b](reasons.md#c)).",
            action: "[Drivers](../guides/drivers.md) and [again](../guides/drivers.md)",
        };
        assert_eq!(plain(entry.meaning), "Set `layout: []`, see here (b).");
        assert_eq!(plain(entry.action), "Drivers and again");
        assert_eq!(
            entry.pages(),
            [
                "docs/reference/failures.md#there",
                "docs/reference/reasons.md#c",
                "docs/guides/drivers.md",
                "docs/reference/failures.md#failures-of-nodes"
            ]
        );
    }
}
