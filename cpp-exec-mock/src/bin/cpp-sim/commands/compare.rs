//! `cpp-sim compare`: one workload through several modes, side by side.

use std::collections::HashSet;

use cpp_exec_mock::profile::list_profiles;
use cpp_exec_mock::report::{CompareReport, compare_table};

use super::run;
use crate::args::CompareArgs;
use crate::failure::{Failure, note, print};
use crate::output::JsonTarget;
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
    let setup = Setup::new(&args.shared)?;
    let fixed = setup.fixed_by_file();
    if !fixed.is_empty() {
        note(&format!("the configuration file sets {} for all modes", fixed.join(", ")));
    }
    let mut reports = Vec::with_capacity(args.modes.len());
    for &mode in &args.modes {
        reports.push(run::report(&setup, mode, &args.shared)?);
    }
    target.write(&CompareReport::new(&reports), || compare_table(&reports))
}
