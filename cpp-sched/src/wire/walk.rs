//! Random walks over everything that a scheduler offers: after every batch the plan of a mirror must be the batch, and its tokens the right
//! ones. Small pools, so that preemption, copies and hits are met all the time; the counts at the end tell that they were.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::{Applied, Encoder, Mirror, Origin, Token};
use crate::Span;
use crate::batch::{Batch, Row};
use crate::config::{Admission, Config, PreemptedOutput};
use crate::ids::{BatchId, RequestId, TokenId};
use crate::kv::{KvGroup, KvGroups};
use crate::outcome::Schedule;
use crate::request::{Fork, Prompt, Request};
use crate::scheduler::Scheduler;
use crate::{Event, Sample, splitmix};

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        splitmix::next(&mut self.0) % sides
    }

    fn small(&mut self, most: u32) -> u32 {
        1 + self.roll(most.into()) as u32
    }
}

/// Full attention and one to three more groups.
fn groups(dice: &mut Dice, block_size: u32) -> KvGroups {
    let mut groups = vec![KvGroup::Full];
    for _ in 0..dice.small(3) {
        groups.push(match dice.roll(4) {
            0 => KvGroup::Window { tokens: dice.small(9) },
            1 => KvGroup::ChunkedLocal { tokens: dice.small(9) },
            2 => KvGroup::State { grain: 2 * block_size },
            _ if groups.contains(&KvGroup::Cross) => KvGroup::Full,
            _ => KvGroup::Cross,
        });
    }
    KvGroups::new(&groups).unwrap()
}

/// What was met.
#[derive(Default)]
struct Met {
    plans: u64,
    copies: u64,
    preempted: u64,
    ended: u64,
    lost: u64,
    spans: u64,
    encoded: u64,
    freed: u64,
    origins: [u64; 6],
    tokens: [u64; 5],
    /// Further tables that begin at once, and behind what was given back.
    groups: [u64; 2],
}

struct Walk {
    dice: Dice,
    scheduler: Scheduler,
    encoder: Encoder,
    mirror: Mirror,
    late: Option<Mirror>,
    flight: VecDeque<Batch>,
    /// Sessions that wait for input.
    paused: Vec<RequestId>,
    next_id: u64,
    next_token: TokenId,
    lost: u64,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut config = Config::default();
        (config.block_size, config.num_blocks) = (dice.small(4), 8 + dice.small(24));
        (config.stages, config.max_batch_tokens) = (dice.small(4), 4 + dice.small(20));
        config.chunks_per_batch = dice.small(2);
        config.prefix_caching = dice.roll(2) == 0;
        config.async_scheduling = dice.roll(2) == 0;
        config.admission = [Admission::Lazy, Admission::ReservePrompt][dice.roll(2) as usize];
        if dice.roll(3) == 0 {
            config.kv_groups = groups(&mut dice, config.block_size);
            config.num_blocks *= 3;
            config.max_batch_tokens += config.kv_groups.grain();
            config.chunks_per_batch = 1;
        }
        config.encoder_budget_tokens = [None, Some(6), Some(12)][dice.roll(3) as usize];
        config.encoder_cache_tokens = [None, Some(6), Some(15)][dice.roll(3) as usize];
        config.preempted_output = [PreemptedOutput::Deliver, PreemptedOutput::Drop][dice.roll(2) as usize];
        Self {
            scheduler: Scheduler::new(config).unwrap(),
            encoder: Encoder::new(&config),
            mirror: Mirror::new(&config),
            late: None,
            dice,
            flight: VecDeque::new(),
            paused: Vec::new(),
            next_id: 0,
            next_token: 1_000_000,
            lost: 0,
        }
    }

    fn config(&self) -> Config {
        *self.scheduler.config()
    }

    fn any(&mut self) -> Option<RequestId> {
        let alive = self.scheduler.unfinished();
        (!alive.is_empty()).then(|| alive[self.dice.roll(alive.len() as u64) as usize])
    }

    fn request(&mut self, len: u32) -> Request {
        // Few ids, so that they are used again; few texts, so that the prefix cache hits.
        let id = RequestId(self.next_id % 9);
        self.next_id += 1;
        let text = 100 * self.dice.small(2);
        let outputs = self.dice.small(12);
        let mut request = match self.dice.roll(6) {
            0 => Request::with_lengths(id, len, Vec::new(), outputs),
            _ => Request::new(id, (0..len).map(|i| text + i).collect(), outputs),
        };
        request.session = self.dice.roll(4) == 0;
        request.cross_tokens = if self.config().kv_groups.has_cross() { self.dice.small(9) } else { 0 };
        request.spans = self.spans(len);
        request.drafts = [0, 0, 1, 3][self.dice.roll(4) as usize];
        request
    }

    /// Spans of few contents, in every other prompt.
    fn spans(&mut self, len: u32) -> Vec<Span> {
        let (mut at, mut spans) = (0, Vec::new());
        while self.dice.roll(2) == 0 {
            let (start, content) = (at + self.dice.roll(4) as u32, self.dice.small(6));
            let mut span = Span::encoded(start, self.dice.small(4), content, [content as u8; 16]);
            if span.end() > len {
                break;
            }
            span.atomic = self.dice.roll(3) == 0;
            at = span.end();
            spans.push(span);
        }
        spans
    }

    fn step(&mut self, met: &mut Met) {
        match self.dice.roll(24) {
            0..=3 => {
                let len = self.dice.small(20);
                let request = self.request(len);
                // Whether it fits is not the point here.
                _ = self.scheduler.submit(request);
            }
            4..=11 => self.schedule(met),
            12..=17 => self.complete(),
            18 => {
                if let Some(parent) = self.any() {
                    let child = self.request(1);
                    _ = self.scheduler.fork(parent, Fork::like(&child, child.id));
                }
            }
            19 => {
                if let Some(request) = self.paused.pop() {
                    let len = self.dice.small(5);
                    let (tokens, outputs) = (Prompt::Tokens(vec![self.next_token; len as usize]), self.dice.small(6));
                    let kept = Prompt::Lengths { len, block_hashes: Vec::new() };
                    let spans = self.spans(len);
                    if self.scheduler.extend_with(request, tokens, &spans, outputs).is_err() {
                        _ = self.scheduler.extend_with(request, kept, &spans, outputs);
                    }
                }
            }
            20 => {
                if let Some(request) = self.any() {
                    _ = self.scheduler.abort(request);
                }
            }
            21 if self.dice.roll(3) == 0 => {
                self.scheduler.fail();
                self.flight.clear();
            }
            22 if !self.flight.is_empty() => {
                let at = self.dice.roll(self.flight.len() as u64) as usize;
                self.scheduler.lose(self.flight[at].id()).unwrap();
                self.flight.remove(at);
            }
            23 => {
                let mut message = Vec::new();
                if self.dice.roll(4) == 0 {
                    self.encoder = Encoder::attach(&self.scheduler);
                    self.lost = self.scheduler.stats().batches_lost;
                    self.encoder.resync(&self.scheduler, &mut message);
                    self.mirror.apply(&message).unwrap();
                } else {
                    self.encoder.resync(&self.scheduler, &mut message);
                }
                let mut late = Mirror::new(&self.config());
                assert!(matches!(late.apply(&message), Ok(Applied::Resynced)));
                self.late = Some(late);
            }
            _ => {}
        }
        for event in self.scheduler.events() {
            match event {
                Event::Paused { request, .. } => self.paused.push(request),
                Event::Finished { request, .. } => self.paused.retain(|&paused| paused != request),
                _ => {}
            }
        }
    }

    fn complete(&mut self) {
        // Batches that were lost have no result.
        let Some(batch) = self.flight.pop_front() else { return };
        let mut tokens = Vec::new();
        for row in batch.rows().iter().filter(|row| row.samples) {
            let count = 1 + self.dice.roll(1 + u64::from(row.num_draft_tokens)) as u32;
            let from = self.next_token;
            self.next_token += count;
            tokens.push((row.request, (from..from + count).collect::<Vec<_>>()));
        }
        let samples: Vec<_> = tokens.iter().map(|(request, tokens)| Sample { request: *request, tokens }).collect();
        self.scheduler.complete(batch.id(), &samples).unwrap();
    }

    fn schedule(&mut self, met: &mut Met) {
        let lost = self.scheduler.stats().batches_lost - self.lost;
        let Schedule::Batch(batch) = self.scheduler.schedule() else { return };
        self.lost += lost;
        let mut message = Vec::new();
        let drafts = [7, 8, 9];
        self.encoder.encode_with(&batch, |row| (row.request.0 % 2 == 0).then_some(&drafts), &mut message).unwrap();
        for (mirror, first) in [(Some(&mut self.mirror), true), (self.late.as_mut(), false)] {
            let Some(mirror) = mirror else { continue };
            let plan = mirror.apply(&message).unwrap().plan().unwrap();
            assert_eq!((plan.batch(), plan.lost(), plan.copies()), (batch.id(), lost, batch.copies()));
            assert_eq!(plan.len(), batch.rows().len());
            let inputs = batch.encoder_inputs();
            let planned = plan.encoder_inputs().map(|input| (input.request, input.index, input.span.item().unwrap()));
            assert!(planned.eq(inputs.iter().map(|input| (input.request, input.span, input.item))));
            assert!(plan.encoder_freed().iter().all(|item| batch.encoder_freed().contains(item)));
            for (planned, row) in plan.rows().zip(batch.rows()) {
                let got = (planned.request(), planned.num_computed_tokens(), planned.end(), planned.num_draft_tokens());
                assert_eq!(got, (row.request, row.num_computed_tokens, row.end(), row.num_draft_tokens));
                assert_eq!((planned.kind(), planned.samples()), (row.kind, row.samples));
                assert_eq!(planned.blocks(), batch.blocks(row));
                for group in 0..batch.kv_groups.as_slice().len() {
                    let table = batch.group_table(row, group);
                    assert_eq!(planned.group_table(group), table, "group {group}");
                    met.groups[usize::from(table.first > 0)] += u64::from(group > 0);
                }
                assert_eq!(planned.spans(), batch.spans(row));
                assert_eq!(planned.prompt_len(), batch.tables.slot(row.slot).unwrap().prompt_len);
                met.spans += planned.spans().len() as u64;
                assert_eq!(planned.known(), batch.tokens(row));
                let known = batch.tables.slot(row.slot).unwrap().known();
                for (position, token) in (row.num_computed_tokens..row.end()).zip(planned.tokens()) {
                    check_token(token, position, known, &planned.known(), row, &self.flight);
                    met.tokens[match token {
                        Token::Known(_) => 0,
                        Token::Kept => 1,
                        Token::Sampled { .. } => 2,
                        Token::Draft(_) => 3,
                        Token::OtherDraft => 4,
                    }] += 1;
                }
                assert_eq!(planned.tokens().count(), row.num_scheduled_tokens as usize);
                met.origins[match planned.origin() {
                    Origin::Continues => 0,
                    Origin::Rejected(_) => 1,
                    Origin::RolledBack => 2,
                    Origin::Restarted => 3,
                    Origin::New => 4,
                    Origin::Extended => 5,
                }] += 1;
            }
            if first {
                met.plans += 1;
                met.copies += plan.copies().len() as u64;
                met.preempted += plan.preempted().len() as u64;
                met.ended += plan.ended().len() as u64;
                met.lost += plan.lost();
                met.encoded += plan.encoder_inputs().count() as u64;
                met.freed += plan.encoder_freed().len() as u64;
            }
        }
        // Workers have just what the scheduler counts on, but for what it has given up since it was asked.
        assert!(self.mirror.encoded().eq(self.encoder.encoded.items.iter().copied()));
        if let Some(late) = &self.late {
            assert!(late.encoded().eq(self.mirror.encoded()));
            let known = |mirror: &Mirror| mirror.requests().map(|known| (known.request, known.incarnation)).collect::<Vec<_>>();
            assert_eq!((known(late), late.digest()), (known(&self.mirror), self.mirror.digest()));
        }
        let batch = (*batch).clone();
        self.flight.push_back(batch);
        let tokens: u64 = self.mirror.encoded().map(|item| u64::from(item.encoder_tokens)).sum();
        assert_eq!(tokens, self.scheduler.stats().encoder_cached_tokens);
    }
}

/// The token of a position is what the scheduler knows, or comes from a row in flight that ends there.
fn check_token(token: Token, position: u32, known: u32, tokens: &Option<&[TokenId]>, row: &Row, flight: &VecDeque<Batch>) {
    let base = row.end() - row.num_draft_tokens;
    match token {
        Token::Draft(draft) => assert_eq!((draft, row.request.0 % 2), (7 + position - base, 0)),
        Token::OtherDraft => assert!(position >= base && row.request.0 % 2 == 1),
        Token::Known(token) => assert_eq!(Some(token), tokens.map(|tokens| tokens[position as usize])),
        Token::Kept => assert!(tokens.is_none() && position < known.min(base)),
        Token::Sampled { plan, row: number } => {
            assert!((known..base).contains(&position));
            let batch = flight.iter().find(|batch| batch.id() == plan).unwrap();
            let sampling = &batch.rows()[number as usize];
            assert!(sampling.samples && sampling.end() == position && (sampling.slot, sampling.epoch) == (row.slot, row.epoch));
        }
    }
}

#[test]
fn the_plan_is_the_batch_whatever_happens() {
    let mut met = Met::default();
    // Where it stops is told by the panic; which world it was, by this number.
    for seed in 0..300 {
        let mut walk = Walk::new(seed);
        for _ in 0..250 {
            walk.step(&mut met);
        }
        assert_eq!(walk.scheduler.check_invariants(), Ok(()), "seed {seed}");
    }
    for (what, count) in [
        ("spans", met.spans),
        ("encoder inputs", met.encoded),
        ("freed", met.freed),
        ("plans", met.plans),
        ("copies", met.copies),
        ("preempted", met.preempted),
        ("ended", met.ended),
        ("lost", met.lost),
    ] {
        assert!(count > 100, "{count} {what}");
    }
    assert!(met.origins.iter().all(|&count| count > 100), "origins: {:?}", met.origins);
    assert!(met.tokens.iter().all(|&count| count > 100), "tokens: {:?}", met.tokens);
    assert!(met.groups.iter().all(|&count| count > 100), "groups: {:?}", met.groups);
}

#[test]
fn a_batch_is_encoded_before_anything_else_happens() {
    let config = Config::default();
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(Request::new(RequestId(1), vec![5; 10], 2)).unwrap();
    assert!(matches!(scheduler.schedule(), Schedule::Batch(_)));
    assert!(scheduler.abort(RequestId(1)).is_applied());
    let late = scheduler.newest_in_flight().unwrap();
    let (mut encoder, mut out) = (Encoder::new(&config), Vec::new());
    assert_eq!(encoder.encode(&late, &mut out), Err(super::EncodeError::Late(RequestId(1))));
    assert_eq!((out.len(), encoder.sequence(), late.id()), (0, 0, BatchId(0)));
}
