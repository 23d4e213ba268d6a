//! Orders: which request's prompt work comes first, and who is the least urgent.
//!
//! A policy is a key from a request's view ([`mod@key`]), or a plug-in that gives one ([`plugin`]); the smallest comes first. The core owns
//! correctness: whatever the keys are, budgets, blocks and progress are right.
//!
//! n = requests with prompt work. A decision is O(log n) for each request that it moves, under every policy.
//!
//! | policy | the smallest of | changes | source | a request waits at most for |
//! |---|---|---|---|---|
//! | `fcfs` | order of submission | never | | those submitted before it |
//! | `priority` | the number given | never | | no bound; with `priority_ageing_ns` = g: those that arrive until g for each level after it |
//! | `edf` | deadline | never | Liu and Layland 1973 | those whose deadline is before its own; none: no bound |
//! | `srpf` | prompt tokens left | with progress | Schrage 1968 | no bound; with `srpf_ageing_ns` = g: those that arrive until g for each of its tokens after it |
//! | `hybrid` | deadline + alpha x prompt tokens left | with progress | Niyama/QoServe, arXiv 2503.22562 | those whose deadline is less than alpha for each of its tokens after its own |
//! | `lars` | (deadline - now - left) / total | with time: [`kinetic`](crate::queue) | Medha, arXiv 2409.17264 | those that come until its slack is below that of a newcomer: its key falls without bound |
//! | `fair` | what its tenant was served | with each chunk, a tenant at once | VTC, OSDI 2024 | 2 x max(chunk, decodes of all that are admitted) of service more for another tenant; while it lacks a slot or blocks also what admitted prompts have left |
//! | `custom` | what the plug-in says | as it says | | what the plug-in bounds |
//!
//! Under each of them [`Latency::max_prefill_wait_ns`](crate::Latency::max_prefill_wait_ns) bounds the wait whatever arrives. None lets a decode wait: those go
//! into batches first, longest waiting first, and [`Latency::max_decode_wait`](crate::Latency::max_decode_wait) bounds what latency caps may hold them up. Over each of them lie, as
//! options, relegation of those that cannot be on time and the guard that keeps those on time that can ([`feasible`]).

mod fair;
mod feasible;
mod key;
mod plugin;

#[cfg(feature = "serde")]
pub(crate) use fair::Tenant;
pub(crate) use fair::Tenants;
pub(crate) use feasible::{Due, Feasible};
pub(crate) use key::{Class, FixedKey, Key, key, moves_with_time, victim_key};
pub use plugin::{Policy, Rank, RequestView};
