//! How the commands of these packages end: an exit status, and one line on stderr that says why.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::model::ModelError;
use crate::runtime::RuntimeError;
use crate::sim::SimError;

/// Why a command did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the exit statuses that there are")]
pub enum Failure {
    /// Exit 2: arguments or a file are wrong.
    Usage(String),
    /// Exit 1: the run failed.
    Failed(String),
    /// Nobody reads stdout any more; that is no failure.
    ClosedPipe,
}

impl Failure {
    /// A file that was given cannot be used.
    #[must_use]
    pub fn file(path: &Path, error: &io::Error) -> Self {
        Self::Usage(format!("{}: {error}", path.display()))
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Self {
        match error {
            SimError::Config(_) | SimError::Stages { .. } | SimError::TooManyRequests => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
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

/// Writes a result, or a piece of one, to stdout at once.
///
/// # Errors
/// Nobody reads it, or it cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ClosedPipe),
        Err(error) => Err(Failure::Failed(format!("stdout: {error}"))),
    }
}

/// A command, by the name that its lines on stderr begin with.
#[derive(Clone, Copy, Debug)]
pub struct Program(&'static str);

impl Program {
    /// The command of this name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Tells the user something beside the result, one line on stderr.
    pub fn note(self, text: &str) {
        // A closed stderr is no reason to end a run.
        let _ = writeln!(io::stderr(), "{}: {}", self.0, one_line(text));
    }

    /// The exit status of the command, after its error was told.
    #[must_use]
    pub fn exit(self, result: Result<(), Failure>) -> ExitCode {
        match result {
            Ok(()) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
            Err(Failure::Failed(text)) => {
                self.note(&text);
                ExitCode::from(1)
            }
            Err(Failure::Usage(text)) => {
                self.note(&text);
                ExitCode::from(2)
            }
        }
    }

    /// What the parser of arguments says, in one line, with the `subcommand` whose help says more. Help and version are no errors.
    ///
    /// # Errors
    /// The arguments are wrong.
    pub fn of_arguments(self, error: &clap::Error, subcommand: Option<&str>) -> Result<(), Failure> {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand)
        {
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
        let said = said.strip_prefix("error: ").unwrap_or(&said).replace(":; ", ": ");
        let said = NUMBERS.iter().fold(said, |said, (theirs, ours)| said.replace(theirs, ours));
        let subcommand = subcommand.map_or_else(String::new, |name| format!(" {name}"));
        Err(Failure::Usage(format!("{said} (see {}{subcommand} --help)", self.0)))
    }
}

/// What the standard library says of numbers, and what it means for a user.
const NUMBERS: [(&str, &str); 5] = [
    ("invalid digit found in string", "not a whole number from 0 on"),
    ("cannot parse integer from empty string", "not a whole number from 0 on"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid float literal", "not a number"),
    ("cannot parse float from empty string", "not a number"),
];

/// The subcommand of `command` that these arguments name, if they do.
#[must_use]
pub fn subcommand<'a>(command: &clap::Command, arguments: impl IntoIterator<Item = &'a OsStr>) -> Option<String> {
    let first = arguments.into_iter().find(|argument| !argument.as_encoded_bytes().starts_with(b"-"))?;
    command.find_subcommand(first).map(|subcommand| subcommand.get_name().to_owned())
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{Failure, Program, one_line, subcommand};
    use std::ffi::OsStr;

    use clap::{Arg, Command};

    #[test]
    fn wrong_arguments_are_told_in_one_line() {
        let command = Command::new("x").arg(Arg::new("n").long("n").value_parser(clap::value_parser!(u32)).required(true));
        let told = |arguments: &[&str]| {
            let error = command.clone().try_get_matches_from(arguments).unwrap_err();
            Program::new("x").of_arguments(&error, None).unwrap_err()
        };
        for (arguments, part) in [
            (&["x"][..], "--n"),
            (&["x", "--n", "y"], "invalid value 'y' for '--n <n>': not a whole number from 0 on"),
            (&["x", "--n", "4294967296"], "4294967296"),
            (&["x", "--m"], "'--m'"),
        ] {
            let Failure::Usage(text) = told(arguments) else { panic!("wrong arguments are usage") };
            assert!(text.contains(part) && text.ends_with("(see x --help)") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn the_help_of_the_subcommand_is_named() {
        let command = Command::new("x").subcommand(Command::new("go").arg(Arg::new("n").long("n")));
        let of = |arguments: &[&str]| subcommand(&command, arguments.iter().map(OsStr::new));
        assert_eq!((of(&["go", "--m"]).as_deref(), of(&["--m", "go"]).as_deref()), (Some("go"), Some("go")));
        assert_eq!((of(&["gone", "go"]), of(&[])), (None, None));
        let error = command.clone().try_get_matches_from(["x", "go", "--m"]).unwrap_err();
        let Failure::Usage(text) = Program::new("x").of_arguments(&error, Some("go")).unwrap_err() else { panic!("usage") };
        assert!(text.ends_with("(see x go --help)"), "{text}");
    }

    #[test]
    fn lines_become_one() {
        assert_eq!(one_line("a\n\n  b  \nc"), "a b c");
    }
}
