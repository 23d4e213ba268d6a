//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use cpp_exec_mock::cpu::Rounding;

/// Runs real models over pipeline stages, driven by the cpp-sched scheduling kernel.
#[derive(Debug, Parser)]
#[command(name = "cpp-run", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continues prompts, or answers them, with a model of the Llama family
    Generate(Box<GenerateArgs>),
    /// Runs one stage for a leader elsewhere; a launcher starts it, see --help
    Worker(WorkerArgs),
    /// Says what this machine has, and whether a model fits
    Doctor(DoctorArgs),
    /// Tests a GPU: kernels, stages, links, aborts, then speed beside what it could be
    Selftest(SelftestArgs),
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// A GPU if there is one, else the processor; which it is is told
    Auto,
    /// GPUs of NVIDIA: a stage on each, and from the first again
    Cuda,
    /// This machine's processor
    Cpu,
}

/// Where the processor rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoundTo {
    /// Nowhere: sums and what lies between them in single precision
    F32,
    /// Where GPUs do, to be compared with one: slower, and less exact
    Bf16,
}

impl RoundTo {
    pub(crate) const fn rounding(self) -> Rounding {
        match self {
            Self::F32 => Rounding::F32,
            Self::Bf16 => Rounding::Bf16AtOpBorders,
        }
    }

    /// As `--rounding` has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// How layers are split over stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SplitBy {
    /// As many layers in each
    Even,
    /// The dearest stage as cheap as can be, the head counted
    Cost,
}

/// Which template prompts are put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Chat {
    /// The model's, if its folder has one
    Auto,
    /// None: prompts are continued as they are
    None,
    /// <|im_start|>user ... <|im_end|>
    Chatml,
    /// <|start_header_id|>user<|end_header_id|> ... <|eot_id|>
    Llama3,
}

/// What carries activations from stage to stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Links {
    /// Handed over within the process
    Channel,
    /// Local sockets; between processes their connections, through the host
    Socket,
    /// From GPU to GPU, between processes
    Nccl,
}

impl Links {
    /// As `--link` has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Socket => "socket",
            Self::Nccl => "nccl",
        }
    }
}

/// Who starts the processes of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Launcher {
    /// This command, on this machine
    Own,
    /// torchrun, Slurm, MPI or Ray: their variables say which rank this process is. Rank 0 leads, the others work
    Launched,
}

/// Where CUDA is.
#[derive(Args, Clone, Debug)]
pub(crate) struct CudaArgs {
    /// Folders with CUDA's libraries, before those of CPP_CUDA_LIB_DIR and of the system; NCCL's file by CPP_NCCL_LIB
    #[arg(long, value_name = "DIR", value_delimiter = ':')]
    pub(crate) cuda_lib_dir: Vec<PathBuf>,
}

/// How a GPU is used.
#[derive(Args, Clone, Debug)]
pub(crate) struct GraphArgs {
    /// Small decodes are launched kernel by kernel, not as CUDA graphs
    #[arg(long)]
    pub(crate) no_graphs: bool,
}

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct GenerateArgs {
    /// Folder of a Hugging Face model: config.json, *.safetensors, tokenizer.json
    #[arg(long, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// A prompt; may be given several times
    #[arg(long, value_name = "TEXT", required_unless_present = "prompts")]
    pub(crate) prompt: Vec<String>,
    /// A file with a prompt on each line
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Pipeline stages [default: 1, or as many as a launcher has started processes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) stages: Option<u32>,
    /// Each stage is a process of its own, with this to start them [without a value: own]
    #[arg(long, value_name = "LAUNCHER", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "own")]
    pub(crate) processes: Option<Launcher>,
    /// Where the leader waits for processes [default: a free port of 127.0.0.1, or MASTER_ADDR and MASTER_PORT of a launcher]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "processes")]
    pub(crate) listen: Option<SocketAddr>,
    /// Seconds in which all processes must have joined
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) join_timeout: u64,
    /// What computes
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) cuda: CudaArgs,
    #[command(flatten)]
    pub(crate) graphs: GraphArgs,
    /// Where the processor rounds
    #[arg(long, value_name = "TO", value_enum, default_value_t = RoundTo::F32)]
    pub(crate) rounding: RoundTo,
    /// How layers are split over stages
    #[arg(long, value_enum, default_value_t = SplitBy::Even)]
    pub(crate) split: SplitBy,
    /// What carries activations from stage to stage [default: channel; between processes socket]
    #[arg(long, value_enum)]
    pub(crate) link: Option<Links>,
    /// Seconds that stages may take to find each other over NCCL
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) link_timeout: u64,
    /// How often batches that were lost run again, one time after the other, before it is given up; one that comes back begins the count anew
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) retries: u32,
    /// Tokens to generate for each prompt at most
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Which template prompts are put into
    #[arg(long, value_enum, default_value_t = Chat::Auto)]
    pub(crate) chat: Chat,
    /// What logits are divided by; 0 takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature)]
    pub(crate) temperature: f32,
    /// Only so many of the most likely tokens; 0 takes all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Only the most likely tokens that have this probability together, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    pub(crate) top_p: f32,
    /// What chance is drawn from
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Tokens in one batch at most: prompts are cut into chunks of this size
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_batch_tokens: u32,
    /// Positions that there is KV memory for, over all requests
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kv_tokens: u32,
    /// Positions of a KV block
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) block_size: u32,
    /// Drafts after each token, looked up in the text itself
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=64))]
    pub(crate) drafts: u32,
    /// Schedules a decode before the token that it continues is known
    #[arg(long = "async", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = ArgAction::Set)]
    pub(crate) asynchronous: bool,
    /// Chunks of equal cost, of a size that the scheduler finds itself, with costs measured as the run goes
    #[arg(long)]
    pub(crate) adaptive: bool,
    /// For each batch and stage what was predicted and what was measured, on stderr
    #[arg(long)]
    pub(crate) batches: bool,
    /// When each stage ran which batch: a trace for Chrome or Perfetto
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
}

/// Reads what logits are divided by.
fn temperature(text: &str) -> Result<f32, String> {
    number(text, f32::MAX, "a number from 0 on")
}

/// Reads a part of the whole.
fn probability(text: &str) -> Result<f32, String> {
    number(text, 1.0, "a number from 0 to 1")
}

fn number(text: &str, most: f32, what: &str) -> Result<f32, String> {
    text.parse().ok().filter(|number| (0.0..=most).contains(number)).ok_or_else(|| format!("give {what}"))
}

#[derive(Args, Debug)]
#[command(after_long_help = WORKER_HELP)]
pub(crate) struct WorkerArgs {
    /// Folder of the model, the same as the leader's
    #[arg(long, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// What computes
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) cuda: CudaArgs,
    #[command(flatten)]
    pub(crate) graphs: GraphArgs,
    /// Which GPU [default: by the rank on this host]
    #[arg(long, value_name = "N")]
    pub(crate) gpu: Option<usize>,
    /// What carries activations to the stages beside this one: socket or nccl, the same for all
    #[arg(long, value_enum, default_value_t = Links::Socket)]
    pub(crate) link: Links,
    /// Seconds that stages may take to find each other over NCCL
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) link_timeout: u64,
    /// Where the processor rounds
    #[arg(long, value_name = "TO", value_enum, default_value_t = RoundTo::F32)]
    pub(crate) rounding: RoundTo,
    /// Seconds in which the leader must be there
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) join_timeout: u64,
}

const WORKER_HELP: &str = "\
The environment says who this process is and where its leader:
  RANK, WORLD_SIZE, LOCAL_RANK    its stage, and how many there are (or those of Slurm, Open MPI, MPICH)
  MASTER_ADDR, MASTER_PORT        where the leader waits (or CPP_MASTER_PORT)
  CPP_SECRET_FILE or CPP_SECRET   a secret that all processes of the pipeline have in common; a file only its owner can read";

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Also whether this model can be run, and fits into memory
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cuda: CudaArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    #[command(flatten)]
    pub(crate) cuda: CudaArgs,
    #[command(flatten)]
    pub(crate) graphs: GraphArgs,
    /// Which GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gpu: usize,
    /// Sizes that an emulated GPU can do: everything is run, figures mean nothing
    #[arg(long)]
    pub(crate) tiny: bool,
    /// What random batches are drawn from
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Random batches for each kernel
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) batches: u64,
}
