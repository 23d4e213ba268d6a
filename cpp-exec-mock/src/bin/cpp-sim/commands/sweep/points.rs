//! The points of a sweep: options of `run`.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;

use crate::args::{Cli, Command, RunArgs};
use crate::failure::{self, Failure};

/// One run, as the options that make it.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// Of all runs.
    all: Vec<String>,
    /// Of this one.
    own: Vec<String>,
}

/// The points of the list, each through the grid.
pub(super) fn points(all: &[String], list: Option<&Path>, vary: &[String]) -> Result<Vec<Point>, Failure> {
    let mut points = vec![Point { all: all.to_vec(), own: Vec::new() }];
    if let Some(path) = list {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        points = lines.map(|line| Point { all: all.to_vec(), own: line.split_whitespace().map(str::to_owned).collect() }).collect();
        if points.is_empty() {
            return Err(Failure::Usage(format!("{}: no run in it", path.display())));
        }
    }
    for axis in vary {
        let (option, values) = axis
            .split_once('=')
            .filter(|(option, values)| !option.is_empty() && !values.is_empty())
            .ok_or_else(|| Failure::Usage(format!("--vary {axis}: must be OPTION=VALUE,VALUE,..")))?;
        let separator = if values.contains(';') { ';' } else { ',' };
        let values: Vec<&str> = values.split(separator).map(str::trim).filter(|value| !value.is_empty()).collect();
        if values.is_empty() {
            return Err(Failure::Usage(format!("--vary {axis}: there is no value: give OPTION=VALUE,VALUE,..")));
        }
        points = points.iter().flat_map(|point| values.iter().map(|value| point.with(option, value))).collect();
    }
    Ok(points)
}

impl Point {
    /// This point with one more option.
    pub(super) fn with(&self, option: &str, value: &str) -> Self {
        let mut point = self.clone();
        point.own.push(format!("--{}={value}", option.trim_start_matches('-')));
        point
    }

    /// All options as one text: what tells runs apart.
    pub(super) fn command(&self) -> String {
        self.all.iter().chain(&self.own).map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// What tells it from the other points.
    pub(super) fn name(&self) -> String {
        let own: Vec<&str> = self.own.iter().map(|option| option.trim_start_matches("--")).collect();
        if own.is_empty() { "run".to_owned() } else { own.join(" ") }
    }

    /// The options, understood.
    pub(super) fn parse(&self) -> Result<RunArgs, Failure> {
        let words: Vec<OsString> =
            ["cpp-sim", "run"].into_iter().chain(self.all.iter().chain(&self.own).map(String::as_str)).map(OsString::from).collect();
        match Cli::try_parse_from(&words) {
            Ok(Cli { command: Some(Command::Run(args)) }) => {
                if args.shared.json.is_some() || args.timeline.is_some() || args.journal.is_some() {
                    return Err(Failure::Usage(format!("{}: a sweep writes --csv alone", self.name())));
                }
                Ok(args)
            }
            Ok(_) => Err(Failure::Usage(format!("{}: no options of run", self.name()))),
            Err(error) => Err(match failure::of_arguments(&error, &words) {
                Err(Failure::Usage(text)) => Failure::Usage(format!("{}: {text}", self.name())),
                _ => Failure::Usage(format!("{}: asks for help", self.name())),
            }),
        }
    }
}
