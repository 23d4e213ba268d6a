//! Inline SVG: scales, axes and marks. Numbers are rounded to a tenth of a pixel; all text is escaped.

use std::fmt::Write as _;

/// Pixels of a chart; it scales with the page.
pub(super) const WIDTH: f64 = 640.0;
/// Of one that has the page to itself.
pub(super) const WIDE: f64 = 1240.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 38.0;

/// Text that may stand in HTML and in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // No control characters, which HTML forbids.
            c if c.is_control() && c != '\n' && c != '\t' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// From values to a part of 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scale {
    Linear { low: f64, high: f64 },
    Log { low: f64, high: f64 },
}

impl Scale {
    /// From 0 to a little above the largest value.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let high = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
        Self::Linear { low: 0.0, high: if high > 0.0 { high * 1.04 } else { 1.0 } }
    }

    /// Over all values above 0.
    pub(super) fn log(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|v| v.is_finite() && *v > 0.0)
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return Self::Log { low: 1.0, high: 10.0 };
        }
        // At least a factor of two, else there are no ticks.
        let widen = if high / low < 2.0 { 1.5 } else { 1.08 };
        Self::Log { low: low / widen, high: high * widen }
    }

    pub(super) fn part(self, value: f64) -> f64 {
        let part = match self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } => (value.max(low) / low).ln() / (high / low).ln(),
        };
        part.clamp(0.0, 1.0)
    }

    /// Values for the axis.
    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear { low, high } => {
                let rough = (high - low) / 5.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&step| step >= 0.85 * rough).unwrap_or(rough);
                (0..=12u32).map(|i| (low / step).ceil() * step + f64::from(i) * step).take_while(|&v| v <= high * 1.0001).collect()
            }
            Self::Log { low, high } => {
                let decades = (high / low).log10();
                let steps: &[f64] = match decades {
                    d if d > 5.0 => &[1.0],
                    d if d > 1.6 => &[1.0, 3.0],
                    _ => &[1.0, 2.0, 5.0],
                };
                let first = low.log10().floor() as i32;
                let powers = (first..=first + decades.ceil() as i32 + 1).map(|power| 10f64.powi(power));
                powers.flat_map(|power| steps.iter().map(move |step| step * power)).filter(|&v| v >= low && v <= high).collect()
            }
        }
    }
}

/// How values of an axis are written.
pub(super) type Format = fn(f64) -> String;

/// A chart under construction.
pub(super) struct Chart {
    x: Scale,
    y: Scale,
    width: f64,
    height: f64,
    marks: String,
}

impl Chart {
    pub(super) fn new(x: Scale, y: Scale) -> Self {
        Self { x, y, width: WIDTH, height: HEIGHT, marks: String::new() }
    }

    pub(super) fn high(mut self, height: f64) -> Self {
        self.height = height;
        self
    }

    pub(super) fn wide(mut self) -> Self {
        self.width = WIDE;
        self
    }

    pub(super) fn x(&self, value: f64) -> f64 {
        LEFT + self.x.part(value) * (self.width - LEFT - RIGHT)
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        self.height - BOTTOM - self.y.part(value) * (self.height - TOP - BOTTOM)
    }

    /// Points joined by a line.
    pub(super) fn line(&mut self, class: &str, points: impl Iterator<Item = (f64, f64)>) {
        let path = self.path(points);
        if !path.is_empty() {
            let _ = write!(self.marks, "<path class=\"line {class}\" d=\"{path}\"/>");
        }
    }

    /// The area between two lines that have their x in common, lower first.
    pub(super) fn band(&mut self, class: &str, points: &[(f64, f64, f64)]) {
        if points.is_empty() {
            return;
        }
        let up = self.path(points.iter().map(|&(x, _, high)| (x, high)));
        let down = self.path(points.iter().rev().map(|&(x, low, _)| (x, low)));
        let _ = write!(self.marks, "<path class=\"area {class}\" d=\"{up}L{}Z\"/>", &down[1..]);
    }

    /// Dots of one size, as one path of lines of no length: round caps make them dots.
    pub(super) fn dots(&mut self, class: &str, points: impl Iterator<Item = (f64, f64)>) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "M{} {}h0", tenth(self.x(x)), tenth(self.y(y)));
        }
        if !path.is_empty() {
            let _ = write!(self.marks, "<path class=\"dots {class}\" d=\"{path}\"/>");
        }
    }

    /// A rectangle between two corners, with what a pointer on it is told.
    pub(super) fn rect(&mut self, class: &str, from: (f64, f64), to: (f64, f64), title: &str) {
        let (x, width) = (self.x(from.0), self.x(to.0) - self.x(from.0));
        let (y, height) = (self.y(to.1), self.y(from.1) - self.y(to.1));
        let _ = write!(
            self.marks,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">",
            tenth(x),
            tenth(y),
            tenth(width.max(0.3)),
            tenth(height)
        );
        let _ = write!(self.marks, "<title>{}</title></rect>", escape(title));
    }

    /// A bar around a height, as thick as its class says, with what a pointer on it is told.
    pub(super) fn bar(&mut self, class: &str, from: f64, to: f64, y: f64, title: &str) {
        let (x, width) = (self.x(from), self.x(to) - self.x(from));
        let _ = write!(self.marks, "<path class=\"{class}\" d=\"M{} {}h{}\">", tenth(x), tenth(self.y(y)), tenth(width.max(0.3)));
        let _ = write!(self.marks, "<title>{}</title></path>", escape(title));
    }

    fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{}{} {}", if path.is_empty() { 'M' } else { 'L' }, tenth(self.x(x)), tenth(self.y(y)));
        }
        path
    }

    /// The chart with its axes, as an `svg` element with a name for those who cannot see it.
    pub(super) fn finish(self, name: &str, x: (&str, Format), y: (&str, Format)) -> String {
        let mut out = String::new();
        let (width, height) = (self.width, self.height);
        let _ = write!(out, "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\"><g class=\"axis\">", escape(name));
        let (bottom, right) = (height - BOTTOM, width - RIGHT);
        let mut last = f64::NEG_INFINITY;
        for value in self.x.ticks() {
            let at = tenth(self.x(value));
            let _ = write!(out, "<path d=\"M{at} {TOP}V{bottom}\"/>");
            if at - last > 44.0 {
                let _ = write!(out, "<text x=\"{at}\" y=\"{}\" class=\"mid\">{}</text>", bottom + 14.0, escape(&(x.1)(value)));
                last = at;
            }
        }
        for value in self.y.ticks() {
            let at = tenth(self.y(value));
            let _ = write!(out, "<path d=\"M{LEFT} {at}H{right}\"/>");
            let _ = write!(out, "<text x=\"{}\" y=\"{}\" class=\"end\">{}</text>", LEFT - 5.0, tenth(at + 3.5), escape(&(y.1)(value)));
        }
        let _ = write!(out, "<text x=\"{}\" y=\"{}\" class=\"mid name\">{}</text>", (LEFT + right) / 2.0, height - 6.0, escape(x.0));
        let middle = (TOP + bottom) / 2.0;
        let _ =
            write!(out, "<text x=\"12\" y=\"{middle}\" class=\"mid name\" transform=\"rotate(-90 12 {middle})\">{}</text>", escape(y.0));
        let _ = write!(out, "</g>{}</svg>", self.marks);
        out
    }
}

/// Rounded to a tenth.
pub(super) fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(Scale::Linear { low: 0.0, high: 10.4 }.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Scale::Linear { low: 0.0, high: 1.04 }.ticks().len(), 6);
        let ticks = Scale::Log { low: 0.02, high: 15.0 }.ticks();
        assert!(ticks.iter().all(|&v| (0.02..=15.0).contains(&v)) && ticks.len() >= 4, "{ticks:?}");
        for scale in [Scale::linear([].into_iter()), Scale::log([].into_iter()), Scale::log([7.0, 7.0, f64::NAN, -1.0].into_iter())] {
            assert!(!scale.ticks().is_empty(), "{scale:?}");
            assert!((0.0..=1.0).contains(&scale.part(7.0)));
        }
    }

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(escape("<a href='x'>&\"\u{0}"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{fffd}");
        let chart = Chart::new(Scale::linear([1.0].into_iter()), Scale::linear([1.0].into_iter()));
        let svg = chart.finish("</svg><script>", ("<x>", |v| format!("<{v}>")), ("\"y\"", |v| v.to_string()));
        assert_eq!(svg.matches("</svg>").count(), 1);
        assert!(!svg.contains("<script") && !svg.contains("<x>"));
    }
}
