//! `cpp-sim calibrate FILE.csv`: a cost model from measured times, and where it cannot be trusted.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use cpp_exec_mock::calibrate::{Errors, Fit, Table, fit};
use cpp_exec_mock::report::wrap;
use serde_json::{Value, json};

use crate::failure::{Failure, note};
use crate::output::JsonTarget;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct CalibrateArgs {
    /// A table of measured times, CSV with a header, gzipped or not. Sizes: new_tokens (tokens, new_x, m), history (cached_L), decodes (batch),
    /// context (kv_len). Times: columns that end in _ns, _us, _ms or _s, added up. Other columns group the rows.
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// Leaves out rows whose group does not contain this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    group: String,
    /// Leaves out prefill chunks with fewer new tokens.
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_tokens: u64,
    /// Writes the fits as JSON; - for stdout.
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    let target = JsonTarget::new(args.json.as_deref())?;
    let table = Table::load(&args.file).map_err(|error| Failure::Usage(format!("{}: {error}", args.file.display())))?;
    if table.skipped > 0 {
        note(&format!("{} rows left out: no time, or nothing run", table.skipped));
    }
    let mut fits = Vec::new();
    for mut group in table.groups {
        group.rows.retain(|row| row.terms.decodes > 0 || row.new_tokens >= args.min_tokens);
        if group.name.contains(&args.group) {
            fits.extend(fit(&group).map(|fit| (group.name, fit)));
        }
    }
    if fits.is_empty() {
        return Err(Failure::Usage(format!("{}: no rows left to fit", args.file.display())));
    }
    let report: Vec<Value> = fits.iter().map(|(name, fit)| as_json(name, fit)).collect();
    target.write(&report, || fits.iter().map(|(name, fit)| as_text(name, fit)).collect())
}

fn as_json(name: &str, fit: &Fit) -> Value {
    let errors =
        |errors: &Errors| json!({"rows": errors.rows, "median": errors.median, "worst": errors.worst, "trusted": errors.is_trusted()});
    let cost: serde_json::Map<String, Value> =
        fit.model.coefficients().into_iter().map(|(name, value)| (name.to_owned(), json!(value.0 as f64 / 1e9))).collect();
    let ranges =
        fit.ranges.iter().map(|range| json!({"of": range.of, "from": range.from, "to": range.to, "errors": errors(&range.errors)}));
    json!({
        "group": name,
        "cost": cost,
        "errors": errors(&fit.all),
        "ranges": ranges.collect::<Vec<_>>(),
        "held_out": fit.held_out.as_ref().map(errors),
        "extrapolated": fit.beyond.as_ref().map(errors),
    })
}

fn as_text(name: &str, fit: &Fit) -> String {
    let mut text = String::new();
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let coefficients: Vec<String> =
        fit.model.coefficients().iter().map(|(name, value)| format!("{name}={}", seven_digits(value.0 as f64 / 1e9))).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", wrap(if name.is_empty() { "all rows" } else { name }, 0));
    let _ = writeln!(text, "  cost (ns): {}", coefficients.join(","));
    let _ = writeln!(text, "  {} rows, median error {}, worst {}", fit.all.rows, percent(fit.all.median), percent(fit.all.worst));
    for range in &fit.ranges {
        let warning = if range.errors.is_trusted() { "" } else { "  NOT TO BE TRUSTED" };
        let _ = writeln!(
            text,
            "  {:<12} {:>8} to {:<8} {:>6} rows, median {:>7}, worst {:>8}{warning}",
            range.of,
            range.from,
            range.to - 1,
            range.errors.rows,
            percent(range.errors.median),
            percent(range.errors.worst)
        );
    }
    if let Some(errors) = &fit.held_out {
        let warning = if errors.is_trusted() { "" } else { ": not to be trusted" };
        let told = (errors.rows, percent(errors.median), percent(errors.worst));
        let _ =
            writeln!(text, "  fitted without every fifth row, asked about those {}: median {}, worst {}{warning}", told.0, told.1, told.2);
    } else {
        let _ = writeln!(text, "  too few rows to hold some out: how it does on others is not known, not to be trusted");
    }
    if let Some(beyond) = &fit.beyond {
        let warning = if beyond.is_trusted() { "" } else { ": do not extrapolate" };
        let _ = writeln!(
            text,
            "  fitted on the smaller half, asked about the largest quarter: median {}, worst {}{warning}",
            percent(beyond.median),
            percent(beyond.worst)
        );
    }
    text
}

/// A number without the digits that no fit has: six of them fit a line.
fn seven_digits(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}
