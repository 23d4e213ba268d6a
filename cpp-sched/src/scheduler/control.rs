//! The operator's levers: gates, pauses, budgets at run time, resets. Each takes effect between two batches.

use alloc::vec::Vec;

use super::Scheduler;
use crate::config::{Config, Role};
use crate::error::ConfigError;
use crate::gate::{Gate, GateSet};
use crate::ids::RequestId;
use crate::kv::KvEvent;
use crate::outcome::Outcome;
use crate::state::{State, Trait};

/// How far scheduling is paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Pause {
    /// Not at all.
    #[default]
    Off,
    /// Nobody is admitted; what is admitted runs on.
    New,
    /// Nothing is scheduled; results in flight are still taken.
    All,
}

impl Scheduler {
    /// Opens all gates of a request. [`Already`](Outcome::Already): none was shut. O(log waiting).
    pub fn ready(&mut self, request: RequestId) -> Outcome {
        self.change_gates(request, |_| GateSet::NONE)
    }

    /// Opens one gate. The request is runnable when all are open. [`Already`](Outcome::Already): it was not shut. O(log waiting).
    pub fn open(&mut self, request: RequestId, gate: Gate) -> Outcome {
        self.change_gates(request, |gates| gates.without(gate))
    }

    /// Shuts one gate: nothing more of the request is scheduled before it is open again. What is in flight goes on; blocks and place stay.
    /// [`Already`](Outcome::Already): it was shut. O(log waiting).
    pub fn shut(&mut self, request: RequestId, gate: Gate) -> Outcome {
        self.change_gates(request, |gates| gates.with(gate))
    }

    fn change_gates(&mut self, request: RequestId, change: impl FnOnce(GateSet) -> GateSet) -> Outcome {
        let Some(slot) = self.slots.find(request.0) else { return Outcome::NotAlive };
        if !matches!(self.slots[slot].state, State::Waiting | State::Running | State::Paused) {
            return Outcome::Ending;
        }
        let before = self.slots[slot].gates;
        let gates = change(before);
        if gates == before {
            return Outcome::Already;
        }
        self.slots[slot].gates = gates;
        self.queue_victim(slot);
        if !gates.is_empty() && self.slots[slot].has(Trait::Encoding) {
            self.settle_encodings(slot);
        }
        if gates.is_empty() {
            self.queue_waiting(slot);
            self.queue_running(slot);
            if self.config.role == Role::Decode {
                self.grant_transfers();
            }
        } else {
            self.unqueue_work(slot);
        }
        self.count_partial(slot);
        Outcome::Applied
    }

    /// The gates of a request that are shut. `None`: not alive.
    #[must_use]
    pub fn gates(&self, request: RequestId) -> Option<GateSet> {
        Some(self.slots[self.slots.find(request.0)?].gates)
    }

    /// Who waits for what outside: the requests with a shut gate, in the order of submission. O(requests).
    #[must_use]
    pub fn gated(&self) -> Vec<(RequestId, GateSet)> {
        let alive = self.unfinished();
        let gates = alive.into_iter().map(|id| (id, self.gates(id).unwrap_or_default()));
        gates.filter(|(_, gates)| !gates.is_empty()).collect()
    }

    /// Pauses scheduling, or ends the pause.
    pub fn pause(&mut self, pause: Pause) {
        self.pause = pause;
    }

    /// How far scheduling is paused.
    #[must_use]
    pub fn paused(&self) -> Pause {
        self.pause
    }

    /// With `true`: from now on `submit` refuses everything, so that what is alive runs out. With `false`: as before.
    pub fn drain(&mut self, drain: bool) {
        self.draining = drain;
    }

    /// Changes budgets and chunking from the next batch on: every field of the configuration but those that shape the pool and the meaning of
    /// what is in flight (block size and number, size of the encoder cache, model length, pipelining, policy, admission, caching, role, stages,
    /// depth, hash key, KV groups, what belongs to the policy, relegation and the guard, and with several of them `max_batch_tokens`).
    ///
    /// A smaller `max_requests` than requests are admitted preempts nobody; nobody is admitted until their number has fallen.
    ///
    /// # Errors
    /// The field that is wrong, or that cannot change, or a request alive with a span that would fit into no batch any more; nothing has changed.
    pub fn reconfigure(&mut self, config: Config) -> Result<(), ConfigError> {
        config.validate()?;
        let old = &self.config;
        let fixed = [
            ("block_size", config.block_size == old.block_size),
            ("num_blocks", config.num_blocks == old.num_blocks),
            ("max_model_len", config.model_len() == old.model_len()),
            ("stages", config.stages == old.stages),
            ("max_in_flight", config.depth() == old.depth()),
            ("pipelining", config.pipelining == old.pipelining),
            ("policy", config.policy == old.policy),
            ("admission", config.admission == old.admission),
            ("prefix_caching", config.prefix_caching == old.prefix_caching),
            ("async_scheduling", config.async_scheduling == old.async_scheduling),
            ("role", config.role == old.role),
            ("preempted_output", config.preempted_output == old.preempted_output),
            ("kv_consumers", config.kv_consumers == old.kv_consumers),
            ("kv_events", config.kv_events == old.kv_events),
            ("encoder_cache_tokens", config.encoder_cache_tokens == old.encoder_cache_tokens),
            ("lookahead_tokens", config.lookahead_tokens == old.lookahead_tokens),
            ("hash_key", config.hash_key == old.hash_key),
            ("kv_groups", config.kv_groups == old.kv_groups),
            ("srpf_ageing_ns", config.srpf_ageing_ns == old.srpf_ageing_ns),
            ("priority_ageing_ns", config.priority_ageing_ns == old.priority_ageing_ns),
            ("hybrid_alpha_ns", config.hybrid_alpha_ns == old.hybrid_alpha_ns),
            ("relegation", config.relegation == old.relegation),
            ("feasibility_guard", config.feasibility_guard == old.feasibility_guard),
            // What is set aside for a window depends on it.
            ("max_batch_tokens (with several KV groups)", !self.is_grouped() || config.max_batch_tokens == old.max_batch_tokens),
        ];
        if config.cost.is_some() != old.cost.is_some() {
            return Err(ConfigError::CostFixed);
        }
        match fixed.into_iter().find(|(_, same)| !same) {
            Some((field, _)) => Err(ConfigError::Fixed { field }),
            None => {
                self.check_living_spans(&config)?;
                self.adopt(config);
                self.note_waits();
                Ok(())
            }
        }
    }

    /// Takes over a valid configuration, and works out anew what followed from the old one.
    fn adopt(&mut self, config: Config) {
        let old = core::mem::replace(&mut self.config, config);
        if let Some(model) = config.cost.filter(|_| config.cost != old.cost) {
            self.adopt_costs(&[model]);
        }
        if config.chunking != old.chunking {
            self.recount_all();
        }
    }

    /// Nothing that was computed or scheduled before is ever found again; blocks in use stay in use. O(`num_blocks`).
    pub fn reset_prefix_cache(&mut self) {
        if self.config.prefix_caching {
            self.pool.forget();
            self.publish_from = self.next_batch;
            if self.config.kv_groups.has_state() {
                // What is final and waits for the end of its grain is never found either.
                for slot in self.slots.iter().map(|(slot, _)| slot).collect::<Vec<_>>() {
                    self.skip_publishing(slot);
                }
            }
        }
    }

    /// Resets the prefix cache and preempts everybody, so that all KV is computed and all spans are encoded anew (the weights have changed): also results in flight of
    /// what was computed before are dropped. With role prefill it is [`reset_prefix_cache`](Self::reset_prefix_cache) alone: what was announced to a
    /// peer goes on. O(requests * log + `num_blocks`).
    pub fn reset_all_kv(&mut self) {
        if self.config.role == Role::Prefill {
            // What is announced belongs to transfers, which go on with it.
            return self.reset_prefix_cache();
        }
        while let Some((_, slot)) = self.victims.peek().or_else(|| self.idle.peek()) {
            self.preempt(slot);
        }
        for slot in self.slots.late() {
            self.slots.set_stale(slot, 0);
            self.queue_waiting(slot);
        }
        // Encoders have weights too; nobody needs an item by now.
        self.encoder.clear_unused(&mut self.encoder_freed);
        self.reset_prefix_cache();
    }

    /// Blocks that were stored, removed or forgotten in the prefix cache since the last call, in order, for routers that look where a prefix
    /// is. Only with [`Config::kv_events`]; they pile up until taken.
    pub fn kv_events(&mut self) -> alloc::vec::Drain<'_, KvEvent> {
        self.pool.events.drain(..)
    }
}
