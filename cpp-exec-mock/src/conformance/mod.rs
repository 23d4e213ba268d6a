//! The conformance runner: plays a scenario on the scheduler with a stand-in model whose every output depends on the whole KV cache that it
//! reads, and writes what happened as one JSON object a line.
//!
//! The format of scenarios and logs is `tests/conformance/FORMAT.md`; `check.py` beside it judges a log. The parts:
//!
//! | module | what |
//! |---|---|
//! | [`scenario`] | the strict parser |
//! | [`model`] | paged memory and the model that reads it |
//! | [`runner`] | the script, call by call |
//! | [`log`] | the lines |
//!
//! ```
//! use cpp_exec_mock::conformance::{Runner, Scenario};
//! let scenario = Scenario::parse(r#"{"config": {}, "requests": [{"id": "A", "prompt": [{"seed": 65, "len": 20}], "max_tokens": 2}]}"#)?;
//! assert_eq!(scenario.requests[0].prompt.len(), 20);
//! let error = Scenario::parse(r#"{"config": {"stage": 4}, "requests": []}"#).unwrap_err();
//! assert_eq!(error.key, "config.stage");
//! # Ok::<(), cpp_exec_mock::conformance::ScenarioError>(())
//! ```

mod config;
mod fields;
pub mod log;
pub mod model;
pub mod runner;
pub mod scenario;
#[cfg(test)]
mod tests;

pub use fields::ScenarioError;
pub use runner::{RunError, Runner};
pub use scenario::Scenario;
