//! The four modes of scheduling that are compared.

use std::fmt;
use std::str::FromStr;

use cpp_sched::{Balance, Chunking, Config, Pipelining};

/// A named combination of options of [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// One batch in the pipeline at a time.
    Serial,
    /// Request-level pipelining: other requests fill the pipeline, the next chunk of a prompt waits until the last one is back.
    Request,
    /// Chunk-level pipelining with a fixed token budget.
    Chunk,
    /// Chunked pipeline parallelism with everything on: chunks cut by cost, decodes balanced by cost, asynchronous scheduling.
    Cpp,
}

impl Mode {
    /// All of them, simplest first.
    pub const ALL: [Self; 4] = [Self::Serial, Self::Request, Self::Chunk, Self::Cpp];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Request => "request",
            Self::Chunk => "chunk",
            Self::Cpp => "cpp",
        }
    }

    /// Sets the options that make the mode, for the stages that `config` has; leaves all others.
    ///
    /// A decode whose token is not known yet keeps a distance of all stages from the batch that samples it, else the batches behind it would wait
    /// with it in front of stage 0. So asynchronous scheduling hides decisions only with [`max_in_flight`](Config::max_in_flight) above the
    /// stages; with D = stages it decides as synchronous scheduling does. The mode leaves D alone: one batch more hides the decision and fills
    /// bubbles, but where decodes rule it makes their round longer by one batch.
    pub const fn apply(self, config: &mut Config) {
        config.pipelining = match self {
            Self::Serial => Pipelining::None,
            Self::Request => Pipelining::Request,
            Self::Chunk | Self::Cpp => Pipelining::Chunk,
        };
        let everything = matches!(self, Self::Cpp);
        config.chunking = if everything { Chunking::Adaptive } else { Chunking::Tokens { max: None } };
        config.balance = if everything { Balance::Cost } else { Balance::Off };
        config.async_scheduling = everything;
        config.async_distance = config.stages;
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no mode `{}`: use serial, request, chunk or cpp", self.0)
    }
}

impl std::error::Error for UnknownMode {}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| UnknownMode(text.to_owned()))
    }
}
