//! `cpp-sim run`: one workload through one configuration.

use std::fs::File;
use std::io::Write;

use cpp_exec_mock::profile::list_profiles;
use cpp_exec_mock::report::{Inputs, RunReport, run_table};
use cpp_exec_mock::sim::{Machine, Mode, Outcome, simulate_with_journal};
use cpp_sched::Config;

use crate::args::{RunArgs, SharedArgs};
use crate::failure::{Failure, note, print};
use crate::output::{Bar, JsonTarget};
use crate::setup::Setup;

/// Runs, and writes the result.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    if args.shared.system.list_profiles {
        return print(&list_profiles());
    }
    let target = JsonTarget::new(args.shared.json.as_deref())?;
    let setup = Setup::new(&args.shared)?;
    let mut journal = args.journal.as_deref().map(|path| File::create(path).map_err(|error| Failure::file(path, &error))).transpose()?;
    let report = report(&setup, args.mode, &args.shared, journal.as_mut().map(|file| file as &mut dyn Write))?;
    target.write(&report, || run_table(&report))
}

/// One run of a mode.
pub(crate) fn report(setup: &Setup, mode: Mode, args: &SharedArgs, journal: Option<&mut dyn Write>) -> Result<RunReport, Failure> {
    let (config, machine) = setup.system(mode, args)?;
    report_of(setup, mode, args, config, &machine, journal)
}

/// One run of a configuration and a machine.
pub(crate) fn report_of(
    setup: &Setup,
    mode: Mode,
    args: &SharedArgs,
    config: Config,
    machine: &Machine,
    journal: Option<&mut dyn Write>,
) -> Result<RunReport, Failure> {
    let mut bar = Bar::new(mode.name());
    let outcome = simulate_with_journal(&setup.workload, machine, config, setup.slo, &mut |progress| bar.show(progress), journal)?;
    drop(bar);
    tell_rejections(mode, &outcome);
    let inputs = Inputs {
        workload: &setup.workload,
        time_scale: args.workload.time_scale,
        seed: args.workload.seed,
        profile: &setup.profile,
        machine,
        mode,
        slo: setup.slo,
    };
    Ok(RunReport::new(&inputs, &outcome))
}

fn tell_rejections(mode: Mode, outcome: &Outcome) {
    for (reason, rejection) in &outcome.rejected {
        note(&format!("{mode}: {} requests rejected ({reason}), the first: {}", rejection.count, rejection.first));
    }
}
