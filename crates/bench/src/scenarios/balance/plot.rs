//! A run over time, as a drawing: throughput above, and below how much each node used of what it may.
//!
//! Plans are grey while they are carried out, with a line where they were decided.

use std::fmt::Write;

use super::super::drawing::{LEFT, RIGHT, WIDTH, curve, grid, line, round_step, text, upwards};
use super::series::{Second, Series};

const HEIGHT: f64 = 438.0;
/// Where the two parts lie.
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
        curve(svg, points, &format!("stroke=\"{colour}\" stroke-width=\"1.2\""));
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::samples;

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
}
