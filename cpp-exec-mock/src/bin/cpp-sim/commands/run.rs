//! `cpp-sim run`: one workload through one configuration.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use cpp_exec_mock::profile::list_profiles;
use cpp_exec_mock::report::{Inputs, RunReport, Timeline, run_table};
use cpp_exec_mock::sim::{Extras, Machine, Mode, Outcome, Watch, simulate_with};
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
    let create = |path: &Path| File::create(path).map_err(|error| Failure::file(path, &error));
    let mut journal = args.journal.as_deref().map(create).transpose()?;
    let timeline = args.timeline.as_deref().map(create).transpose()?;
    let (config, machine) = setup.system(args.mode, &args.shared)?;
    let mut timeline = timeline.map(|file| Timeline::new(file, config.stages));
    let extras = Extras {
        journal: journal.as_mut().map(|file| file as &mut dyn Write),
        watch: timeline.as_mut().map(|timeline| timeline as &mut dyn Watch).into_iter().collect(),
    };
    let report = report_of(&setup, args.mode, &args.shared, config, &machine, extras, true)?;
    if let (Some(timeline), Some(path)) = (timeline, &args.timeline) {
        timeline.finish().map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    }
    target.write(&report, || run_table(&report))
}

/// One run of a mode.
pub(crate) fn report(setup: &Setup, mode: Mode, args: &SharedArgs) -> Result<RunReport, Failure> {
    let (config, machine) = setup.system(mode, args)?;
    report_of(setup, mode, args, config, &machine, Extras::default(), true)
}

/// One run of a configuration and a machine; `show` = with a bar on a terminal.
pub(crate) fn report_of<'a>(
    setup: &'a Setup,
    mode: Mode,
    args: &SharedArgs,
    config: Config,
    machine: &'a Machine,
    extras: Extras<'a>,
    show: bool,
) -> Result<RunReport, Failure> {
    let mut bar = show.then(|| Bar::new(mode.name()));
    let mut progress = |progress| bar.iter_mut().for_each(|bar| bar.show(progress));
    let outcome = simulate_with(&setup.workload, machine, config, setup.slo, &mut progress, extras)?;
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
