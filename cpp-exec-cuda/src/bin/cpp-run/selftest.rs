//! `cpp-run selftest`: a GPU's correctness and speed, as one table.

use crate::args::SelftestArgs;
use crate::failure::Failure;

#[cfg(not(all(feature = "cuda", unix)))]
pub(crate) fn run(_: &SelftestArgs) -> Result<(), Failure> {
    Err(Failure::Usage("this cpp-run was built without CUDA".to_owned()))
}

#[cfg(all(feature = "cuda", unix))]
pub(crate) fn run(args: &SelftestArgs) -> Result<(), Failure> {
    use std::sync::Arc;

    use cpp_exec_cuda::cuda::{Gpu, KernelCache, Survey};
    use cpp_exec_cuda::selftest::{self, Report, SelftestOptions, TestModel};

    use crate::device::folders;
    use crate::failure::{note, print};

    let folders = folders(&args.cuda);
    let found = Survey::look(&folders);
    if let Some(why) = found.why_not() {
        return Err(Failure::Usage(format!("{why}; a selftest needs a GPU")));
    }
    print(&format!("cpp-run {}\n{found}\n", env!("CARGO_PKG_VERSION")))?;
    let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    let gpu = Gpu::open(args.gpu, &folders, KernelCache::standard().as_ref()).map_err(|error| usage(&error))?;
    let options = SelftestOptions { tiny: args.tiny, seed: args.seed, batches: args.batches, graphs: !args.cuda.no_graphs };
    let model = Arc::new(TestModel::new("model", args.seed).map_err(|error| usage(&error))?);

    let mut report = Report::default();
    note("kernels");
    report.lines.extend(selftest::kernels(&gpu, &options));
    note("stages as threads");
    report.lines.extend(selftest::stages(&gpu, &model));
    note("stages as processes");
    report.lines.extend(crate::selftest_processes::lines(args, &model));
    report.lines.extend(selftest::speed(&gpu, &options, &mut |what| note(what)));
    print(&report.to_string())?;
    match report.failed() {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} checks have failed"))),
    }
}
