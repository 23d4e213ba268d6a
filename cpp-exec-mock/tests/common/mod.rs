//! Small machines and workloads for the tests of the simulator.
#![allow(dead_code, missing_docs, reason = "each test uses a part")]

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use cpp_exec_mock::sim::{Machine, Outcome, Slo, simulate};
use cpp_exec_mock::workload::{LoadOptions, Workload};
use cpp_sched::{Config, CostModel};

/// A file that is gone when dropped.
pub(crate) struct TempFile(pub(crate) std::path::PathBuf);

impl TempFile {
    pub(crate) fn new(suffix: &str, content: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("cpp-sim-test-{}-{}{suffix}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::File::create(&path).and_then(|mut file| file.write_all(content.as_bytes())).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A workload from lines of the format `jsonl`.
pub(crate) fn workload(lines: &str) -> Workload {
    let file = TempFile::new(".jsonl", lines);
    Workload::load(&file.0, &LoadOptions::default()).unwrap()
}

/// Requests of (arrival in seconds, prompt, output).
pub(crate) fn requests(rows: &[(f64, u32, u32)]) -> Workload {
    let lines: Vec<String> =
        rows.iter().map(|(at, input, output)| format!(r#"{{"arrival_s":{at},"input_tokens":{input},"output_tokens":{output}}}"#)).collect();
    workload(&lines.join("\n"))
}

/// `c0 + c1·X + c2·S`, in nanoseconds.
pub(crate) fn cost(c0: &str, c1: &str, c2: &str) -> CostModel {
    let mut cost = CostModel::default();
    cost.c0 = c0.parse().unwrap();
    cost.c1 = c1.parse().unwrap();
    cost.c2 = c2.parse().unwrap();
    cost
}

/// Equal stages, nothing between them, decisions in no time.
pub(crate) fn machine(stages: usize, cost: CostModel) -> Machine {
    Machine { stage_costs: vec![cost; stages], ..Machine::default() }
}

/// A configuration for as many stages, with blocks enough for anything.
pub(crate) fn config(stages: u32) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.num_blocks = 100_000;
    config
}

pub(crate) fn run(workload: &Workload, machine: &Machine, config: Config) -> Outcome {
    simulate(workload, machine, config, Slo::default(), &mut |_| {}).unwrap()
}

/// The token identity, in the numbers of a report.
pub(crate) fn balances(outcome: &Outcome) -> bool {
    let t = &outcome.tokens;
    t.balances() && t.computed - t.recomputed == t.prompt - t.cached + t.output - outcome.requests.finished
}
