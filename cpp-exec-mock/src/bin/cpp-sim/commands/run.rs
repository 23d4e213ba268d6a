//! `cpp-sim run`: one workload through one configuration.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use cpp_exec_mock::profile::list_profiles;
use cpp_exec_mock::report::{HtmlRun, Inputs, Observer, RunReport, Timeline, run_table};
use cpp_exec_mock::sim::{Extras, Machine, Mode, Outcome, RegretMeter, Watch, simulate_with};
use cpp_sched::Config;

use crate::args::{RunArgs, SharedArgs};
use crate::failure::{Failure, note, print};
use crate::output::{Bar, JsonTarget, PageTarget};
use crate::setup::Setup;

/// Runs, and writes the result.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    if args.shared.system.list_profiles {
        return print(&list_profiles());
    }
    let target = JsonTarget::new(args.shared.json.as_deref())?;
    let page = PageTarget::new(args.page.html.as_deref())?;
    let setup = Setup::new(&args.shared)?;
    let create = |path: &Path| File::create(path).map_err(|error| Failure::file(path, &error));
    let mut journal = args.journal.as_deref().map(create).transpose()?;
    let timeline = args.timeline.as_deref().map(create).transpose()?;
    let (config, machine) = setup.system(args.mode, &args.shared)?;
    let mut timeline = timeline.map(|file| Timeline::new(file, config.stages));
    let mut seen = page.is_wanted().then(Observer::default);
    let watchers = [timeline.as_mut().map(|timeline| timeline as &mut dyn Watch), seen.as_mut().map(|seen| seen as &mut dyn Watch)];
    let extras = Extras { journal: journal.as_mut().map(|file| file as &mut dyn Write), watch: watchers.into_iter().flatten().collect() };
    let report = report_of(&setup, args.mode, &args.shared, config, &machine, extras, true)?;
    if let (Some(timeline), Some(path)) = (timeline, &args.timeline) {
        timeline.finish().map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    }
    target.write(&report, || run_table(&report))?;
    seen.map_or(Ok(()), |seen| page.write(&[HtmlRun::new(report, seen)]))
}

/// One run of a mode, watched for a page with plots if there is somebody to watch it.
pub(crate) fn report(setup: &Setup, mode: Mode, args: &SharedArgs, seen: Option<&mut Observer>) -> Result<RunReport, Failure> {
    let (config, machine) = setup.system(mode, args)?;
    let watch = seen.map(|seen| seen as &mut dyn Watch).into_iter().collect();
    report_of(setup, mode, args, config, &machine, Extras { watch, ..Extras::default() }, true)
}

/// One run of a configuration and a machine; `show` = with a bar on a terminal.
pub(crate) fn report_of(
    setup: &Setup,
    mode: Mode,
    args: &SharedArgs,
    config: Config,
    machine: &Machine,
    mut extras: Extras<'_>,
    show: bool,
) -> Result<RunReport, Failure> {
    let mut regret = machine.table.is_none().then(|| RegretMeter::new(machine));
    // Borrowed anew, for the time of this run.
    let mut watch: Vec<&mut dyn Watch> = regret.as_mut().map(|regret| regret as &mut dyn Watch).into_iter().collect();
    for other in &mut extras.watch {
        watch.push(&mut **other);
    }
    let journal = extras.journal.as_mut().map(|journal| &mut **journal as &mut dyn Write);
    let extras = Extras { journal, watch };
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
    let report = RunReport::new(&inputs, &outcome);
    Ok(match regret {
        Some(regret) => report.with_regret(regret.regret()),
        None => report,
    })
}

fn tell_rejections(mode: Mode, outcome: &Outcome) {
    for (reason, rejection) in &outcome.rejected {
        note(&format!("{mode}: {} requests rejected ({reason}), the first: {}", rejection.count, rejection.first));
    }
}
