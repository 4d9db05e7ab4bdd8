//! Parses as much of `PromQL` as is needed to find the series and labels that an expression uses.

/// A condition on a label.
#[derive(Debug, PartialEq, Eq)]
pub struct Matcher {
    pub label: String,
    pub operator: String,
    pub value: String,
}

/// The series and labels that an expression uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Uses {
    pub series: Vec<(String, Vec<Matcher>)>,
    /// The labels by which results are grouped.
    pub by: Vec<String>,
    /// The labels by which two sides of an operator are matched, that are copied from one side, or that are removed.
    pub matched: Vec<String>,
}

/// Functions and operators. Any other word is assumed to be a series.
const WORDS: [&str; 15] = [
    "absent",
    "and",
    "avg",
    "changes",
    "increase",
    "label_join",
    "label_replace",
    "max",
    "min",
    "or",
    "rate",
    "sum",
    "time",
    "topk",
    "unless",
];

pub fn uses(expression: &str) -> Uses {
    let mut uses = Uses::default();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        if first == '[' {
            rest = rest.split_once(']').expect("a closed range").1;
        } else if first == '"' {
            // An argument of a function: the result has labels that no series has.
            rest = rest[1..].split_once('"').expect("a closed string").1;
        } else if first.is_ascii_alphabetic() {
            let end = rest.find(|next: char| !next.is_ascii_alphanumeric() && next != '_').unwrap_or(rest.len());
            let word = &rest[..end];
            rest = rest[end..].trim_start();
            match word {
                "by" => uses.by.append(&mut list(&mut rest)),
                "on" | "ignoring" | "without" | "group_left" | "group_right" => {
                    uses.matched.append(&mut list(&mut rest));
                }
                word if WORDS.contains(&word) => {}
                word => uses.series.push((word.to_owned(), matchers(&mut rest))),
            }
        } else {
            // Numbers (including 1e3), brackets and signs.
            rest = rest[first.len_utf8()..]
                .trim_start_matches(|next: char| first.is_ascii_digit() && next.is_alphanumeric());
        }
    }
    uses
}

fn list(rest: &mut &str) -> Vec<String> {
    let Some((inside, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
        return Vec::new();
    };
    *rest = after;
    inside.split(',').map(|label| label.trim().to_owned()).collect()
}

fn matchers(rest: &mut &str) -> Vec<Matcher> {
    let Some((inside, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
        return Vec::new();
    };
    *rest = after;
    let parts = |matcher: &str| {
        let begin = matcher.find(['=', '!']).expect("an operator");
        let value = matcher.find('"').expect("a value");
        let [label, operator, value] = [&matcher[..begin], &matcher[begin..value], &matcher[value..]]
            .map(|part| part.trim_matches(['"', ' ', ',']).to_owned());
        Matcher { label, operator, value }
    };
    inside.split(',').map(parts).collect()
}

#[test]
fn series_matchers_and_labels_are_found() {
    let uses = uses(
        r#"sum by (a, b) (rate(up{x="1", y!="2"}[5m])) / on (c) group_left (d) label_join(topk(3, down), "e", "/", "f") > 1e3"#,
    );
    let matcher = |label: &str, operator: &str, value: &str| {
        let [label, operator, value] = [label, operator, value].map(str::to_owned);
        Matcher { label, operator, value }
    };
    let series = vec![("up".into(), vec![matcher("x", "=", "1"), matcher("y", "!=", "2")]), ("down".into(), vec![])];
    assert_eq!(uses.series, series);
    assert_eq!((uses.by.join(" "), uses.matched.join(" ")), ("a b".into(), "c d".into()));
}
