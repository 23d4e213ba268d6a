//! A request comes in.

use alloc::vec::Vec;

use super::Scheduler;
use crate::config::{PolicyKind, Role};
use crate::cost::CostTerms;
use crate::encoder::Span;
use crate::error::SubmitError;
use crate::kv::{Digest, GroupTable};
use crate::request::{Prompt, Request};
use crate::state::{Chain, Cold, Rare, Slot, Trait};

/// Why a sequence can never run to its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misfit {
    /// No room for one output below this length.
    TooLong { max_model_len: u32 },
    /// Its longest run needs more blocks than there are.
    NeverFits { needed: u32, num_blocks: u32 },
}

impl Scheduler {
    /// Takes a request in. It runs when its turn comes; what can never run to its end is refused now, by the same rule that admits.
    ///
    /// O(log waiting), and one hash for each whole block of the prompt with prefix caching on.
    ///
    /// # Errors
    /// What is wrong with the request; nothing has changed.
    pub fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        let checked = self.check(&request).and_then(|max_out| self.check_lateness(&request, max_out).map(|()| max_out));
        let max_out = checked.inspect_err(|_| self.stats.rejected += 1)?;
        let slot = self.insert(request, max_out);
        if self.slots[slot].waits_kv {
            self.want_kv(slot);
        } else {
            self.queue_waiting(slot);
        }
        self.aim(slot);
        Ok(())
    }

    /// Outputs of the request at most, if it is one that can run to its end when alone.
    pub(super) fn check(&self, request: &Request) -> Result<u32, SubmitError> {
        let id = request.id;
        if self.slots.find(id.0).is_some() {
            return Err(SubmitError::DuplicateId(id));
        }
        let prompt_tokens = request.prompt.num_tokens();
        if prompt_tokens == 0 {
            return Err(SubmitError::EmptyPrompt(id));
        }
        if self.draining {
            return Err(SubmitError::Draining(id));
        }
        if request.max_tokens == 0 && !request.pooling {
            return Err(SubmitError::ZeroMaxTokens(id));
        }
        if request.weight_millionths == 0 {
            return Err(SubmitError::ZeroWeight(id));
        }
        if request.min_tokens > request.max_tokens {
            return Err(SubmitError::MinTokens(id));
        }
        if request.cross_tokens > 0 && !self.config.kv_groups.has_cross() {
            return Err(SubmitError::NoCrossGroup(id));
        }
        for (field, given) in [("pooling", request.pooling), ("session", request.session)] {
            if given && self.config.role != Role::Unified {
                return Err(SubmitError::Role { request: id, field });
            }
        }
        if let Prompt::Lengths { len, block_hashes } = &request.prompt {
            let (expected, given) = (len / self.config.block_size, block_hashes.len());
            if given != 0 && given != expected as usize {
                return Err(SubmitError::BlockHashes { request: id, expected, given: u32::try_from(given).unwrap_or(u32::MAX) });
            }
        }
        self.check_spans(id, &request.spans, 0..prompt_tokens)?;
        let wanted = match self.config.role {
            _ if request.pooling => 0,
            Role::Prefill => 1,
            _ => request.max_tokens,
        };
        self.fit(prompt_tokens, wanted, request.cross_tokens).map_err(|misfit| match misfit {
            Misfit::TooLong { max_model_len } => SubmitError::TooLong { request: id, prompt_tokens, max_model_len },
            Misfit::NeverFits { needed, num_blocks } => SubmitError::NeverFits { request: id, needed, num_blocks },
        })
    }

    /// Outputs of a prompt at most, of those that are wanted, if it can run to its end when alone.
    pub(super) fn fit(&self, prompt_tokens: u32, wanted: u32, cross_tokens: u32) -> Result<u32, Misfit> {
        if prompt_tokens >= self.model_len {
            return Err(Misfit::TooLong { max_model_len: self.model_len });
        }
        let max_out = wanted.min(self.model_len - prompt_tokens);
        let (needed, num_blocks) = (self.config.need(prompt_tokens, max_out, cross_tokens), self.config.num_blocks);
        if needed > num_blocks { Err(Misfit::NeverFits { needed, num_blocks }) } else { Ok(max_out) }
    }

    /// Makes a record of the request; it is alive from now on, and stands in no queue yet.
    pub(super) fn insert(&mut self, request: Request, max_out: u32) -> u32 {
        let prompt_len = request.prompt.num_tokens();
        let root = self.hashing.root(&request.cache_salt, request.adapter);
        let spans = self.named(&request.spans, root, request.adapter);
        let (digests, cacheable) = self.digests(&request, root, &spans);
        let (tokens, keeps_tokens) = match request.prompt {
            Prompt::Tokens(mut tokens) => {
                tokens.shrink_to_fit();
                (tokens, true)
            }
            Prompt::Lengths { .. } => (Vec::new(), false),
        };
        let stops = if self.config.role == Role::Prefill { Vec::new() } else { request.stop_tokens };
        let fair = self.config.policy == PolicyKind::Fair;
        let (tenant, served) = if fair { self.tenants.enter(request.tenant) } else { (0, 0) };
        let mut hot = Slot::new(request.id.0);
        (hot.prompt_len, hot.max_out, hot.drafts, hot.gates) = (prompt_len, max_out, self.drafts_that_ride(request.drafts), request.gates);
        (hot.tokens, hot.keeps_tokens) = (tokens, keeps_tokens);
        hot.waits_kv = self.config.role == Role::Decode;
        for (is, holds) in [
            (Trait::Constrained, request.constrained),
            (Trait::Pooling, request.pooling),
            (Trait::Session, request.session),
            (Trait::Spans, !spans.is_empty()),
            (Trait::Paced, request.tbt_slo_ns.is_some()),
            (Trait::Stops, !stops.is_empty()),
            (Trait::Cacheable, cacheable),
        ] {
            hot.set(is, holds);
        }
        let arrival = request.arrival_ns.unwrap_or(self.now_ns);
        let rare = Rare {
            priority: request.priority,
            deadline_ns: request.ttft_slo_ns.map(|slo| arrival.saturating_add(slo)),
            ttft_slo_ns: request.ttft_slo_ns,
            tbt_slo_ns: request.tbt_slo_ns,
            token_due_ns: if request.tbt_slo_ns.is_some() { self.now_ns } else { 0 },
            last_chunk_ns: Some(self.now_ns).filter(|&now| now != arrival),
            weight_millionths: request.weight_millionths,
            owner: request.tenant,
            tenant,
            skip_cache_read: request.skip_cache_read,
            adapter: request.adapter,
            spans,
            salted_root: if !digests.has_root() && !request.cache_salt.is_empty() { root } else { 0 },
            groups: alloc::vec![GroupTable::default(); self.config.kv_groups.more().len()],
            cross_tokens: request.cross_tokens,
            ..Rare::NONE
        };
        let mut cold = Cold::new(self.next_seq, arrival, stops, request.min_tokens, rare);
        cold.digests = digests;
        self.next_seq += 1;
        self.alive += 1;
        self.stats.submitted += 1;
        self.set_served(tenant, served);
        self.slots.insert(hot, cold)
    }

    /// The digest of each whole block of the prompt, and whether the request takes part in the prefix cache.
    pub(super) fn digests(&self, request: &Request, root: Digest, spans: &[Span]) -> (Chain, bool) {
        // What an encoder has read is in all that is computed: without a name for it a prefix would be another's.
        let unnamed = request.cross_tokens > 0 && request.cache_salt.is_empty();
        match &request.prompt {
            _ if !self.config.prefix_caching || unnamed => (Chain::default(), false),
            Prompt::Tokens(tokens) => {
                let mut parent = root;
                let chain = tokens.chunks_exact(self.config.block_size as usize).enumerate().map(|(index, block)| {
                    parent = self.hashing.block_at(parent, block, index, spans);
                    parent
                });
                (Chain::new(root, chain), true)
            }
            Prompt::Lengths { block_hashes, .. } if block_hashes.is_empty() => (Chain::default(), false),
            Prompt::Lengths { block_hashes, .. } => {
                let mut parent = root;
                let chain = block_hashes.iter().map(|digest| {
                    parent = self.hashing.given(parent, digest);
                    parent
                });
                (Chain::new(root, chain), true)
            }
        }
    }

    /// Cost of the prompt positions `from..to` in nanoseconds (without a cost model: tokens), without `c0`.
    pub(super) fn prompt_work(&self, from: u32, to: u32) -> u64 {
        match &self.config.cost {
            Some(cost) => cost.items(&CostTerms::prefill(from, to - from)).to_ns(),
            None => u64::from(to - from),
        }
    }
}
