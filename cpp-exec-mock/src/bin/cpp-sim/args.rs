//! The command line: options that commands share, and what they mean.

mod scheduler;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use cpp_exec_mock::pipeline::{Granularity, Scheduling, Transfer};
use cpp_exec_mock::sim::{FaultError, FaultSpec, Mode};
use cpp_exec_mock::workload::{Format, TimeScale, parse_duration};

use scheduler::named;
pub(crate) use scheduler::{ChunkingKind, SchedulerArgs};

use crate::commands::bench::BenchArgs;
use crate::commands::calibrate::CalibrateArgs;
use crate::commands::plan::PlanArgs;
use crate::commands::pools::PoolsArgs;
use crate::commands::sweep::SweepArgs;
use crate::setup::DEFAULT_PROFILE;

/// Chunked pipeline parallelism (CPP) of LLM inference in virtual time: a workload through the scheduler and a simulated pipeline.
///
/// Without a command: a demonstration. Results go to stdout, warnings and progress to stderr.
/// Exit status: 0 = done, 1 = the run failed, 2 = bad arguments or a bad file.
#[derive(Debug, Parser)]
#[command(name = "cpp-sim", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// One workload through one configuration.
    Run(RunArgs),
    /// One workload through several modes, side by side.
    Compare(CompareArgs),
    /// Whole batches, requests or chunks through the stages, with decisions and transfers that block or do not: 12 runs, idle time by cause.
    Granularity(GranularityArgs),
    /// A pool of stages for prompts and one for outputs, with KV sent between them, against the same devices for both.
    Pools(PoolsArgs),
    /// Many runs over a grid or a list of options, in parallel and resumable; finds the heaviest load that meets an SLO.
    Sweep(SweepArgs),
    /// A cost model from a table of measured times, and where it cannot be trusted.
    Calibrate(CalibrateArgs),
    /// How one prompt, or R equal ones, would be cut, against the optimum; prints one JSON object.
    Plan(PlanArgs),
    /// A conformance scenario; prints its log, one JSON object a line.
    Scenario(ScenarioArgs),
    /// How fast the scheduler itself is on this machine: steps, queues, prompts, memory.
    Bench(BenchArgs),
    /// Runs a journal of inputs again and compares every batch with what it was; exit 1 if one differs.
    Replay(ReplayArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// The journal, as `run --journal` writes it.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct RunArgs {
    /// serial, request, chunk or cpp: the defaults of --pipelining, --chunking, --balance and --async.
    #[arg(long, value_name = "MODE", default_value_t = Mode::Cpp)]
    pub(crate) mode: Mode,
    /// Writes every input of the scheduler to a file, for `replay`.
    #[arg(long, value_name = "OUT")]
    pub(crate) journal: Option<PathBuf>,
    /// Writes a timeline for Perfetto or chrome://tracing: one track a stage, batches and idle time by cause.
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    #[command(flatten)]
    pub(crate) shared: SharedArgs,
}

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct CompareArgs {
    /// The modes, separated by commas, four at most: serial, request, chunk, cpp.
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_values_t = Mode::ALL)]
    pub(crate) modes: Vec<Mode>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    #[command(flatten)]
    pub(crate) shared: SharedArgs,
}

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct GranularityArgs {
    /// serial, request, chunk or cpp: the defaults of the scheduler.
    #[arg(long, value_name = "MODE", default_value_t = Mode::Chunk)]
    pub(crate) mode: Mode,
    #[command(flatten)]
    pub(crate) shared: SharedArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ScenarioArgs {
    /// The scenario, a JSON file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where the log goes; default: stdout.
    #[arg(long, value_name = "OUT")]
    pub(crate) log: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct SharedArgs {
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) system: SystemArgs,
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    #[command(flatten)]
    pub(crate) scheduler: SchedulerArgs,
    /// Writes everything measured as JSON, to a file or (-) to stdout instead of the table.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) json: Option<PathBuf>,
}

/// What `run` and `compare` may write besides.
#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct PageArgs {
    /// Writes a report with plots: one HTML page that needs nothing else.
    #[arg(long, value_name = "FILE", alias = "report")]
    pub(crate) html: Option<PathBuf>,
}

/// Which requests arrive when.
#[derive(Args, Debug)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// A recorded trace, plain or gzip.
    #[arg(long, value_name = "FILE", conflicts_with = "synthetic")]
    pub(crate) trace: Option<PathBuf>,
    /// azure, mooncake, burstgpt, weka or jsonl; default: guessed from the content.
    #[arg(long, requires = "trace", conflicts_with = "synthetic")]
    pub(crate) format: Option<Format>,
    /// Requests drawn at random: gamma arrivals, log-normal lengths.
    #[arg(long)]
    pub(crate) synthetic: bool,
    /// Requests of a synthetic workload.
    #[arg(long, value_name = "N", requires = "synthetic", conflicts_with = "trace")]
    pub(crate) requests: Option<u32>,
    /// Requests per second, in the mean.
    #[arg(long, value_name = "R", requires = "synthetic", conflicts_with = "trace")]
    pub(crate) rate: Option<f64>,
    /// Coefficient of variation of the gaps between arrivals; 1 = Poisson.
    #[arg(long, value_name = "CV", requires = "synthetic", conflicts_with = "trace")]
    pub(crate) burstiness: Option<f64>,
    /// Mean prompt length in tokens.
    #[arg(long, value_name = "TOKENS", requires = "synthetic", conflicts_with = "trace")]
    pub(crate) input_mean: Option<f64>,
    /// Spread of prompt lengths: standard deviation of their logarithm.
    #[arg(long, value_name = "S", requires = "synthetic", conflicts_with = "trace")]
    pub(crate) input_sigma: Option<f64>,
    /// Mean output length in tokens.
    #[arg(long, value_name = "TOKENS", requires = "synthetic", conflicts_with = "trace")]
    pub(crate) output_mean: Option<f64>,
    /// Spread of output lengths: standard deviation of their logarithm.
    #[arg(long, value_name = "S", requires = "synthetic", conflicts_with = "trace")]
    pub(crate) output_sigma: Option<f64>,
    /// Arrivals come in bursts of this mean length.
    #[arg(long, value_name = "TIME", requires_all = ["synthetic", "burst_off"], conflicts_with = "trace", value_parser = duration)]
    pub(crate) burst_on: Option<u64>,
    /// Mean time without arrivals between two bursts.
    #[arg(long, value_name = "TIME", requires = "burst_on", value_parser = duration)]
    pub(crate) burst_off: Option<u64>,
    /// Requests are turns of conversations, so many in the mean; each reads all that was said before.
    #[arg(long, value_name = "N", requires = "synthetic", conflicts_with = "trace")]
    pub(crate) turns: Option<f64>,
    /// Mean time from an answer to the next turn; default 10s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) think: Option<u64>,
    /// A closed loop of so many users, each with one request at a time.
    #[arg(long, value_name = "N", requires = "synthetic", conflicts_with_all = ["trace", "rate", "burstiness", "burst_on"])]
    pub(crate) users: Option<u32>,
    /// A conversation ends before it is longer than this; default 131072.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_context: Option<u32>,
    /// Clients hang up after a time of this mean, if their request has not ended.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) patience: Option<u64>,
    /// The part of clients that do so; default 1.
    #[arg(long, value_name = "PART", requires = "patience")]
    pub(crate) impatient: Option<f64>,
    /// The scheduler knows no output lengths: it is told N for each request, and a stop token ends it.
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
    /// Lays requests with one time stamp evenly over the time until the next, this long at most; 0 = they arrive together.
    #[arg(long, value_name = "TIME", requires = "trace", conflicts_with = "synthetic", value_parser = duration)]
    pub(crate) spread_ticks: Option<u64>,
    /// The first N requests alone.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Arrival times are multiplied by this: 0.5 = twice the load.
    #[arg(long, value_name = "X", default_value_t = TimeScale::ONE)]
    pub(crate) time_scale: TimeScale,
    /// Seed of everything drawn at random.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
}

/// The machine.
#[derive(Args, Debug)]
#[command(next_help_heading = "System")]
pub(crate) struct SystemArgs {
    /// A model on a machine: a built-in name, or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT_PROFILE)]
    pub(crate) profile: String,
    /// Shows the built-in profiles and ends.
    #[arg(long)]
    pub(crate) list_profiles: bool,
    /// Pipeline stages.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) stages: Option<u32>,
    /// First token wanted within so many seconds; for goodput, edf and lars.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_to_ns)]
    pub(crate) slo_ttft: Option<u64>,
    /// Seconds per output token after the first, at most; for goodput.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_to_ns)]
    pub(crate) slo_tpot: Option<u64>,
}

/// The pipeline: what a batch meets on its way.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Pipeline (times: default from the profile)")]
pub(crate) struct PipelineArgs {
    /// Layers on each stage, as many numbers as stages; default: even.
    #[arg(long, value_name = "N,N,..", value_delimiter = ',')]
    pub(crate) layers: Option<Vec<u32>>,
    /// Measured times of one stage in place of the profile's costs: CSV as for `calibrate`, with a row for every pair of sizes.
    #[arg(long, value_name = "FILE.csv", conflicts_with_all = ["layers", "tp"])]
    pub(crate) stage_table: Option<PathBuf>,
    /// Devices that share each layer: all costs of a stage but the constant are divided by it, and two all-reduces a layer are added.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) tp: Option<u32>,
    /// Latency of one step of an all-reduce; default 5us.
    #[arg(long, value_name = "TIME", requires = "tp", value_parser = duration)]
    pub(crate) tp_latency: Option<u64>,
    /// Bytes per second between two devices of a stage; default 150e9.
    #[arg(long, value_name = "N", requires = "tp")]
    pub(crate) tp_bytes_per_s: Option<u64>,
    /// Nanoseconds from a stage to the next, whatever the size.
    #[arg(long, value_name = "NS")]
    pub(crate) hop_latency_ns: Option<u64>,
    /// Bytes per second from a stage to the next; 0 = a hop takes its latency alone.
    #[arg(long, value_name = "N")]
    pub(crate) hop_bytes_per_s: Option<u64>,
    /// overlapped or blocking: whether a stage that sends stands still.
    #[arg(long, value_name = "HOW", value_parser = named::<Transfer>, default_value = "overlapped")]
    pub(crate) sends: Transfer,
    /// overlapped or blocking: whether a stage must be idle to receive.
    #[arg(long, value_name = "HOW", value_parser = named::<Transfer>, default_value = "overlapped")]
    pub(crate) receives: Transfer,
    /// Pieces that fit in front of a stage; default: any number.
    #[arg(long, value_name = "Q", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stage_buffer: Option<u32>,
    /// ahead or sync: whether batches are decided while stage 0 is at work.
    #[arg(long, value_name = "WHEN", value_parser = named::<Scheduling>, default_value = "ahead")]
    pub(crate) scheduling: Scheduling,
    /// CPU time of one decision, in nanoseconds.
    #[arg(long, value_name = "NS")]
    pub(crate) scheduler_ns: Option<u64>,
    /// batch, request or chunk: what passes the stages as one; each piece pays the constant per batch.
    #[arg(long, value_name = "WHAT", value_parser = named::<Granularity>, default_value = "batch")]
    pub(crate) granularity: Granularity,
    /// CPU time to prepare one piece, in nanoseconds; default 0.
    #[arg(long, value_name = "NS")]
    pub(crate) piece_ns: Option<u64>,
    /// What sampling adds to the last stage's time, in nanoseconds; default 0.
    #[arg(long, value_name = "NS")]
    pub(crate) sampling_ns: Option<u64>,
    /// From the last stage back to the scheduler, in nanoseconds.
    #[arg(long, value_name = "NS")]
    pub(crate) return_ns: Option<u64>,
}

/// What goes wrong.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Faults")]
pub(crate) struct FaultArgs {
    /// kind=stall|slow:X|die|lose|hang, stage=S, at=TIME or every=TIME (at random, until=TIME), for=TIME; separated by commas. May be repeated.
    #[arg(long, value_name = "KEY=VALUE,..", value_parser = fault)]
    pub(crate) fault: Vec<FaultSpec>,
    /// A file with one such fault a line; # begins a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,
    /// How long until a stage that died, a lost result or a transfer that hangs is noticed; default 1s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) fault_timeout: Option<u64>,
}

/// Reads a fault; the parser of arguments names its text.
fn fault(text: &str) -> Result<FaultSpec, String> {
    text.parse().map_err(|error: FaultError| error.problem().to_owned())
}

/// Reads a time with a unit.
pub(crate) fn duration(text: &str) -> Result<u64, String> {
    parse_duration(text).ok_or_else(|| "not a time such as 10s, 500ms, 20us, 9ns, or seconds".to_owned())
}

/// Reads seconds, to whole nanoseconds.
fn seconds_to_ns(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.0..=1e9).contains(&seconds) {
        return Err("must be between 0 and 1e9 seconds".to_owned());
    }
    Ok((seconds * 1e9).round() as u64)
}
