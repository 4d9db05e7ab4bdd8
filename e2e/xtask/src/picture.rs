//! A picture of a terminal, as SVG.

use std::fmt::Write;

/// The size of a character and the margin, in pixels.
const CHARACTER: (usize, usize) = (8, 20);
const MARGIN: usize = 16;
/// Longer lines are wrapped.
const COLUMNS: usize = 116;

/// Words and their colours, on a dark background.
const COLOURS: [(&str, &str); 6] = [
    ("NotReady", "#ffa657"),
    ("Ready", "#7ee787"),
    ("Healthy", "#7ee787"),
    ("Driver", "#ffa657"),
    ("Degraded", "#ffa657"),
    ("KernelHeadersUnavailable", "#ffa657"),
];

/// Returns a picture of a text. Lines that begin with `$` are shown as commands.
pub(super) fn picture(text: &str) -> String {
    let lines: Vec<String> = text.lines().flat_map(wrap).collect();
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0) * CHARACTER.0 + 2 * MARGIN;
    let height = lines.len() * CHARACTER.1 + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\" font-size=\"13\" fill=\"#e6edf3\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#0d1117\"/>\n"
    );
    for (index, line) in lines.iter().enumerate() {
        let y = MARGIN + index * CHARACTER.1 + 14;
        // Every line has the same width per character in whatever font the viewer has.
        let length = line.chars().count() * CHARACTER.0;
        if length > 0 {
            let _ = writeln!(
                svg,
                "<text x=\"{MARGIN}\" y=\"{y}\" xml:space=\"preserve\" textLength=\"{length}\" lengthAdjust=\"spacing\">{}</text>",
                coloured(line)
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Splits a line between words.
fn wrap(line: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in line.split_inclusive(' ') {
        let current = lines.last().map_or(0, |last| last.chars().count());
        if current > 0 && current + part.trim_end().chars().count() > COLUMNS {
            lines.push(String::new());
        }
        if let Some(last) = lines.last_mut() {
            last.push_str(part);
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Returns a line as SVG's text, in which known words have a colour.
fn coloured(line: &str) -> String {
    if line.starts_with("$ ") {
        return format!("<tspan font-weight=\"bold\">{}</tspan>", escaped(line));
    }
    let word = |part: &str| {
        let word = part.trim_end();
        let colour = COLOURS.iter().find(|(name, _)| *name == word);
        colour.map_or_else(
            || escaped(part),
            |(_, colour)| format!("<tspan fill=\"{colour}\">{word}</tspan>{}", &part[word.len()..]),
        )
    };
    line.split_inclusive(' ').map(word).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_escaped_coloured_and_wrapped() {
        let svg = picture("$ kubectl get <all>\nA  Ready   NotReady1");
        assert!(svg.contains("<tspan font-weight=\"bold\">$ kubectl get &lt;all&gt;</tspan></text>"), "{svg}");
        assert!(svg.contains(">A  <tspan fill=\"#7ee787\">Ready</tspan>   NotReady1</text>"), "{svg}");
        let long = wrap(&"word ".repeat(40));
        assert_eq!(long.iter().map(String::len).collect::<Vec<_>>(), [114, 84]);
    }
}
