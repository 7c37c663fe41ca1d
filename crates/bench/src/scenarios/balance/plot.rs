//! A run over time, as a drawing: throughput above, and below how much each node used of what it may.
//!
//! Plans are grey while they are carried out, with a line where they were decided.

use std::fmt::Write;

use super::series::{Second, Series};

/// The whole drawing.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 438.0;
/// Where the two parts lie.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 700.0;
const ABOVE: (f64, f64) = (44.0, 194.0);
const BELOW: (f64, f64) = (234.0, 384.0);
/// Each node has its colour.
const COLOURS: [&str; 6] = ["#c0392b", "#2471a3", "#1e8449", "#b9770e", "#7d3c98", "#566573"];

impl Series {
    /// The drawing.
    pub(super) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let end = self.seconds.last().map_or(1.0, |one| one.at).max(1.0);
        let across = |at: f64| LEFT + (RIGHT - LEFT) * at.clamp(0.0, end) / end;
        self.plans_of(&mut svg, &across);
        text(&mut svg, LEFT, 18.0, "font-size=\"14\"", &self.title);
        let together: f64 = self.alone.iter().sum::<f64>() / 1e3;
        let most = self.seconds.iter().map(|one| one.throughput / 1e3).fold(together, f64::max);
        let step = round_step(most / 4.0);
        let top = (most / step).ceil().max(1.0) * step;
        text(
            &mut svg,
            LEFT,
            36.0,
            "",
            "thousand requests per second; dashed: what the nodes carry alone, together",
        );
        grid(&mut svg, ABOVE, (0.0, top, step));
        if together > 0.0 {
            let y = upwards(ABOVE, together / top);
            line(&mut svg, (LEFT, RIGHT), (y, y), "stroke=\"#888\" stroke-dasharray=\"4 3\"");
        }
        let throughput = |one: &Second| Some(one.throughput / 1e3 / top);
        self.curve(&mut svg, &across, (ABOVE, "#222"), &throughput);
        text(&mut svg, LEFT, 226.0, "", "percent used of the processor time that each node may use");
        grid(&mut svg, BELOW, (0.0, 100.0, 25.0));
        for (number, colour) in COLOURS.iter().enumerate().take(self.caps.len()) {
            let used = |one: &Second| one.nodes.get(number).map(|node| node.used.min(1.1));
            self.curve(&mut svg, &across, (BELOW, colour), &used);
            let cap = self.caps[number];
            let place = format!("fill=\"{colour}\"");
            let label = format!("n{}: {cap:.2} processors", number + 1);
            text(&mut svg, LEFT + 190.0 * number as f64, 430.0, &place, &label);
        }
        let step = round_step(end / 6.0);
        let mut at = 0.0;
        while at <= end {
            text(&mut svg, across(at), 402.0, "text-anchor=\"middle\"", &format!("{at:.0} s"));
            at += step;
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn plans_of(&self, svg: &mut String, across: &dyn Fn(f64) -> f64) {
        let end = self.seconds.last().map_or(1.0, |one| one.at);
        for plan in &self.plans {
            for (top, bottom) in [ABOVE, BELOW] {
                if let Some(begun) = plan.begun {
                    let (from, to) = (across(begun), across(plan.ended.unwrap_or(end)));
                    let (width, height) = ((to - from).max(0.8), bottom - top);
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{from:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\" fill=\"#e4e4e4\"/>"
                    );
                }
                let at = across(plan.created);
                line(svg, (at, at), (top, bottom), "stroke=\"#aaa\"");
            }
            text(
                svg,
                across(plan.created) + 2.0,
                ABOVE.1 + 12.0,
                "font-size=\"10\" fill=\"#666\"",
                &plan.number.to_string(),
            );
        }
    }

    /// A line through all seconds that have a value, which is a share of the part's height.
    fn curve(
        &self,
        svg: &mut String,
        across: &dyn Fn(f64) -> f64,
        (part, colour): ((f64, f64), &str),
        value: &dyn Fn(&Second) -> Option<f64>,
    ) {
        let points =
            self.seconds.iter().filter_map(|one| Some((across(one.at - 0.5), upwards(part, value(one)?))));
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\"/>"
        );
    }
}

/// A height in a part of the drawing, by its share.
fn upwards((top, bottom): (f64, f64), share: f64) -> f64 {
    bottom - (bottom - top) * share
}

/// Lines with their numbers.
fn grid(svg: &mut String, part: (f64, f64), (from, to, step): (f64, f64, f64)) {
    let mut at = from;
    while at <= to + step / 100.0 {
        let y = upwards(part, (at - from) / (to - from));
        line(svg, (LEFT, RIGHT), (y, y), "stroke=\"#ddd\"");
        text(svg, LEFT - 6.0, y + 4.0, "text-anchor=\"end\"", &format!("{at}"));
        at += step;
    }
}

/// 1, 2 or 5 times a power of ten, not below what is wanted.
fn round_step(wanted: f64) -> f64 {
    let power = 10f64.powf(wanted.max(1.0).log10().floor());
    let fits = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= wanted);
    fits.unwrap_or(10.0) * power
}

fn line(svg: &mut String, (x1, x2): (f64, f64), (y1, y2): (f64, f64), how: &str) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" {how}/>");
}

fn text(svg: &mut String, x: f64, y: f64, how: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let space = if how.is_empty() { "" } else { " " };
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\"{space}{how}>{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::series::samples;
    use super::*;

    #[test]
    fn a_drawing_has_a_line_for_throughput_and_for_each_node_and_marks_plans() {
        let mut series = samples::series();
        series.title = "a < b".to_owned();
        let svg = series.svg();
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches("fill=\"#e4e4e4\"").count(), 2, "one plan, in both parts");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"), "{svg}");
        // The plan lies between a half and 44/80 of the width.
        assert!(svg.contains("<rect x=\"385.0\" y=\"44\" width=\"31.5\""), "{svg}");
    }

    #[test]
    fn steps_are_round_numbers() {
        assert_eq!([0.3, 1.1, 4.9, 12.0, 60.0].map(round_step), [1.0, 2.0, 5.0, 20.0, 100.0]);
    }
}
