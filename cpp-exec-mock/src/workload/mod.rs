//! Workloads: which requests arrive when, from recorded traces or drawn at random.
//!
//! ```text
//! Workload::load(path, &LoadOptions { .. })  a trace file, plain or gzip, format guessed from the content unless given
//! Workload::synthetic(&Synthetic { .. })     gamma arrivals, log-normal lengths, bursts, conversations in an open or a closed loop
//! workload.items()         -> &[WorkItem], by arrival; the position of an item is its name in this workload
//! workload.digests(i, b)   -> one digest a whole KV block of b tokens of item i's prompt, for `cpp_sched::Request::with_lengths`
//! workload.tenant_name(t)  -> the text behind `WorkItem::tenant`
//! workload.source()        -> what it was read from, for reports
//! workload.warnings()      -> what was adjusted while reading; to be shown to the user, one a line
//! workload.scale_time(x)   -> arrivals times x; `load` does it by itself
//! workload.truncate(n)     -> the first n arrivals; `load` does it by itself
//! workload.follows_after_ns(i) -> for an item that waits for the end of the one before it: how long after that it arrives
//! workload.lose_patience(..)   -> clients that hang up; workload.patience_ns(i) says when
//! workload.hide_output_lengths(n) -> the scheduler learns where outputs end from a stop token
//! ```
//!
//! Arrivals are whole nanoseconds from the start of the workload. Which prompts begin alike is kept as a tree ([`Prefix`]): no token and no
//! hash id is stored, an item has 48 bytes at most.

mod clients;
mod conversation;
mod decimal;
mod detect;
mod digest;
mod draft;
mod error;
mod formats;
mod prefix;
mod reader;
mod synthetic;
mod totals;

use std::fmt;
use std::io::Cursor;
use std::path::Path;

use clients::Clients;
pub use conversation::Sessions;
pub(crate) use decimal::decimal_thousandths;
pub use decimal::{TimeScale, parse_duration};
pub use detect::Format;
pub use error::{Place, WorkloadError};
pub use synthetic::{Bursts, Synthetic};

/// One request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// When it arrives, in nanoseconds from the start of the workload; at most `i64::MAX`.
    pub arrival_ns: u64,
    /// Smaller is more urgent; 0 where the source says nothing.
    pub priority: i64,
    /// Tokens of the prompt, at least 1.
    pub input_tokens: u32,
    /// Tokens to generate, at least 1.
    pub output_tokens: u32,
    /// Whose it is, see [`Workload::tenant_name`].
    pub tenant: Option<TenantId>,
    /// What its prompt has in common with those of other items.
    pub prefix: Prefix,
}

/// A tenant's place in the list of a workload's tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant {}", self.0)
    }
}

/// How a prompt begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    /// The source says nothing about contents: nothing is shared, and the prompt needs no place in a prefix cache.
    #[default]
    Unknown,
    /// No earlier prompt begins alike; later ones may continue this one.
    New,
    /// The first `tokens` tokens are those of the earlier item `item` (followed by its output, if that is longer); then it is its own.
    Continues {
        /// Position of the earlier item; smaller than that of this one.
        item: u32,
        /// Tokens in common, at most this item's `input_tokens`.
        tokens: u32,
    },
}

/// Requests in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    items: Vec<WorkItem>,
    tenants: Vec<String>,
    source: String,
    warnings: Vec<String>,
    clients: Clients,
}

/// How to read a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// The format; none = guessed from the content.
    pub format: Option<Format>,
    /// How many requests to keep, the earliest ones. The whole file is read and checked all the same.
    pub limit: Option<usize>,
    /// Factor for arrival times.
    pub time_scale: TimeScale,
    /// For what the source leaves open: the order in which sessions start.
    pub seed: u64,
    /// Sessions without a time of day start evenly over so many seconds (before `time_scale`). Default one day.
    pub session_window_s: u64,
    /// Requests with one time stamp are laid evenly over the time until the next, this many nanoseconds at most; 0 = they arrive together. None: as the format
    /// has it (Mooncake 3 s, others not at all).
    pub tick_ns: Option<u64>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { format: None, limit: None, time_scale: TimeScale::ONE, seed: 0, session_window_s: 24 * 3600, tick_ns: None }
    }
}

impl Workload {
    /// Reads a trace.
    ///
    /// # Errors
    /// A file that cannot be read, is of no known format, or has no request; the first line that is wrong, with its number; an arrival that
    /// `time_scale` moves beyond 2^63 - 1 ns.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, WorkloadError> {
        let path = path.as_ref();
        Self::of(path, reader::open(path)?, options)
    }

    /// The same from bytes at hand, plain or gzip; `name` stands for the file in errors.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(name: &Path, bytes: Vec<u8>, options: &LoadOptions) -> Result<Self, WorkloadError> {
        Self::of(name, reader::of(name, Cursor::new(bytes))?, options)
    }

    fn of(path: &Path, opened: reader::Opened, options: &LoadOptions) -> Result<Self, WorkloadError> {
        let format = match options.format {
            Some(format) => format,
            None => Format::guess(&opened.head).ok_or_else(|| {
                let formats = Format::ALL.map(Format::name).join(", ");
                WorkloadError::file(path, format!("the beginning looks like none of the formats {formats}"))
            })?,
        };
        let mut draft = formats::read(format, path, opened.content, options)?;
        if draft.is_empty() {
            return Err(WorkloadError::file(path, "no request in it"));
        }
        if let Some(tick_ns) = options.tick_ns {
            draft.set_ticks(tick_ns);
        }
        draft.finish(format!("{} ({format})", path.display()), options.limit, options.time_scale)
    }

    /// Keeps the first `requests` arrivals.
    pub fn truncate(&mut self, requests: usize) {
        self.items.truncate(requests);
        self.clients.truncate(requests);
    }

    /// The requests at places `offset`, `offset + step` and so on, as a workload of their own in which nothing is known of contents, and nobody follows
    /// another or loses patience.
    #[must_use]
    pub fn every(&self, step: usize, offset: usize) -> Self {
        let items = self.items.iter().skip(offset).step_by(step.max(1));
        let items = items.map(|&item| WorkItem { prefix: Prefix::Unknown, ..item }).collect();
        let source = format!("{}, every {step} from {offset} on", self.source);
        Self { items, source, tenants: self.tenants.clone(), ..Self::default() }
    }

    /// Multiplies all arrivals by a factor.
    ///
    /// # Errors
    /// An arrival would be later than 2^63 - 1 ns; then nothing is changed.
    pub fn scale_time(&mut self, scale: TimeScale) -> Result<(), WorkloadError> {
        let too_late =
            || WorkloadError::Parameter { name: "time-scale", problem: format!("{scale} moves the last arrival beyond 2^63 - 1 ns") };
        // The last arrival is the latest one.
        self.items.last().map_or(Some(0), |item| scale.apply(item.arrival_ns)).ok_or_else(too_late)?;
        for item in &mut self.items {
            item.arrival_ns = scale.apply(item.arrival_ns).ok_or_else(too_late)?;
        }
        self.clients.scale_time(scale);
        Ok(())
    }

    /// The requests by arrival; those of one instant as in the source.
    #[must_use]
    pub fn items(&self) -> &[WorkItem] {
        &self.items
    }

    /// The name of a tenant, as in the source; `None` for an id of another workload.
    #[must_use]
    pub fn tenant_name(&self, tenant: TenantId) -> Option<&str> {
        self.tenants.get(tenant.0 as usize).map(String::as_str)
    }

    /// Where the requests come from, as one line of text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What was adjusted while reading, a sentence each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
