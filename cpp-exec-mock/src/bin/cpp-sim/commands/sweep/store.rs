//! Results of a sweep: a CSV file that grows line by line, and a table.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use cpp_exec_mock::report::{DistributionReport, RunReport};

use super::knee::{Knee, Value};
use crate::failure::Failure;

/// Of each run: its options, then what was measured. The columns behind the first two are numbers, empty where there is none.
const COLUMNS: [&str; 36] = [
    "command",
    "decision_digest",
    "within_slo",
    "finished",
    "rejected",
    "duration_s",
    "requests_per_s",
    "output_tokens_per_s",
    "goodput_requests_per_s",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "ttft_long_mean_s",
    "ttft_long_p99_s",
    "tpot_mean_s",
    "tpot_p50_s",
    "tpot_p90_s",
    "tpot_p99_s",
    "itl_mean_s",
    "itl_p99_s",
    "e2e_mean_s",
    "e2e_p99_s",
    "queue_mean_s",
    "queue_p99_s",
    "batches",
    "preemptions",
    "busy",
    "fill",
    "drain",
    "communication",
    "scheduler",
    "upstream",
    "downstream",
    "dependency",
    "no_work",
];

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    cells: Vec<String>,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub(super) fn new(command: String, report: &RunReport) -> Self {
        let mut cells = vec![command, report.decision_digest.clone()];
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        let submitted = report.requests.submitted.max(1) as f64;
        let met = report.goodput_requests_per_s.map(|goodput| goodput * report.duration_s / submitted);
        let mean_and = |d: &DistributionReport, more: &[Option<f64>]| [&[d.mean], more].concat();
        let (ttft, long, tpot) = (&report.ttft_s, &report.ttft_long_s, &report.tpot_s);
        let mut numbers = vec![
            met,
            Some(report.requests.finished as f64),
            Some(report.requests.rejected as f64),
            Some(report.duration_s),
            Some(report.throughput.requests_per_s),
            Some(report.throughput.output_tokens_per_s),
            report.goodput_requests_per_s,
        ];
        numbers.extend(mean_and(ttft, &[ttft.p50, ttft.p90, ttft.p99]));
        numbers.extend(mean_and(long, &[long.p99]));
        numbers.extend(mean_and(tpot, &[tpot.p50, tpot.p90, tpot.p99]));
        for d in [&report.itl_s, &report.e2e_s, &report.queue_s] {
            numbers.extend(mean_and(d, &[d.p99]));
        }
        numbers.extend([Some(report.batches as f64), Some(report.preemptions as f64)]);
        let stages = report.stages.len().max(1) as f64;
        for cause in &COLUMNS[27..] {
            numbers.push(Some(report.stages.iter().filter_map(|stage| stage.get(cause)).sum::<f64>() / stages));
        }
        cells.extend(numbers.into_iter().map(number));
        Self { cells }
    }

    #[cfg(test)]
    pub(super) fn sample(command: &str, within_slo: f64, requests_per_s: f64) -> Self {
        let mut cells = vec![String::new(); COLUMNS.len()];
        (cells[0], cells[2], cells[6]) = (command.to_owned(), within_slo.to_string(), requests_per_s.to_string());
        Self { cells }
    }

    pub(super) fn command(&self) -> &str {
        &self.cells[0]
    }

    fn number(&self, column: &str) -> Option<f64> {
        let at = COLUMNS.iter().position(|name| *name == column)?;
        self.cells[at].parse().ok()
    }

    /// Requests a second that ended.
    pub(super) fn load(&self) -> f64 {
        self.number("requests_per_s").unwrap_or(0.0)
    }

    /// The part of all requests that met the SLO; 0 without one.
    pub(super) fn within_slo(&self) -> f64 {
        self.number("within_slo").unwrap_or(0.0)
    }
}

/// What is known already, and where more is written.
pub(super) struct Store {
    known: HashMap<String, Row>,
    file: Option<(PathBuf, File)>,
}

impl Store {
    /// Reads what is there. A line that was not written to its end is cut off.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self { known: HashMap::new(), file: None }) };
        let wrong = |problem: String| Failure::Usage(format!("{}: {problem}", path.display()));
        let io = |error: &std::io::Error| Failure::file(path, error);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(|error| io(&error))?;
        let text = std::fs::read_to_string(path).map_err(|error| io(&error))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64).map_err(|error| io(&error))?;
        }
        if whole == 0 {
            let header = line(&COLUMNS.map(str::to_owned)).map_err(wrong)?;
            file.write_all(&header).map_err(|error| io(&error))?;
        }
        let mut reader = csv::Reader::from_reader(&text.as_bytes()[..whole]);
        let mut known = HashMap::new();
        if whole > 0 && reader.headers().map_err(|error| wrong(error.to_string()))? != COLUMNS.as_slice() {
            return Err(wrong("its columns are not those of a sweep of this version; give another file".to_owned()));
        }
        for record in reader.records() {
            let row = Row { cells: record.map_err(|error| wrong(error.to_string()))?.iter().map(str::to_owned).collect() };
            known.insert(row.command().to_owned(), row);
        }
        Ok(Self { known, file: Some((path.to_owned(), file)) })
    }

    pub(super) fn get(&self, command: &str) -> Option<Row> {
        self.known.get(command).cloned()
    }

    /// Keeps a result, in the file before anything else.
    pub(super) fn add(&mut self, row: &Row) -> Result<(), Failure> {
        if let Some((path, file)) = &mut self.file {
            let bytes = line(&row.cells).map_err(Failure::Failed)?;
            file.write_all(&bytes).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        }
        self.known.insert(row.command().to_owned(), row.clone());
        Ok(())
    }
}

fn line(cells: &[String]) -> Result<Vec<u8>, String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(cells).map_err(|error| error.to_string())?;
    writer.into_inner().map_err(|error| error.to_string())
}

/// The points with their main figures; at most 100 columns beside the point's own name.
pub(super) fn table(rows: &[(String, Row, Option<Value>)], knee: Option<&Knee>) -> String {
    let width = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0).max(5);
    let mut out = String::new();
    let knee_title = knee.map_or_else(String::new, |knee| format!("{:>12}", knee.option));
    let _ = writeln!(
        out,
        "{:<width$}{knee_title}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}{:>8}",
        "point", "TTFT", "TTFT p99", "TPOT", "TPOT p99", "req/s", "in SLO", "busy"
    );
    for (name, row, value) in rows {
        let number = |column: &str, digits: usize| row.number(column).map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"));
        let percent = |column: &str| row.number(column).map_or_else(|| "-".to_owned(), |v| format!("{:.1}%", v * 100.0));
        let at = value.map_or_else(String::new, |value| format!("{:>12}", value.to_string()));
        let _ = writeln!(
            out,
            "{name:<width$}{at}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}{:>8}",
            number("ttft_mean_s", 3),
            number("ttft_p99_s", 3),
            number("tpot_mean_s", 4),
            number("tpot_p99_s", 4),
            number("requests_per_s", 3),
            percent("within_slo"),
            percent("busy")
        );
    }
    if let Some(knee) = knee {
        let _ = writeln!(
            out,
            "\n{} = the heaviest load from {} to {} at which {} % of all requests meet the SLO",
            knee.option,
            knee.low,
            knee.high,
            knee.attain * 100.0
        );
        for note in knee.notes(&rows.iter().filter_map(|(.., value)| value.as_ref()).collect::<Vec<_>>()) {
            let _ = writeln!(out, "{note}");
        }
        for (name, row, _) in rows.iter().filter(|(_, row, value)| value.as_ref().is_some_and(|value| knee.is_unsteady(value, row))) {
            let _ = writeln!(
                out,
                "{name}: requests came faster than {:.3} a second ended, so this is how much\n  a short run takes and no steady load; give more --requests",
                row.load()
            );
        }
    }
    out
}
