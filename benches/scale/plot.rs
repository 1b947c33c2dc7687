//! Microseconds per pair against the number of pairs, for each method, as SVG.

use std::fmt::Write as _;

use crate::report::Report;
use crate::stats::median_of;

/// Size of the drawing, and of the plane in it.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 370.0;
/// Powers of ten at the ends of the axes.
const PAIRS: (f64, f64) = (1.8, 3.9);
const MICROS: (f64, f64) = (2.0, 5.0);

const METHODS: [(&str, &str, &str); 4] = [
    ("classical", "classical", "#b22222"),
    ("ip -batch", "ip -batch", "#b8860b"),
    ("agent", "vnf-agent", "#1f5fbf"),
    ("floor", "floor", "#2e7d32"),
];

/// Height of a name.
const LABEL: f64 = 16.0;

/// The name at the end of a line.
struct Label {
    x: f64,
    y: f64,
    name: &'static str,
    colour: &'static str,
}

fn x(pairs: f64) -> f64 {
    LEFT + (pairs.log10() - PAIRS.0) / (PAIRS.1 - PAIRS.0) * (RIGHT - LEFT)
}

fn y(micros: f64) -> f64 {
    BOTTOM - (micros.log10() - MICROS.0) / (MICROS.1 - MICROS.0) * (BOTTOM - TOP)
}

/// Draws the cold starts over 10 namespaces.
pub fn draw(report: &Report) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">Cold start: time per veth pair, complete in its two namespaces (of 10)</text>\n"
    );
    axes(&mut svg);
    let mut labels: Vec<Label> =
        METHODS.iter().filter_map(|(method, name, colour)| series(&mut svg, report, method, name, colour)).collect();
    labels.sort_by(|a, b| a.y.total_cmp(&b.y));
    let mut free = f64::NEG_INFINITY;
    for Label { x, y, name, colour } in labels {
        // Lines that end close to each other keep readable names.
        let y = y.max(free);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{name}</text>");
        free = y + LABEL;
    }
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String) {
    for (micros, text) in [(100.0, "0.1 ms"), (1e3, "1 ms"), (1e4, "10 ms"), (1e5, "100 ms")] {
        let at = y(micros);
        let _ = writeln!(svg, "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 8.0, at + 4.0);
    }
    for pairs in [100.0, 1000.0, 5000.0] {
        let at = x(pairs);
        let _ = writeln!(svg, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\" stroke=\"#eee\"/>");
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{pairs}</text>", BOTTOM + 18.0);
    }
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">pairs</text>", (LEFT + RIGHT) / 2.0, BOTTOM + 38.0);
    let _ = writeln!(svg, "<path d=\"M{LEFT} {TOP} V{BOTTOM} H{RIGHT}\" fill=\"none\" stroke=\"#444\"/>");
}

/// One method's line; its name is still to be written.
fn series(svg: &mut String, report: &Report, method: &str, name: &'static str, colour: &'static str) -> Option<Label> {
    const PHASE: &str = "cold start";
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut sizes: Vec<_> = report.sizes().into_iter().filter(|size| size.spaces == 10).collect();
    // Where a number of pairs was measured both ways, the kernel's defaults count.
    sizes.sort_by_key(|size| (size.pairs, !size.link_locals));
    sizes.dedup_by_key(|size| size.pairs);
    for size in sizes {
        let method = if method == "floor" { report.floor(size, PHASE).unwrap_or(method) } else { method };
        points.extend(median_of(&report.each(size, PHASE, method)).map(|micros| (x(size.pairs as f64), y(micros))));
    }
    let (last_x, last_y) = points.last().copied()?;
    let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", line.join(" "));
    for (x, y) in points {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
    Some(Label { x: last_x + 10.0, y: last_y + 4.0, name, colour })
}
