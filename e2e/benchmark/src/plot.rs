//! A plot of the growth of figures with the size of the fleet, as SVG.

use std::fmt::Write;

use super::{
    figures::{Figures, JOIN, PEAK, WRITES},
    row::{Row, number},
};

const PANELS: [Row<Figures>; 3] = [WRITES, JOIN, PEAK];
/// Colours with enough contrast on white as well as on black.
const INK: &str = "#7a7f87";
const LINE: &str = "#2f81f7";

/// The size of a panel with its margins, in pixels.
const PANEL: Size = Size { width: 300.0, height: 276.0 };
/// The left and top margins of the plot in a panel, in pixels.
const LEFT: f64 = 56.0;
const TOP: f64 = 36.0;
/// The size of the plot in a panel, in pixels.
const PLOT: Size = Size { width: 215.0, height: 185.0 };

struct Size {
    width: f64,
    height: f64,
}

/// A point of the picture, in pixels.
#[derive(Clone, Copy)]
struct Point {
    x: f64,
    y: f64,
}

/// A figure at a size of the fleet.
struct Value {
    nodes: f64,
    value: f64,
}

/// Returns the plot: one panel for each figure, with logarithmic axes.
pub(super) fn svg(all: &[Figures]) -> String {
    let (width, height) = (PANEL.width * 3.0, PANEL.height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"{INK}\">\n\
         <title>Growth of writes, requests and memory with the fleet</title>\n"
    );
    for (figure, left) in PANELS.iter().zip([0.0, PANEL.width, PANEL.width * 2.0]) {
        panel(&mut svg, figure, all, left);
    }
    svg + "</svg>\n"
}

/// Draws the panel of a figure; `left` is the panel's left edge.
fn panel(svg: &mut String, figure: &Row<Figures>, all: &[Figures], left: f64) {
    let values = all.iter().map(|of| Value { nodes: of.nodes.into(), value: (figure.value)(of) });
    // A logarithmic axis has no zero.
    let values: Vec<Value> = values.filter(|value| value.value > 0.0).collect();
    let axes = Axes {
        left: left + LEFT,
        x: Axis::around(values.iter().map(|value| value.nodes)),
        y: Axis::around(values.iter().map(|value| value.value)),
    };
    axes.draw(svg);
    text(svg, Point { x: axes.left, y: TOP - 10.0 }, "start", figure.what);
    let points: Vec<Point> = values.iter().map(|value| axes.place(value)).collect();
    line(svg, &points);
}

/// The axes of a panel.
struct Axes {
    /// The left edge of the plot.
    left: f64,
    x: Axis,
    y: Axis,
}

impl Axes {
    fn place(&self, value: &Value) -> Point {
        Point {
            x: self.left + PLOT.width * self.x.position(value.nodes),
            y: TOP + PLOT.height * (1.0 - self.y.position(value.value)),
        }
    }

    /// Draws the frame, the grid and its labels.
    fn draw(&self, svg: &mut String) {
        let Size { width, height } = PLOT;
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"{INK}\"/>",
            self.left
        );
        for tick in self.y.decades() {
            let Point { x: from, y } = self.place(&Value { nodes: self.x.first, value: tick });
            let to = from + width;
            let _ = writeln!(svg, "<path d=\"M{from:.1} {y:.1}H{to:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.4\"/>");
            text(svg, Point { x: from - 6.0, y: y + 4.0 }, "end", &number(tick, 0));
        }
        let bottom = TOP + height;
        for tick in self.x.decades() {
            let Point { x, .. } = self.place(&Value { nodes: tick, value: self.y.first });
            let _ = writeln!(svg, "<path d=\"M{x:.1} {TOP:.1}V{bottom:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.4\"/>");
            text(svg, Point { x, y: bottom + 17.0 }, "middle", &number(tick, 0));
        }
        text(svg, Point { x: self.left + width / 2.0, y: bottom + 38.0 }, "middle", "nodes");
    }
}

/// Draws a line with a dot at each point.
fn line(svg: &mut String, points: &[Point]) {
    let path: Vec<String> = points.iter().map(|Point { x, y }| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    let _ = writeln!(svg, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{LINE}\" stroke-width=\"2\"/>");
    for Point { x, y } in points {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{LINE}\"/>");
    }
}

fn text(svg: &mut String, Point { x, y }: Point, anchor: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

/// A logarithmic axis between two powers of ten.
struct Axis {
    first: f64,
    last: f64,
}

impl Axis {
    /// Returns the shortest axis that has all values.
    fn around(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) =
            values.fold((f64::INFINITY, 1.0_f64), |(least, most), value| (least.min(value), most.max(value)));
        let first = 10_f64.powf(least.min(most).log10().floor());
        Self { first, last: 10_f64.powf(most.log10().ceil()).max(first * 10.0) }
    }

    /// Returns the position of a value, from 0 to 1.
    fn position(&self, value: f64) -> f64 {
        (value / self.first).log10() / (self.last / self.first).log10()
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        let last = self.last * 1.01;
        std::iter::successors(Some(self.first), |tick| Some(tick * 10.0)).take_while(move |tick| *tick <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that all tags are closed in order, and that quotes come in pairs.
    fn assert_well_formed(svg: &str) {
        let mut open = Vec::new();
        for part in svg.split('<').skip(1) {
            let (tag, words) = part.split_once('>').unwrap_or_else(|| panic!("unclosed: {part}"));
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            assert!(!words.contains('>') && words.split('&').skip(1).all(|word| word.contains(';')), "{words}");
            let name = tag.split_whitespace().next().unwrap();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_plot_is_well_formed_and_completely_inside_the_picture() {
        let figures = Figures::example;
        for all in [vec![], vec![figures(100, 4)], vec![figures(100, 4), figures(1_000, 3), figures(3_000, 3)]] {
            let svg = svg(&all);
            assert_well_formed(&svg);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let coordinate = |name: &str| -> Vec<f64> {
                svg.split(name).skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
            };
            assert_eq!(coordinate("cx=\"").len(), 3 * all.len());
            assert!(coordinate("cx=\"").iter().all(|x| (0.0..=900.0).contains(x)));
            assert!(coordinate("cy=\"").iter().all(|y| (0.0..=276.0).contains(y)));
        }
    }

    #[test]
    fn an_axis_reaches_from_one_power_of_ten_to_another() {
        let axis = Axis::around([102.0, 1_322.0].into_iter());
        assert_eq!(axis.decades().map(|tick| number(tick, 0)).collect::<Vec<_>>(), ["100", "1,000", "10,000"]);
        assert!((axis.position(1_000.0) - 0.5).abs() < 1e-9);
    }
}
