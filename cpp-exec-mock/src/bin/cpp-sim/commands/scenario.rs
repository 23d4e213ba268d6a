//! `cpp-sim scenario FILE [--log OUT]`: runs a conformance scenario and prints its log.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use cpp_exec_mock::conformance::{RunError, Runner, Scenario};

/// Why the command failed, in one line, and the exit code that says whose fault it is.
#[derive(Debug)]
pub(crate) struct Failure {
    /// 1: the run failed; 2: bad arguments or a bad file.
    pub(crate) code: u8,
    /// What is wrong, and where.
    pub(crate) message: String,
}

/// Runs the scenario in `file`; the log goes to `log`, else to stdout.
pub(crate) fn run(file: &Path, log: Option<&Path>) -> Result<(), Failure> {
    let bad = |path: &Path, problem: &dyn std::fmt::Display| Failure { code: 2, message: format!("{:?}: {problem}", path.display()) };
    let scenario = Scenario::load(file).map_err(|error| bad(file, &error))?;
    let out: Box<dyn Write> = match log {
        Some(path) => Box::new(File::create(path).map_err(|error| bad(path, &format_args!("cannot be written: {error}")))?),
        None => Box::new(io::stdout().lock()),
    };
    // Scenarios with a config that parsed always start, so whatever fails from here on is the run.
    match Runner::new(&scenario, BufWriter::new(out)).and_then(Runner::run) {
        Ok(_) => Ok(()),
        // Nobody reads on: that is their right, as with any filter.
        Err(RunError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure { code: 1, message: format!("{:?}: {error}", file.display()) }),
    }
}
