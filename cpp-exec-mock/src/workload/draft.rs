//! A workload in the making: rows in the order of the file, then sorted, cut, scaled, and their prefixes resolved.

use std::collections::HashMap;

use super::clients::NEVER;
use super::decimal::MAX_ARRIVAL_NS;
use super::prefix::{self, Content};
use super::{Prefix, TenantId, TimeScale, WorkItem, Workload, WorkloadError};

/// Rows as a format reads them. Problems are texts; the format knows the place.
#[derive(Default)]
pub(super) struct Draft {
    items: Vec<WorkItem>,
    /// One for each item, or none at all as long as no item has known content.
    contents: Vec<Content>,
    /// The hash ids of all items, one after the other.
    ids: Vec<u64>,
    tenants: Vec<String>,
    tenant_ids: HashMap<String, TenantId>,
    without_output: u64,
    /// Rows come in any order; else one out of order is worth a warning.
    unordered: bool,
    tick_ns: Option<u64>,
    /// As in [`Clients`](super::clients::Clients).
    think_ns: Vec<u64>,
    patience_ns: Vec<u64>,
}

/// Times and sizes of a row.
pub(super) struct Numbers {
    pub(super) arrival_ns: u64,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
}

impl Draft {
    /// For rows that come session by session, not by arrival.
    pub(super) fn unordered() -> Self {
        Self { unordered: true, ..Self::default() }
    }

    /// For time stamps on a coarse grid: requests with one time stamp are spread until the next one, over `tick_ns` at most.
    pub(super) fn with_ticks(tick_ns: u64) -> Self {
        Self { tick_ns: Some(tick_ns), ..Self::default() }
    }

    /// Another grid of time stamps; 0 = none.
    pub(super) fn set_ticks(&mut self, tick_ns: u64) {
        self.tick_ns = Some(tick_ns).filter(|&tick_ns| tick_ns > 0);
    }

    /// The row added last arrives so long after the end of the one before it.
    pub(super) fn follows(&mut self, think_ns: u64) {
        self.think_ns.resize(self.items.len() - 1, NEVER);
        self.think_ns.push(think_ns);
    }

    /// The client of the row added last hangs up so long after its arrival.
    pub(super) fn hangs_up(&mut self, patience_ns: u64) {
        self.patience_ns.resize(self.items.len() - 1, NEVER);
        self.patience_ns.push(patience_ns);
    }

    /// When the row added last arrives.
    pub(super) fn last_arrival_ns(&self) -> Option<u64> {
        self.items.last().map(|item| item.arrival_ns)
    }

    /// Adds a row of a recorded trace. One that got no output (it failed, or was cut off) is a request for one token: its prompt was computed.
    pub(super) fn push_recorded(&mut self, mut numbers: Numbers, content: Content) -> Result<&mut WorkItem, String> {
        if numbers.output_tokens == 0 {
            numbers.output_tokens = 1;
            self.without_output += 1;
        }
        self.push(numbers, content)
    }

    /// Adds a row.
    pub(super) fn push(&mut self, numbers: Numbers, content: Content) -> Result<&mut WorkItem, String> {
        let Numbers { arrival_ns, input_tokens, output_tokens } = numbers;
        if input_tokens == 0 {
            return Err("a request needs at least 1 input token".to_owned());
        }
        if output_tokens == 0 {
            return Err("a request needs at least 1 output token".to_owned());
        }
        if self.items.len() >= u32::MAX as usize {
            return Err("more than 2^32 - 1 requests".to_owned());
        }
        if content != Content::Unknown || !self.contents.is_empty() {
            self.contents.resize(self.items.len(), Content::Unknown);
            self.contents.push(content);
        }
        self.items.push(WorkItem { arrival_ns, input_tokens, output_tokens, priority: 0, tenant: None, prefix: Prefix::Unknown });
        Ok(self.items.last_mut().expect("an item was pushed just now"))
    }

    /// Keeps the hash ids of a prompt: block by block, `block` tokens each; the last one may be cut short by the end of the prompt, tokens beyond
    /// all ids are the prompt's own.
    pub(super) fn hashed(&mut self, ids: &[u64], block: u32, input_tokens: u32) -> Result<Content, String> {
        if block == 0 {
            return Err("blocks of hash ids need at least 1 token".to_owned());
        }
        let most = input_tokens.div_ceil(block) as usize;
        if ids.len() > most {
            return Err(format!("{} hash ids for {input_tokens} input tokens; blocks of {block} make {most} at most", ids.len()));
        }
        let first = self.ids.len();
        self.ids.extend_from_slice(ids);
        Ok(Content::Hashed { first, count: ids.len() as u32, block })
    }

    /// The id of a tenant's name.
    pub(super) fn tenant(&mut self, name: &str) -> TenantId {
        if let Some(&id) = self.tenant_ids.get(name) {
            return id;
        }
        // Every tenant has a request, of which there are fewer than 2^32.
        let id = TenantId(self.tenants.len() as u32);
        self.tenants.push(name.to_owned());
        self.tenant_ids.insert(name.to_owned(), id);
        id
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Moves the arrival of each item by what `shift` says of its position; `false` if one would come after the latest time allowed.
    pub(super) fn delay(&mut self, shift: impl Fn(usize) -> u64) -> bool {
        for (index, item) in self.items.iter_mut().enumerate() {
            match item.arrival_ns.checked_add(shift(index)).filter(|&ns| ns <= MAX_ARRIVAL_NS) {
                Some(ns) => item.arrival_ns = ns,
                None => return false,
            }
        }
        true
    }

    /// Counts time from the first arrival.
    pub(super) fn start_at_zero(&mut self) {
        let first = self.items.iter().map(|item| item.arrival_ns).min().unwrap_or(0);
        self.items.iter_mut().for_each(|item| item.arrival_ns -= first);
    }

    /// Sorts, spreads ticks, cuts to `limit`, scales, and finds who shares a prefix with whom.
    pub(super) fn finish(mut self, source: String, limit: Option<usize>, scale: TimeScale) -> Result<Workload, WorkloadError> {
        let late = self.items.windows(2).filter(|pair| pair[1].arrival_ns < pair[0].arrival_ns).count();
        if late > 0 {
            self.sort();
        }
        if let Some(tick_ns) = self.tick_ns {
            spread_ticks(&mut self.items, tick_ns);
        }
        let mut workload = Workload { items: self.items, tenants: self.tenants, source, ..Workload::default() };
        (workload.clients.think_ns, workload.clients.patience_ns) = (self.think_ns, self.patience_ns);
        if let Some(limit) = limit {
            workload.truncate(limit);
        }
        workload.scale_time(scale)?;
        prefix::resolve(&mut workload.items, &self.contents, &self.ids);
        if late > 0 && !self.unordered {
            workload.warnings.push(format!("rows that arrive before the row above them, sorted by arrival: {late}"));
        }
        if self.without_output > 0 {
            workload.warnings.push(format!("rows with 0 output tokens, taken as 1: {}", self.without_output));
        }
        Ok(workload)
    }

    /// By arrival, equal ones as in the file: so rows that follow each other stay together.
    fn sort(&mut self) {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by_key(|&row| self.items[row].arrival_ns);
        fn sorted<T: Copy>(rows: &mut Vec<T>, order: &[usize], missing: T) {
            if !rows.is_empty() {
                *rows = order.iter().map(|&row| rows.get(row).copied().unwrap_or(missing)).collect();
            }
        }
        self.items = order.iter().map(|&row| self.items[row]).collect();
        sorted(&mut self.contents, &order, Content::Unknown);
        sorted(&mut self.think_ns, &order, NEVER);
        sorted(&mut self.patience_ns, &order, NEVER);
    }
}

/// Time stamps on a coarse grid make bursts that were none: n items with one time stamp are laid evenly over the time until the next time stamp,
/// `tick_ns` at most. Keeps the order.
fn spread_ticks(items: &mut [WorkItem], tick_ns: u64) {
    let mut start = 0;
    while start < items.len() {
        let tick = items[start].arrival_ns;
        let end = start + items[start..].partition_point(|item| item.arrival_ns == tick);
        let gap = items.get(end).map_or(tick_ns, |next| (next.arrival_ns - tick).min(tick_ns));
        let count = (end - start) as u128;
        for (place, item) in items[start..end].iter_mut().enumerate() {
            item.arrival_ns = tick.saturating_add((u128::from(gap) * place as u128 / count) as u64).min(MAX_ARRIVAL_NS);
        }
        start = end;
    }
}
