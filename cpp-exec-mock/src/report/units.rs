//! Numbers as people read them: four digits and a unit.

/// A time in seconds, such as `12.34 ms`; `-` for none.
pub(super) fn seconds(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let (scaled, unit) = match value {
        0.0 => (0.0, "s"),
        v if v < 0.999_95e-6 => (v * 1e9, "ns"),
        v if v < 0.999_95e-3 => (v * 1e6, "us"),
        v if v < 0.999_95 => (v * 1e3, "ms"),
        v => (v, "s"),
    };
    format!("{} {unit}", digits(scaled))
}

/// A number with four digits, `-` for none.
pub(super) fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), digits)
}

/// A count, with a space between groups of three digits.
pub(super) fn count(value: u64) -> String {
    let plain = value.to_string();
    let mut text = String::with_capacity(plain.len() + plain.len() / 3);
    for (i, digit) in plain.chars().enumerate() {
        if i > 0 && (plain.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A fraction as percent.
pub(super) fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// A fraction as a whole number of percent, without the sign.
pub(super) fn whole_percent(value: f64) -> String {
    format!("{:.0}", value * 100.0)
}

/// A ratio such as `0.83x`; empty where it means nothing.
pub(super) fn ratio(value: Option<f64>, base: Option<f64>) -> String {
    match (value, base) {
        (Some(value), Some(base)) if base > 0.0 => {
            let ratio = value / base;
            if ratio < 99.95 { format!("{ratio:.2}x") } else { format!("{ratio:.0}x") }
        }
        _ => String::new(),
    }
}

fn digits(value: f64) -> String {
    let decimals = match value {
        v if v < 9.9995 => 3,
        v if v < 99.995 => 2,
        v if v < 999.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_and_a_unit() {
        for (value, text) in [
            (0.0, "0.000 s"),
            (1.5e-9, "1.500 ns"),
            (0.000_012_346, "12.35 us"),
            (0.999_96, "1.000 s"),
            (0.123_4, "123.4 ms"),
            (9.999_6, "10.00 s"),
            (12_345.6, "12346 s"),
        ] {
            assert_eq!(seconds(Some(value)), text);
        }
        assert_eq!((seconds(None), count(1_234_567), count(123)), ("-".into(), "1 234 567".into(), "123".into()));
        assert_eq!(
            (ratio(Some(1.0), Some(3.0)), ratio(Some(1.0), Some(0.0)), ratio(None, Some(1.0))),
            ("0.33x".into(), String::new(), String::new())
        );
    }
}
