//! What drawings of runs share: lines, words and grids of an SVG.

use std::fmt::Write;

/// How wide drawings are, and between which places their curves lie.
pub(super) const WIDTH: f64 = 720.0;
pub(super) const LEFT: f64 = 70.0;
pub(super) const RIGHT: f64 = 700.0;

/// A line through these points.
pub(super) fn curve(svg: &mut String, points: impl Iterator<Item = (f64, f64)>, how: &str) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" {how}/>", points.join(" "));
}

/// A height in a part of the drawing, by its share.
pub(super) fn upwards((top, bottom): (f64, f64), share: f64) -> f64 {
    bottom - (bottom - top) * share
}

/// Lines with their numbers.
pub(super) fn grid(svg: &mut String, part: (f64, f64), (from, to, step): (f64, f64, f64)) {
    let mut at = from;
    while at <= to + step / 100.0 {
        let y = upwards(part, (at - from) / (to - from));
        line(svg, (LEFT, RIGHT), (y, y), "stroke=\"#ddd\"");
        text(svg, LEFT - 6.0, y + 4.0, "text-anchor=\"end\"", &format!("{at}"));
        at += step;
    }
}

/// 1, 2 or 5 times a power of ten, not below what is wanted.
pub(super) fn round_step(wanted: f64) -> f64 {
    let power = 10f64.powf(wanted.max(1.0).log10().floor());
    let fits = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= wanted);
    fits.unwrap_or(10.0) * power
}

/// A line between two points.
pub(super) fn line(svg: &mut String, (x1, x2): (f64, f64), (y1, y2): (f64, f64), how: &str) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" {how}/>");
}

/// Words at a place.
pub(super) fn text(svg: &mut String, x: f64, y: f64, how: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let space = if how.is_empty() { "" } else { " " };
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\"{space}{how}>{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_numbers() {
        assert_eq!([0.3, 1.1, 4.9, 12.0, 60.0].map(round_step), [1.0, 2.0, 5.0, 20.0, 100.0]);
    }
}
