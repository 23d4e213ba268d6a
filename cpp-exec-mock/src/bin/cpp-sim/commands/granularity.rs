//! `cpp-sim granularity`: what passes the stages as one, with decisions and transfers that block or do not.

use cpp_exec_mock::pipeline::{Granularity, Scheduling, Transfer};
use cpp_exec_mock::profile::list_profiles;
use cpp_exec_mock::report::{GranularityReport, GranularityRun, granularity_table};
use cpp_exec_mock::sim::Extras;

use super::run;
use crate::args::{GranularityArgs, SharedArgs};
use crate::failure::{Failure, print};
use crate::output::JsonTarget;
use crate::setup::{DEFAULT_STAGES, Setup};

/// The workload where none is given: prompts of which a batch holds several, and short answers, so that a batch has parts to split.
fn builtin(args: &mut SharedArgs) {
    let workload = &mut args.workload;
    workload.synthetic = true;
    workload.requests.get_or_insert(400);
    workload.rate.get_or_insert(10.0);
    workload.input_mean.get_or_insert(1024.0);
    workload.output_mean.get_or_insert(8.0);
    "demo".clone_into(&mut args.system.profile);
    args.pipeline.piece_ns.get_or_insert(500_000);
    args.scheduler.max_batch_tokens.get_or_insert(2048);
    let stages = args.system.stages.unwrap_or(DEFAULT_STAGES);
    args.scheduler.max_in_flight.get_or_insert(stages + 1);
}

/// Runs all twelve, and writes the results.
pub(crate) fn run(mut args: GranularityArgs) -> Result<(), Failure> {
    if args.shared.system.list_profiles {
        return print(&list_profiles());
    }
    if args.shared.workload.trace.is_none() && !args.shared.workload.synthetic {
        builtin(&mut args.shared);
    }
    let shared = &args.shared;
    let target = JsonTarget::new(shared.json.as_deref())?;
    let setup = Setup::new(shared)?;
    let (config, machine) = setup.system(args.mode, shared)?;
    let mut runs = Vec::new();
    for scheduling in [Scheduling::Sync, Scheduling::Ahead] {
        for transfers in [Transfer::Blocking, Transfer::Overlapped] {
            for granularity in [Granularity::Batch, Granularity::Request, Granularity::Chunk] {
                let mut machine = machine.clone();
                (machine.scheduling, machine.granularity) = (scheduling, granularity);
                (machine.links.sends, machine.links.receives) = (transfers, transfers);
                let report = run::report_of(&setup, args.mode, shared, config, &machine, Extras::default(), true)?;
                runs.push(GranularityRun { scheduling, transfers, granularity, report });
            }
        }
    }
    let report = GranularityReport { runs };
    target.write(&report, || granularity_table(&report))
}
