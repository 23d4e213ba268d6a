//! `cpp-sim plan`: how one prompt, or R equal ones, would be cut, beside the optimum and the bound.

use std::collections::BTreeMap;

use clap::Args;
use cpp_exec_mock::pipeline::{Layout, layout_times};
use cpp_exec_mock::planning::{Problem, optimum, plan};
use cpp_exec_mock::profile::Profile;
use cpp_sched::{Attos, CostModel};
use serde::Serialize;

use crate::failure::{Failure, note, print};

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct PlanArgs {
    /// Tokens of the prompt.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(Problem::MOST_TOKENS)))]
    prompt: u32,
    /// How many of them are in the prefix cache.
    #[arg(long, value_name = "H", default_value_t = 0)]
    cached: u32,
    /// Equal prompts, all there from the start.
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Pipeline stages.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=4096))]
    stages: u32,
    /// Cost of a batch on one stage, in nanoseconds: c0=..,c1=..,c2=..,c4=.. (c3 and c5 concern decodes).
    #[arg(long, value_name = "c0=..,c1=..", conflicts_with = "profile")]
    cost: Option<String>,
    /// A model on a machine, in place of --cost: a built-in profile or a TOML file.
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Chunks end on a multiple of this many tokens.
    #[arg(long, value_name = "A", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    align: u32,
    /// Chunks of so many tokens, in place of the kernel's choice.
    #[arg(long, value_name = "X", value_parser = clap::value_parser!(u32).range(1..))]
    fixed: Option<u32>,
    /// Tokens of a batch at most; default: no limit, as the optimum has none. `run` has the limit of its profile.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_batch_tokens: Option<u32>,
    /// Adds `layouts`: what these batches take with one group of layers a device, and with two, interleaved or V-shaped; each group pays c0.
    #[arg(long, conflicts_with = "max_in_flight")]
    layouts: bool,
    /// Nanoseconds between two devices, for --layouts.
    #[arg(long, value_name = "NS", default_value_t = 0, requires = "layouts")]
    hop_ns: u64,
    /// Batches in flight at most; default: no limit.
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..))]
    max_in_flight: Option<u32>,
}

#[derive(Serialize)]
struct Report {
    chunks: Vec<u32>,
    target_ns: u64,
    makespan_ns: u64,
    bound_ns: u64,
    oracle_ns: u64,
    regret: f64,
    bubble: f64,
    batches: usize,
    oracle_batches: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    layouts: Option<BTreeMap<&'static str, LayoutReport>>,
}

/// The batches of the plan on one layout.
#[derive(Serialize)]
struct LayoutReport {
    makespan_ns: u64,
    /// Mean part of the makespan in which a device is idle.
    idle: f64,
    /// Hops of a batch from one device to another.
    hops: usize,
}

/// The same batches on every layout: a group of half the layers takes half of all but c0.
fn layouts(batches: &[Attos], c0: Attos, stages: u32, hop_ns: u64) -> BTreeMap<&'static str, LayoutReport> {
    let report = |layout: Layout| {
        let devices = layout.devices(stages);
        let group = |batch: &Attos| Attos(c0.0 + (batch.0.saturating_sub(c0.0)) / u128::from(layout.groups())).to_ns();
        let times = layout_times(&devices, &batches.iter().map(group).collect::<Vec<_>>(), hop_ns);
        let makespan_ns = times.makespan_ns();
        let idle = |&busy: &u64| if makespan_ns == 0 { 0.0 } else { 1.0 - busy as f64 / makespan_ns as f64 };
        let idle = times.busy_ns.iter().map(idle).sum::<f64>() / times.busy_ns.len().max(1) as f64;
        let hops = devices.windows(2).filter(|pair| pair[0] != pair[1]).count();
        (layout.name(), LayoutReport { makespan_ns, idle, hops })
    };
    Layout::ALL.into_iter().map(report).collect()
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let (cost, budget) = cost(args)?;
    let mut problem = Problem::new(args.prompt, args.stages, cost);
    problem.cached = args.cached;
    problem.requests = args.requests;
    problem.align = args.align;
    problem.fixed = args.fixed;
    problem.max_batch_tokens = args.max_batch_tokens;
    problem.max_in_flight = args.max_in_flight;
    let ours = plan(&problem).map_err(|error| Failure::Usage(error.to_string()))?;
    let longest = ours.chunks.iter().copied().max().unwrap_or(0);
    if let Some(budget) = budget.filter(|&budget| budget < longest && args.max_batch_tokens.is_none()) {
        note(&format!(
            "chunks of {longest} tokens are planned, `run` with this profile has at most {budget} in a batch: --max-batch-tokens {budget} plans for that"
        ));
    }
    let best = optimum(&problem);
    let report = Report {
        target_ns: ours.target.to_ns(),
        makespan_ns: ours.makespan.to_ns(),
        bound_ns: problem.bound().to_ns(),
        oracle_ns: best.makespan.to_ns(),
        // Without any cost all plans take no time at all, and none is worse than another.
        regret: if best.makespan.0 == 0 { 0.0 } else { ours.makespan.0 as f64 / best.makespan.0 as f64 - 1.0 },
        bubble: ours.bubble,
        batches: ours.batches.len(),
        oracle_batches: best.batches,
        layouts: args.layouts.then(|| layouts(&ours.batches, cost.c0, args.stages, args.hop_ns)),
        chunks: ours.chunks,
    };
    let json = serde_json::to_string(&report).map_err(|error| Failure::Failed(error.to_string()))?;
    print(&format!("{json}\n"))
}

/// The cost of a batch, and how many tokens a profile allows in one.
fn cost(args: &PlanArgs) -> Result<(CostModel, Option<u32>), Failure> {
    let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    match (&args.cost, &args.profile) {
        (Some(text), _) => Ok((parse_cost(text)?, None)),
        (None, Some(name)) => {
            let profile = Profile::find(name).map_err(|error| usage(&error))?;
            let cost = profile.stage_cost(args.stages).map_err(|error| usage(&error))?;
            Ok((cost, Some(profile.max_batch_tokens)))
        }
        (None, None) => Err(Failure::Usage(
            "plan needs the cost of a batch: give --cost c0=..,c1=.. or --profile NAME|FILE (see cpp-sim plan --help)".to_owned(),
        )),
    }
}

/// Reads `c0=1e6,c1=250.5`; each coefficient at most once.
fn parse_cost(text: &str) -> Result<CostModel, Failure> {
    let wrong = |part: &str, what: &str| Failure::Usage(format!("--cost: {part:?} {what}"));
    let mut model = CostModel::default();
    let mut seen = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (name, value) = part.split_once('=').ok_or_else(|| wrong(part, "is not of the form c0=NANOSECONDS"))?;
        let coefficient = match name.trim() {
            "c0" => &mut model.c0,
            "c1" => &mut model.c1,
            "c2" => &mut model.c2,
            "c3" => &mut model.c3,
            "c4" => &mut model.c4,
            "c5" => &mut model.c5,
            _ => return Err(wrong(part, "names no coefficient: there are c0 to c5")),
        };
        if seen.contains(&name) {
            return Err(wrong(part, "is given twice"));
        }
        seen.push(name);
        match value.trim().parse::<Attos>() {
            Ok(value) if value <= Attos::MAX_COEFFICIENT => *coefficient = value,
            _ => return Err(wrong(part, "is not a number of nanoseconds from 0 to 1e12")),
        }
    }
    Ok(model)
}
