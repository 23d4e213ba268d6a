//! The operator's levers: gates, pauses, budgets at run time, resets, the clock.

use cpp_sched::journal::Input;
use cpp_sched::{Chunking, Config, ConfigError, Event, Gate, Pause, RequestId, Role};

use super::{Driver, Line, ensure};
use crate::op::Knob;

impl Driver {
    /// Opens all gates.
    pub(super) fn ready(&mut self, id: RequestId) -> Result<(), String> {
        let expected = self.has_gates(id).is_some_and(|who| !self.requests[who].gates.is_empty());
        if expected {
            self.requests[self.alive[&id]].gates = cpp_sched::GateSet::NONE;
            self.note_opened(id);
        }
        self.effect("ready", id, expected, &Input::Ready(id))
    }

    /// Opens one gate.
    pub(super) fn open(&mut self, id: RequestId, gate: Gate) -> Result<(), String> {
        let expected = self.has_gates(id).is_some_and(|who| self.requests[who].gates.contains(gate));
        if expected {
            let request = &mut self.requests[self.alive[&id]];
            request.gates = request.gates.without(gate);
            self.note_opened(id);
        }
        self.effect("open", id, expected, &Input::Open(id, gate))
    }

    /// Shuts one gate: what is in flight goes on.
    pub(super) fn shut(&mut self, id: RequestId, gate: Gate) -> Result<(), String> {
        let expected = self.has_gates(id).is_some_and(|who| !self.requests[who].gates.contains(gate));
        if expected {
            let request = &mut self.requests[self.alive[&id]];
            request.gates = request.gates.with(gate);
            request.set_aside = true;
        }
        self.effect("shut", id, expected, &Input::Shut(id, gate))
    }

    /// The request, if gates mean something to it: what waits for the end of a transfer alone is not scheduled any more.
    fn has_gates(&self, id: RequestId) -> Option<usize> {
        let who = *self.alive.get(&id)?;
        (self.requests[who].is_alive() && !self.requests[who].is_sending(&self.config)).then_some(who)
    }

    fn note_opened(&mut self, id: RequestId) {
        let request = &mut self.requests[self.alive[&id]];
        if request.gates.is_empty() {
            request.opened_at = self.calls;
        }
    }

    /// Pauses scheduling, or ends the pause.
    pub(super) fn pause(&mut self, pause: Pause) -> Result<(), String> {
        self.recorder.input(&Input::Pause(pause));
        self.scheduler.pause(pause);
        self.pause = pause;
        ensure!(self.scheduler.paused() == pause, "paused is {:?}, must be {pause:?}", self.scheduler.paused());
        self.quiet("pause")
    }

    /// Refuses new requests from now on, or takes them again.
    pub(super) fn refuse_new(&mut self, drain: bool) -> Result<(), String> {
        self.recorder.input(&Input::Drain(drain));
        self.scheduler.drain(drain);
        self.draining = drain;
        self.quiet("drain")
    }

    /// Changes one field of the configuration; what cannot be is refused and changes nothing.
    pub(super) fn reconfigure(&mut self, knob: Knob) -> Result<(), String> {
        let mut config = self.config;
        match knob {
            Knob::BatchTokens(n) => config.max_batch_tokens = n,
            Knob::BatchRequests(n) => config.max_batch_requests = n,
            Knob::Requests(n) => config.max_requests = n,
            Knob::Chunk(max) => config.chunking = Chunking::Tokens { max },
            Knob::ChunksPerBatch(n) => config.chunks_per_batch = n,
            Knob::PromptTokens(n) => config.max_prompt_tokens_per_batch = n,
            Knob::PartialPrefills(n) => config.max_partial_prefills = n,
            Knob::Bypass(n) => config.max_bypass = n,
            Knob::Balance(balance) => config.balance = balance,
            Knob::Distance(n) => config.async_distance = n,
            Knob::Adapters(n) => config.max_adapters_per_batch = n,
            Knob::DraftSlots(n) => config.draft_slots = n,
            Knob::Lease(lease) => config.kv_lease_ns = lease,
            Knob::Cost(c0) => {
                if let Some(cost) = &mut config.cost {
                    cost.c0 = cpp_sched::Attos::from_ns(c0);
                }
            }
            Knob::Blocks(n) => config.num_blocks = n,
            Knob::Adaptive => config.chunking = Chunking::Adaptive,
            Knob::EncoderBudget(n) => config.encoder_budget_tokens = n,
            Knob::EncoderCache(n) => config.encoder_cache_tokens = Some(n),
            Knob::PrefillWait(ns) => config.latency.max_prefill_wait_ns = ns,
        }
        let grouped = !config.kv_groups.is_single();
        let fixed = if config.num_blocks != self.config.num_blocks {
            Some("num_blocks")
        } else if config.encoder_cache_tokens != self.config.encoder_cache_tokens {
            Some("encoder_cache_tokens")
        } else {
            (grouped && config.max_batch_tokens != self.config.max_batch_tokens).then_some("max_batch_tokens (with several KV groups)")
        };
        let expected = match (config.validate(), fixed) {
            (Err(error), _) => vec![error],
            (Ok(()), Some(field)) => vec![ConfigError::Fixed { field }],
            (Ok(()), None) => self.span_refusals(&config),
        };
        let before = (!expected.is_empty()).then(|| self.state());
        self.recorder.input(&Input::Reconfigure(Box::new(config)));
        let answer = self.scheduler.reconfigure(config);
        let right = answer.as_ref().map_or_else(|error| expected.contains(error), |()| expected.is_empty());
        ensure!(right, "reconfigure answers {answer:?}, must be one of {expected:?}");
        match before {
            Some(before) => {
                let after = self.state();
                ensure!(before == after, "{answer:?}, but something has changed");
            }
            None => {
                self.meet_grouped("reconfigured, several groups", "reconfigured");
                if config.cost != self.config.cost {
                    self.stages = config.cost.into_iter().collect();
                }
                self.config = config;
            }
        }
        ensure!(*self.scheduler.config() == self.config, "the configuration is not what was asked for");
        self.reconfigured = true;
        self.quiet("reconfigure")
    }

    /// Sets the clock; transfers that are overdue have failed.
    pub(super) fn tick(&mut self, now_ns: u64) -> Result<(), String> {
        self.now_ns = self.now_ns.max(now_ns);
        self.end_leases();
        self.recorder.input(&Input::Tick(now_ns));
        self.scheduler.tick(now_ns);
        ensure!(self.scheduler.now_ns() == self.now_ns, "the clock is {}, must be {}", self.scheduler.now_ns(), self.now_ns);
        self.quiet("tick")
    }

    /// Nothing computed or scheduled before is hit from here on.
    pub(super) fn reset_prefix_cache(&mut self) -> Result<(), String> {
        self.recorder.input(&Input::ResetPrefixCache);
        self.scheduler.reset_prefix_cache();
        self.note_reset()?;
        self.quiet("reset_prefix_cache")
    }

    /// The same, and everybody computes anew: no result of what was computed before is delivered.
    pub(super) fn reset_all_kv(&mut self) -> Result<(), String> {
        let pinned: Vec<RequestId> =
            self.alive.iter().filter(|(_, who)| self.requests[**who].wanted.is_some()).map(|(id, _)| *id).collect();
        self.recorder.input(&Input::ResetAllKv);
        self.scheduler.reset_all_kv();
        self.note_reset()?;
        if self.config.role != Role::Prefill {
            for (id, &who) in &self.alive {
                let held = self.scheduler.block_table(*id).unwrap_or_default();
                let request = &self.requests[who];
                ensure!(held.is_empty() || request.aborting || pinned.contains(id), "{id} holds {held:?} after all KV was reset");
            }
        }
        let events = self.take_events()?;
        for event in &events {
            match *event {
                Event::Preempted { request } => self.see_preempted_by(request, true)?,
                _ => self.see_other(event)?,
            }
        }
        if self.config.role != Role::Prefill {
            for request in self.requests.iter_mut().filter(|request| request.is_alive()) {
                request.void_before = request.epoch;
            }
        }
        self.end_call(Line::Done("reset_all_kv"), events)
    }

    fn note_reset(&mut self) -> Result<(), String> {
        self.writes_at_reset = self.memory.writes();
        let kv = self.scheduler.kv_usage();
        ensure!(kv.cached == 0, "{} blocks are cached after the reset", kv.cached);
        Ok(())
    }

    pub(super) fn quiet(&mut self, name: &'static str) -> Result<(), String> {
        let events = self.take_events()?;
        for event in &events {
            self.see_other(event)?;
        }
        self.end_call(Line::Done(name), events)
    }
}

/// Whether the order of first starts can be told from submits alone.
pub(super) fn orders_strictly(config: &Config) -> bool {
    !config.prefix_caching
        && matches!(config.chunking, Chunking::Tokens { .. })
        && config.role != Role::Decode
        && config.max_bypass == 0
        && config.max_adapters_per_batch.is_none()
        && !config.relegation
        && !config.feasibility_guard
        && config.priority_ageing_ns.is_none()
        && config.latency.max_prefill_wait_ns.is_none()
}
