//! `cpp-sim replay`: a run again, from the journal of its inputs.

use cpp_sched::journal::{Replay, replay};

use crate::args::ReplayArgs;
use crate::failure::{Failure, print};

/// Runs the journal and tells whether every batch is what it was: exit 0 = yes, 1 = no, 2 = it cannot be read.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let bytes = std::fs::read(&args.file).map_err(|error| Failure::file(&args.file, &error))?;
    let Replay { inputs, batches, digest, difference, .. } =
        replay(&bytes).map_err(|error| Failure::Usage(format!("{}: {error}", args.file.display())))?;
    match difference {
        None => print(&format!("{inputs} inputs, {batches} batches as in the journal, decisions {digest}\n")),
        Some(difference) => {
            Err(Failure::Failed(format!("{}: after {inputs} inputs and {batches} batches: {difference}", args.file.display())))
        }
    }
}
