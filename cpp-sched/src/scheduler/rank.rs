//! What requests are compared by: their views, the policy's word on them, and "not now".

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::Scheduler;
use crate::config::{Config, PolicyKind};
use crate::error::ConfigError;
use crate::ids::RequestId;
use crate::policy::{self, Class, Key, Policy, Rank, RequestView};
use crate::queue::PromptQueue;

impl Scheduler {
    /// A scheduler with a policy of the caller's; [`Config::policy`] is [`PolicyKind::Custom`] from then on. O(`num_blocks`).
    ///
    /// # Errors
    /// The field of the configuration that is wrong.
    pub fn with_policy(config: Config, policy: Box<dyn Policy>) -> Result<Self, ConfigError> {
        let mut config = config;
        config.policy = PolicyKind::Custom;
        Self::build(config, Some(Arc::from(policy)))
    }

    /// The name of the policy that was given to [`with_policy`](Self::with_policy). `None`: one that is shipped.
    #[must_use]
    pub fn policy_name(&self) -> Option<&str> {
        self.policy.as_deref().map(Policy::name)
    }

    /// Whether a request is [relegated](Config::relegation) now; after its first token: whether it was then. `None`: not alive.
    #[must_use]
    pub fn is_relegated(&self, request: RequestId) -> Option<bool> {
        Some(self.slots.cold(self.slots.find(request.0)?).standing != Class::Normal)
    }

    pub(super) fn view(&self, slot: u32) -> RequestView {
        let (s, cold) = (&self.slots[slot], self.slots.cold(slot));
        RequestView {
            seq: cold.seq,
            priority: cold.priority,
            arrival_ns: cold.arrival_ns,
            deadline_ns: cold.deadline_ns,
            now_ns: self.now_ns,
            prompt_tokens: s.prompt_len,
            prompt_left: s.prompt_len.saturating_sub(s.scheduled),
            work_left: self.prompt_work(s.scheduled.min(s.prompt_len), s.prompt_len),
            work_total: self.prompt_work(0, s.prompt_len),
            outputs: s.outputs,
            tenant: cold.owner,
            weight_millionths: cold.weight_millionths,
        }
    }

    /// The key of a view, if it may run now.
    pub(super) fn key_of(&self, view: &RequestView) -> Key {
        match &self.policy {
            None => policy::key(&self.config, view),
            Some(policy) => match policy.rank(view) {
                Rank::Key(value) => Key::fixed(value, view.seq),
                Rank::Falling { zero_ns, per } => Key::falling(zero_ns, per, view.seq),
                Rank::NotNow { .. } => Key::fixed(i128::MAX, view.seq),
            },
        }
    }

    /// The key of a request, if it may run now.
    pub(super) fn key(&self, slot: u32) -> Key {
        self.key_of(&self.view(slot)).with_class(self.standing(slot))
    }

    /// The key of a request that is queued: the policy may put it off.
    pub(super) fn rank(&mut self, slot: u32) -> Key {
        let Some(policy) = &self.policy else { return self.key(slot) };
        let view = self.view(slot);
        let seq = view.seq;
        let key = match policy.rank(&view) {
            Rank::NotNow { until_ns } => {
                let since = *self.slots.cold_mut(slot).put_off_since_ns.get_or_insert(self.now_ns);
                let until = until_ns.min(since.saturating_add(self.config.max_deferral_ns));
                if until > self.now_ns {
                    self.put_off.set(slot, (until, seq));
                    return Key::deferred(until, seq);
                }
                Key::fixed(i128::MAX, seq)
            }
            Rank::Key(value) => Key::fixed(value, seq),
            Rank::Falling { zero_ns, per } => Key::falling(zero_ns, per, seq),
        };
        self.put_off.remove(slot);
        key.with_class(self.standing(slot))
    }

    /// On time or relegated. What has its first token is neither late nor on time.
    fn standing(&self, slot: u32) -> Class {
        if self.slots[slot].outputs == 0 { self.slots.cold(slot).standing } else { Class::Normal }
    }

    pub(super) fn victim_key(&self, slot: u32) -> Key {
        policy::victim_key(&self.config, &self.view(slot))
    }

    /// Asks anew about a request that is queued. O(log queue).
    pub(super) fn rerank(&mut self, slot: u32) {
        let queue: fn(&mut Self) -> &mut PromptQueue = if self.prompts.contains(slot) {
            |s| &mut s.prompts
        } else if self.waiting.contains(slot) {
            |s| &mut s.waiting
        } else if self.resident.contains(slot) {
            |s| &mut s.resident
        } else {
            self.put_off.remove(slot);
            return;
        };
        let (key, tenant) = (self.rank(slot), self.slots.cold(slot).tenant);
        queue(self).update(slot, key, tenant);
    }

    /// Those who were put off until now are asked about again. O(log queue) each.
    pub(super) fn end_deferrals(&mut self) {
        while let Some((_, slot)) = self.put_off.peek().filter(|&((until, _), _)| until <= self.now_ns) {
            self.put_off.remove(slot);
            self.rerank(slot);
        }
    }

    /// Gives everybody who is queued a new key. O(queued * log).
    pub(super) fn rekey(&mut self) {
        self.rekey_by(Self::rank);
    }

    /// The same with keys that the caller gives; those who wait for KV are asked about by [`key`](Self::key).
    pub(super) fn rekey_by(&mut self, mut key: impl FnMut(&mut Self, u32) -> Key) {
        let queues: [fn(&mut Self) -> &mut PromptQueue; 3] = [|s| &mut s.prompts, |s| &mut s.waiting, |s| &mut s.resident];
        for queue in queues {
            let mut taken = core::mem::take(queue(self));
            taken.rekey(|slot| key(self, slot));
            *queue(self) = taken;
        }
        let mut wanting = core::mem::take(&mut self.wanting);
        wanting.rekey(|slot| self.key(slot));
        self.wanting = wanting;
    }

    /// Brings keys that move with time to the present. O(log queue) for each that may come before another by now.
    pub(super) fn move_keys(&mut self) {
        if policy::moves_with_time(self.config.policy) && self.keyed_at_ns != self.now_ns {
            self.keyed_at_ns = self.now_ns;
            for queue in [&mut self.prompts, &mut self.waiting, &mut self.resident, &mut self.wanting] {
                queue.advance(self.now_ns);
            }
        }
    }
}
