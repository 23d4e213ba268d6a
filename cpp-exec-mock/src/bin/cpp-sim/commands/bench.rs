//! `cpp-sim bench`: how fast the scheduler itself is on this machine.

use std::num::NonZeroU32;
use std::path::PathBuf;

use allocation_counter::measure;
use clap::Args;
use cpp_exec_mock::bench::{Memory, all};
use cpp_exec_mock::report::bench_table;

use crate::failure::Failure;
use crate::output::JsonTarget;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct BenchArgs {
    /// Steps that a median is taken over.
    #[arg(long, value_name = "N", default_value = "300")]
    steps: NonZeroU32,
    /// Writes the figures as JSON, to a file or (-) to stdout instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measures, and writes the figures.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let target = JsonTarget::new(args.json.as_deref())?;
    if cfg!(debug_assertions) {
        eprintln!("cpp-sim was built without optimisation: these are not its times (cargo run --release -- bench)");
    }
    let bench = all(args.steps.get(), |work| {
        let info = measure(work);
        Memory { allocations: info.count_total, bytes_kept: info.bytes_current }
    });
    target.write(&bench, || bench_table(&bench))
}
