//! Where results go, and how far a run is.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cpp_exec_mock::report::{HtmlRun, html_page};
use cpp_exec_mock::sim::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, print};

/// Where the JSON goes.
pub(crate) enum JsonTarget {
    /// Nowhere: a table is shown.
    None,
    /// To stdout, in place of the table.
    Stdout,
    /// To a file, and a table is shown.
    File(PathBuf),
}

impl JsonTarget {
    /// Checks before a long run that its result can be written.
    pub(crate) fn new(path: Option<&Path>) -> Result<Self, Failure> {
        match path {
            None => Ok(Self::None),
            Some(path) if path.as_os_str() == "-" => Ok(Self::Stdout),
            Some(path) => {
                OpenOptions::new().create(true).append(true).open(path).map_err(|error| Failure::file(path, &error))?;
                Ok(Self::File(path.to_owned()))
            }
        }
    }

    /// Writes a report, and shows its table.
    pub(crate) fn write(&self, report: &impl Serialize, table: impl FnOnce() -> String) -> Result<(), Failure> {
        if matches!(self, Self::None) {
            return print(&table());
        }
        let mut text = serde_json::to_string_pretty(report).map_err(|error| Failure::Failed(format!("JSON: {error}")))?;
        text.push('\n');
        let Self::File(path) = self else { return print(&text) };
        std::fs::write(path, text).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        print(&table())
    }
}

/// Where the page with plots goes, if anywhere.
pub(crate) struct PageTarget(Option<PathBuf>);

impl PageTarget {
    /// Checks before a long run that the page can be written.
    pub(crate) fn new(path: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = path {
            OpenOptions::new().create(true).append(true).open(path).map_err(|error| Failure::file(path, &error))?;
        }
        Ok(Self(path.map(Path::to_owned)))
    }

    /// Whether runs have to be watched for it.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Writes it.
    pub(crate) fn write(&self, runs: &[HtmlRun]) -> Result<(), Failure> {
        let Some(path) = &self.0 else { return Ok(()) };
        std::fs::write(path, html_page(runs)).map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
    }
}

/// A bar on stderr, if that is a terminal, once a run has taken a second.
pub(crate) struct Bar {
    label: String,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Bar {
    const SHOWN_AFTER: Duration = Duration::from_secs(1);

    /// A bar for the run of this name.
    pub(crate) fn new(label: &str) -> Self {
        Self { label: label.to_owned(), started: Instant::now(), bar: None }
    }

    /// Shows how far the run is.
    pub(crate) fn show(&mut self, progress: Progress) {
        if self.bar.is_none() && self.started.elapsed() >= Self::SHOWN_AFTER && progress.done < progress.total {
            let style = ProgressStyle::with_template("{prefix:>8} {wide_bar} {pos}/{len} requests, {msg} simulated, {eta} left");
            let bar = ProgressBar::new(progress.total).with_prefix(self.label.clone());
            self.bar = Some(match style {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            });
        }
        if let Some(bar) = &self.bar {
            bar.set_position(progress.done);
            bar.set_message(format!("{} s", progress.now_ns / 1_000_000_000));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
