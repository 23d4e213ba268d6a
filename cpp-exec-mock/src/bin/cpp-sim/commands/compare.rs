//! `cpp-sim compare`: one workload through several modes, side by side.

use std::collections::HashSet;

use cpp_exec_mock::profile::list_profiles;
use cpp_exec_mock::report::{CompareReport, HtmlRun, Observer, compare_table};

use super::run;
use crate::args::CompareArgs;
use crate::failure::{Failure, note, print};
use crate::output::{JsonTarget, PageTarget};
use crate::setup::Setup;

/// Runs all modes, and writes the results.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    if args.shared.system.list_profiles {
        return print(&list_profiles());
    }
    let mut seen = HashSet::new();
    if let Some(twice) = args.modes.iter().find(|&&mode| !seen.insert(mode)) {
        return Err(Failure::Usage(format!("--modes names {twice} twice")));
    }
    let target = JsonTarget::new(args.shared.json.as_deref())?;
    let page = PageTarget::new(args.page.html.as_deref())?;
    let setup = Setup::new(&args.shared)?;
    let fixed = setup.fixed_by_file();
    if !fixed.is_empty() {
        note(&format!("the configuration file sets {} for all modes", fixed.join(", ")));
    }
    let (mut reports, mut pages) = (Vec::with_capacity(args.modes.len()), Vec::new());
    for &mode in &args.modes {
        let mut seen = page.is_wanted().then(Observer::default);
        let report = run::report(&setup, mode, &args.shared, seen.as_mut())?;
        pages.extend(seen.map(|seen| HtmlRun::new(report.clone(), seen)));
        reports.push(report);
    }
    target.write(&CompareReport::new(&reports), || compare_table(&reports))?;
    page.write(&pages)
}
