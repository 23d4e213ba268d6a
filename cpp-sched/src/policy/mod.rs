//! Orders: which request's prompt work comes first, and who is the least urgent.
//!
//! A policy is a key from a request's view; the smallest comes first. The core owns correctness: whatever the keys are, budgets, blocks and
//! progress are right. To add a policy, add a variant to [`PolicyKind`], its key to [`key`], and say in [`is_fixed`] and
//! [`moves_with_time`] when the key changes.

mod fair;

#[cfg(feature = "serde")]
pub(crate) use fair::Tenant;
pub(crate) use fair::Tenants;

use crate::config::PolicyKind;

/// What requests are compared by: the policy's number, then the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) primary: i128,
    pub(crate) seq: u64,
}

/// What a policy sees of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// Order of submission.
    pub(crate) seq: u64,
    pub(crate) priority: i64,
    /// Arrival + TTFT target.
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) now_ns: u64,
    /// Prompt tokens that are not scheduled.
    pub(crate) prompt_left: u32,
    /// Cost (without a model: tokens) of the prompt that is not scheduled, and of the whole.
    pub(crate) left: u64,
    pub(crate) total: u64,
}

/// The key of a request under a policy. O(1).
pub(crate) fn key(policy: PolicyKind, view: &View) -> Key {
    let primary = match policy {
        // Tenants are ordered by what they were served (see `fair`), their requests as submitted.
        PolicyKind::Fcfs | PolicyKind::Fair => 0,
        PolicyKind::Priority => i128::from(view.priority),
        PolicyKind::Edf => view.deadline_ns.map_or(i128::MAX, i128::from),
        PolicyKind::Srpf => i128::from(view.prompt_left),
        PolicyKind::Lars => view.deadline_ns.map_or(i128::MAX, |deadline| relative_slack(deadline, view)),
    };
    Key { primary, seq: view.seq }
}

/// `(deadline - now - left) / total` in units of 2^-32, rounded down.
fn relative_slack(deadline_ns: u64, view: &View) -> i128 {
    let slack = i128::from(deadline_ns) - i128::from(view.now_ns) - i128::from(view.left);
    (slack << 32).div_euclid(i128::from(view.total.max(1)))
}

/// Whether a request's key never changes, so that it can also say who is the least urgent. The other policies take the latest submitted as
/// victim: a fixed order, so that requests cannot take turns for ever.
pub(crate) const fn is_fixed(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Fcfs | PolicyKind::Priority | PolicyKind::Edf)
}

/// Whether keys change as time goes by.
pub(crate) const fn moves_with_time(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Lars)
}

/// The order of victims: the largest goes first.
pub(crate) fn victim_key(policy: PolicyKind, view: &View) -> Key {
    if is_fixed(policy) { key(policy, view) } else { Key { primary: 0, seq: view.seq } }
}
