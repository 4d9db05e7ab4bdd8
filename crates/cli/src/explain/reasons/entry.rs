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
    pub meaning: &'static str,
    /// What to do. Empty if nothing has to be done.
    pub action: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Reasons of nodes without a problem.
    Normal,
    InProgress,
    Excluded,
    /// Warnings about nodes that are ready.
    Warning,
    /// Reasons that only the conditions of a GpuNode have.
    NodeCondition,
    /// Reasons of policies and pools, and of Events.
    Policy,
    Failure,
    /// Findings about pods.
    Pod,
}

impl List {
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

    /// Returns the title of the page of the documentation that contains the list. Where the documentation is, the program does not know.
    pub fn page(self) -> &'static str {
        match self {
            Self::Normal | Self::InProgress | Self::Excluded | Self::Warning | Self::NodeCondition | Self::Policy => {
                "Phases and reasons"
            }
            Self::Failure => "Failures of nodes",
            Self::Pod => "Pod diagnosis",
        }
    }
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
    use super::*;

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
