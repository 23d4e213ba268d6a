//! Plays one scenario in process and says everything that is wrong with it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cpp_exec_mock::conformance::{Runner, Scenario};

use crate::oracle;

/// The log of a scenario, with the scheduler's invariants checked after every call.
///
/// # Errors
/// The scenario is bad, the run failed, or the scheduler panicked: one line.
pub fn log_of(scenario: &str) -> Result<String, String> {
    let parsed = Scenario::parse(scenario).map_err(|error| format!("bad scenario: {error}"))?;
    let run = || Runner::new(&parsed, Vec::new())?.check_invariants(true).run();
    let log = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => done.map_err(|error| error.to_string())?,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
            return Err(format!("panic: {}", text.unwrap_or("without a message")));
        }
    };
    String::from_utf8(log).map_err(|error| error.to_string())
}

/// Everything that is wrong with a good scenario's run: its end, a second log that differs, and the oracle's violations.
#[must_use]
pub fn problems(scenario: &str) -> Vec<String> {
    match (log_of(scenario), log_of(scenario)) {
        (Ok(log), Ok(second)) if log == second => oracle::judge(scenario, &log),
        (Ok(_), Ok(_)) => vec!["two runs, two logs".to_owned()],
        (Err(error), _) | (_, Err(error)) => vec![error],
    }
}
