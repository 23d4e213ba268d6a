//! Workloads: which requests arrive when, from recorded traces or drawn at random.
//!
//! ```text
//! Workload::load(path, &LoadOptions { format, limit, time_scale, seed, .. })  a trace file, format guessed when None
//! Workload::synthetic(&Synthetic { .. })                                      gamma arrivals, log-normal lengths
//! workload.items()        -> &[WorkItem], by arrival; the position of an item is its name in this workload
//! workload.digests(i, b)  -> one digest a whole KV block of b tokens of item i's prompt, for `cpp_sched::Request::with_lengths`
//! workload.tenant_name(t) -> the text behind `WorkItem::tenant`
//! workload.source()       -> what it was read from, for reports
//! workload.warnings()     -> what was adjusted while reading; to be shown to the user, one a line
//! ```
//!
//! Arrivals are whole nanoseconds from the start of the workload. Which prompts begin alike is kept as a tree ([`Prefix`]): no token and no
//! hash id is stored, an item has 48 bytes at most.

mod digest;

use std::fmt;

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
}

impl Workload {
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
