//! How a command ends: exit status and one line on stderr.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind;
use cpp_exec_cuda::text::TextError;
use cpp_exec_mock::model::ModelError;
use cpp_exec_mock::runtime::RuntimeError;

/// Why a command did not do what it should.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Exit 2: arguments or a file are wrong.
    Usage(String),
    /// Exit 1: the run failed.
    Failed(String),
    /// Nobody reads stdout any more; that is no failure.
    ClosedPipe,
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Listen { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Writes a piece of a result to stdout, at once.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ClosedPipe),
        Err(error) => Err(Failure::Failed(format!("stdout: {error}"))),
    }
}

/// Tells the user something beside the result, on stderr.
pub(crate) fn note(text: &str) {
    // A closed stderr is no reason to end a run.
    let _ = writeln!(io::stderr(), "cpp-run: {}", one_line(text));
}

/// The exit status of a command, after its error was told.
pub(crate) fn exit(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(Failure::Failed(text)) => {
            note(&text);
            ExitCode::from(1)
        }
        Err(Failure::Usage(text)) => {
            note(&text);
            ExitCode::from(2)
        }
    }
}

/// What the parser of arguments says, in one line. Help and version are no errors.
pub(crate) fn of_arguments(error: &clap::Error) -> Result<(), Failure> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand) {
        return print(&error.render().to_string());
    }
    let text = error.render().to_string();
    let said: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let said = said.join("; ");
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    Err(Failure::Usage(format!("{} (see cpp-run --help)", said.replace(":; ", ": "))))
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}
