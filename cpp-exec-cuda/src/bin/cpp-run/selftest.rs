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
    use cpp_exec_cuda::selftest::{self, SelftestOptions, TestModel};

    use crate::device::folders;
    use crate::failure::print;

    let folders = folders(&args.cuda);
    let found = Survey::look(&folders);
    if let Some(why) = found.why_not() {
        return Err(Failure::Usage(format!("{why}; a selftest needs a GPU")));
    }
    print(&format!("cpp-run {}\n{found}\n", env!("CARGO_PKG_VERSION")))?;
    let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    let gpu = Gpu::open(args.gpu, &folders, KernelCache::standard().as_ref()).map_err(|error| usage(&error))?;
    let options = SelftestOptions { tiny: args.tiny, seed: args.seed, batches: args.batches, graphs: !args.graphs.no_graphs };
    let model = Arc::new(TestModel::new("model", args.seed).map_err(|error| usage(&error))?);

    let mut told = Told::default();
    selftest::kernels(&gpu, &options, &mut told);
    selftest::stages(&gpu, &model, &mut told);
    crate::selftest_processes::lines(args, &model, found.nccl.as_ref().err().map(String::as_str), &mut told);
    selftest::speed(&gpu, &options, &mut told);
    let report = told.0;
    print(&report.to_string())?;
    match report.failed() {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} checks have failed"))),
    }
}

/// Each line is told on stderr as it comes, and kept for the table.
#[cfg(all(feature = "cuda", unix))]
#[derive(Debug, Default)]
struct Told(cpp_exec_cuda::selftest::Report);

#[cfg(all(feature = "cuda", unix))]
impl cpp_exec_cuda::selftest::Listener for Told {
    fn begins(&mut self, what: &str) {
        crate::failure::note(what);
    }

    fn line(&mut self, line: cpp_exec_cuda::selftest::Line) {
        crate::failure::note(&format!("  {line}"));
        self.0.lines.push(line);
    }
}
