//! How the figures grow with the fleet, as a picture.

use std::fmt::Write;

use super::{
    figures::{Compared, Figures, JOIN, NVIDIA, PEAK, WRITES},
    row::number,
};

const PANELS: [Compared; 3] = [WRITES, JOIN, PEAK];
/// Colours that stand out on white as well as on black.
const INK: &str = "#7a7f87";
const OURS: Series = Series { name: "gpu-operator", colour: "#2f81f7", dashes: "none" };
const THEIRS: Series = Series { name: "NVIDIA's operator", colour: "#d4671c", dashes: "6 4" };

/// In pixels: one panel with its margins, and the plot in it.
const PANEL: (f64, f64) = (300.0, 300.0);
const LEFT: f64 = 56.0;
const TOP: f64 = 60.0;
const PLOT: (f64, f64) = (215.0, 185.0);

#[derive(Clone, Copy)]
struct Series {
    name: &'static str,
    colour: &'static str,
    dashes: &'static str,
}

/// One panel for each figure, both axes logarithmic.
pub(super) fn svg(all: &[Figures]) -> String {
    let (width, height) = (PANEL.0 * 3.0, PANEL.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"{INK}\">\n\
         <title>Growth of writes, requests and memory with the fleet</title>\n"
    );
    for (index, series) in [OURS, THEIRS].into_iter().enumerate() {
        let x = LEFT + 160.0 * if index == 0 { 0.0 } else { 1.0 };
        line(&mut svg, &series, &[(x, 16.0), (x + 24.0, 16.0)]);
        text(&mut svg, (x + 32.0, 20.0), "start", series.name);
    }
    for (figure, left) in PANELS.iter().zip([0.0, PANEL.0, PANEL.0 * 2.0]) {
        panel(&mut svg, figure, all, left);
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, figure: &Compared, all: &[Figures], left: f64) {
    let ours: Vec<(f64, f64)> = all.iter().map(|of| (of.nodes.into(), (figure.row.value)(of))).collect();
    let theirs: Vec<(f64, f64)> =
        figure.theirs.iter().flat_map(|theirs| NVIDIA.iter().map(|of| (of.nodes.into(), theirs(of)))).collect();
    // A logarithm has no place for nothing.
    let [ours, theirs] =
        [ours, theirs].map(|points| points.into_iter().filter(|point| point.1 > 0.0).collect::<Vec<_>>());
    let both = || ours.iter().chain(&theirs);
    let x = Axis::around(both().map(|point| point.0));
    let y = Axis::around(both().map(|point| point.1));
    let place = |point: &(f64, f64)| (left + LEFT + PLOT.0 * x.share(point.0), TOP + PLOT.1 * (1.0 - y.share(point.1)));
    let _ = writeln!(
        svg,
        "<rect x=\"{}\" y=\"{TOP}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"{INK}\"/>",
        left + LEFT,
        PLOT.0,
        PLOT.1
    );
    for tick in y.decades() {
        let (from, at) = place(&(x.first, tick));
        let to = from + PLOT.0;
        let _ = writeln!(svg, "<path d=\"M{from:.1} {at:.1}H{to:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.4\"/>");
        text(svg, (from - 6.0, at + 4.0), "end", &number(tick, 0));
    }
    for tick in x.decades() {
        let (at, _) = place(&(tick, y.first));
        let (from, to) = (TOP, TOP + PLOT.1);
        let _ = writeln!(svg, "<path d=\"M{at:.1} {from:.1}V{to:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.4\"/>");
        text(svg, (at, to + 17.0), "middle", &number(tick, 0));
    }
    text(svg, (left + LEFT + PLOT.0 / 2.0, TOP + PLOT.1 + 38.0), "middle", "nodes");
    text(svg, (left + LEFT, TOP - 10.0), "start", figure.row.what);
    for (series, points) in [(OURS, &ours), (THEIRS, &theirs)] {
        let points: Vec<_> = points.iter().map(place).collect();
        line(svg, &series, &points);
    }
}

/// A line with a dot at each point.
fn line(svg: &mut String, series: &Series, points: &[(f64, f64)]) {
    let Series { colour, dashes, .. } = series;
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    let _ = writeln!(
        svg,
        "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>"
    );
    for (x, y) in points {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// A logarithmic axis from one power of ten to another.
struct Axis {
    first: f64,
    last: f64,
}

impl Axis {
    /// The powers of ten that the values lie between.
    fn around(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) =
            values.fold((f64::INFINITY, 1.0_f64), |(least, most), value| (least.min(value), most.max(value)));
        let first = 10_f64.powf(least.min(most).log10().floor());
        Self { first, last: 10_f64.powf(most.log10().ceil()).max(first * 10.0) }
    }

    /// Where a value lies, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        (value / self.first).log10() / (self.last / self.first).log10()
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        let last = self.last * 1.01;
        std::iter::successors(Some(self.first), |tick| Some(tick * 10.0)).take_while(move |tick| *tick <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::figures::tests::figures, *};

    /// Every tag that opens closes, in order, and quotes come in pairs.
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
    fn the_picture_is_well_formed_and_all_of_it_lies_inside() {
        for all in [vec![], vec![figures(100, 4)], vec![figures(100, 4), figures(1_000, 3), figures(3_000, 3)]] {
            let svg = svg(&all);
            assert_well_formed(&svg);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let coordinate = |name: &str| -> Vec<f64> {
                svg.split(name).skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
            };
            assert_eq!(coordinate("cx=\"").len(), 4 + 9 + 3 * all.len());
            assert!(coordinate("cx=\"").iter().all(|x| (0.0..=900.0).contains(x)));
            assert!(coordinate("cy=\"").iter().all(|y| (0.0..=300.0).contains(y)));
        }
    }

    #[test]
    fn an_axis_reaches_from_one_power_of_ten_to_another() {
        let axis = Axis::around([102.0, 1_322.0].into_iter());
        assert_eq!(axis.decades().map(|tick| number(tick, 0)).collect::<Vec<_>>(), ["100", "1,000", "10,000"]);
        assert!((axis.share(1_000.0) - 0.5).abs() < 1e-9);
    }
}
