//! `cpp-sim` alone: what chunked pipeline parallelism does to a built-in workload, in a few seconds and without any file.

use cpp_exec_mock::profile::Profile;
use cpp_exec_mock::report::{Inputs, RunReport, compare_table};
use cpp_exec_mock::sim::{Machine, Mode, Slo, simulate};
use cpp_exec_mock::workload::{Synthetic, TimeScale, Workload};

use crate::failure::{Failure, print};
use crate::setup::DEFAULT_STAGES;

/// Mostly short prompts, and now and then one of tens of thousands of tokens.
const WORKLOAD: Synthetic = Synthetic {
    requests: 600,
    rate: 3.0,
    burstiness: 1.0,
    input_mean: 4096.0,
    input_sigma: 1.4,
    output_mean: 100.0,
    output_sigma: 0.8,
    bursts: None,
    sessions: None,
    seed: 1,
};

/// Small enough that queues can be seen.
const PROFILE: &str = "demo";

const NEXT: &str = "\
serial   one batch in the pipeline at a time
request  other requests fill the pipeline; the next chunk of a prompt waits for the last one
chunk    the chunks of one prompt follow each other through the stages
cpp      chunk, with chunks cut by cost and decodes spread over the batches by cost

Try next:
  cpp-sim run --synthetic --rate 8 --input-mean 8192 --mode chunk   one run in detail
  cpp-sim compare --trace FILE --modes request,chunk,cpp            your own requests
  cpp-sim compare --synthetic --stages 8 --json -                   for other programs
  cpp-sim run --list-profiles                                       models and machines
  cpp-sim help                                                      all commands and options
";

/// Runs the demonstration.
pub(crate) fn run() -> Result<(), Failure> {
    let broken = |error: &dyn std::fmt::Display| Failure::Failed(format!("built-in workload: {error}"));
    let workload = Workload::synthetic(&WORKLOAD).map_err(|error| broken(&error))?;
    let profile = Profile::find(PROFILE).map_err(|error| broken(&error))?;
    let mut reports = Vec::new();
    for mode in Mode::ALL {
        let mut config = profile.config(DEFAULT_STAGES).map_err(|error| broken(&error))?;
        mode.apply(&mut config);
        let machine = Machine::new(&profile, DEFAULT_STAGES).map_err(|error| broken(&error))?;
        let slo = Slo::default();
        let outcome = simulate(&workload, &machine, config, slo, &mut |_| {})?;
        let (machine, profile) = (&machine, &profile);
        let inputs = Inputs { workload: &workload, time_scale: TimeScale::ONE, seed: WORKLOAD.seed, profile, machine, mode, slo };
        reports.push(RunReport::new(&inputs, &outcome));
    }
    print(&format!("{}\n{NEXT}", compare_table(&reports)))
}
