//! Two workers that know nothing but messages: after every batch their plans must be the batch.
//!
//! One mirror follows the stream from its beginning. The other one is thrown away now and then and put back by a resync, and now and then the
//! leader's encoder is replaced by one that was attached to the running scheduler. Each message is also damaged: neither may be applied.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cpp_sched::wire::{Applied, Encoder, Mirror, MirrorError, Origin, Plan, PlanRow, Token};
use cpp_sched::{Config, EncoderItem, Event, RequestId, Row, Scheduled, Scheduler, Span, TokenId};

use super::deliveries::{Delivery, told};
use super::encodings::in_row;
use super::flight::Flight;
use super::{Driver, Line, Tracked, ensure};
use crate::truth::mix;

/// What the workers' side has seen, for tests that ask whether a case was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Rows of plans.
    pub rows: u64,
    /// Rows by [`Origin`]: continuing, after rejected drafts, rolled back, restarted, new.
    pub origins: [u64; 5],
    /// Positions by [`Token`]: known, kept, sampled, draft, draft from elsewhere.
    pub tokens: [u64; 5],
    /// Requests told as ended.
    pub ended: u64,
    /// Requests told as preempted.
    pub preempted: u64,
    /// Batches told as lost.
    pub lost: u64,
    /// Resyncs applied.
    pub resyncs: u64,
    /// Transfers.
    pub transfers: u64,
}

/// The leader's encoder and two workers.
#[derive(Debug)]
pub(super) struct Mirrors {
    config: Config,
    encoder: Encoder,
    /// Follows the whole stream.
    first: Mirror,
    /// Is put back by resyncs.
    second: Mirror,
    message: Vec<u8>,
    /// Batches lost, as far as the encoder knows.
    lost: u64,
    pub(super) seen: Seen,
    /// What was sent, if somebody wants to know.
    pub(super) sent: Option<Vec<Delivery>>,
}

/// What a batch is compared with.
pub(super) struct Truth<'a> {
    pub(super) requests: &'a mut [Tracked],
    pub(super) alive: &'a BTreeMap<RequestId, usize>,
    pub(super) flight: &'a VecDeque<Flight>,
    pub(super) lost: u64,
    pub(super) right: BTreeMap<RequestId, u32>,
}

impl Mirrors {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            config: *config,
            encoder: Encoder::new(config),
            first: Mirror::new(config),
            second: Mirror::new(config),
            message: Vec::new(),
            lost: 0,
            seen: Seen::default(),
            sent: None,
        }
    }

    /// Before a batch: joins and new leaders.
    pub(super) fn before(&mut self, scheduler: &Scheduler, batch: u64) -> Result<(), String> {
        if batch % 7 == 6 {
            self.new_leader(scheduler)?;
        }
        if batch % 3 == 1 {
            self.second = self.resync(scheduler)?;
        }
        Ok(())
    }

    /// A worker joins late, at any moment.
    pub(super) fn late_worker(&mut self, scheduler: &Scheduler) -> Result<(), String> {
        self.second = self.resync(scheduler)?;
        Ok(())
    }

    /// A new leader takes over a scheduler at work, and puts all workers back.
    pub(super) fn new_leader(&mut self, scheduler: &Scheduler) -> Result<(), String> {
        self.encoder = Encoder::attach(scheduler);
        self.lost = scheduler.stats().batches_lost;
        self.first = self.resync(scheduler)?;
        if let Some(sent) = &mut self.sent {
            sent.push(Delivery::resync(&self.message, &self.first));
        }
        self.second = self.first.clone();
        Ok(())
    }

    /// At every moment a worker that would join now would know what those know that have followed the stream; but for what a request has let go of
    /// since the last plan, which the next one tells to all. `living` tells the id of a request that is alive, by its incarnation.
    pub(super) fn check_resync(&mut self, scheduler: &Scheduler, living: impl Fn(u64) -> Option<RequestId>) -> Result<(), String> {
        let late = self.resync(scheduler)?;
        self.seen.resyncs -= 1;
        if let Some(sent) = self.sent.as_mut().filter(|sent| sent.last().is_none_or(|last| !last.resync)) {
            sent.push(Delivery::resync(&self.message, &late));
        }
        for (mirror, name) in [(&self.first, "first"), (&self.second, "second")] {
            let stream = |mirror: &Mirror| (mirror.digest(), mirror.sequence());
            ensure!(stream(mirror) == stream(&late), "the {name} worker has followed another stream");
            let (known, due): (Vec<_>, Vec<_>) = (mirror.requests().collect(), late.requests().collect());
            ensure!(known.len() == due.len(), "the {name} worker knows {known:?}, a new one would know {due:?}");
            for (known, due) in known.iter().zip(&due) {
                let same = (known.request, known.incarnation) == (due.request, due.incarnation);
                let alive = living(known.incarnation) == Some(known.request);
                let tokens = known.tokens == due.tokens || !alive;
                let held =
                    known.blocks.starts_with(due.blocks) && (due.blocks.is_empty() || known.num_computed_tokens == due.num_computed_tokens);
                ensure!(same && tokens && held, "the {name} worker knows {known:?}, a new one would know {due:?}");
            }
            ensure!(mirror.encoded().eq(late.encoded()), "the {name} worker has other items encoded than a new one would");
        }
        Ok(())
    }

    /// What workers have encoded.
    pub(super) fn check_encoded(&self, due: &BTreeSet<EncoderItem>) -> Result<(), String> {
        for mirror in [&self.first, &self.second] {
            let encoded: BTreeSet<_> = mirror.encoded().collect();
            ensure!(encoded == *due, "a worker has {encoded:?} encoded, must have {due:?}");
        }
        Ok(())
    }

    fn resync(&mut self, scheduler: &Scheduler) -> Result<Mirror, String> {
        self.message.clear();
        self.encoder.resync(scheduler, &mut self.message);
        let mut mirror = Mirror::new(&self.config);
        apply(&mut mirror, &self.message)?;
        ensure!((mirror.digest(), mirror.sequence()) == (self.encoder.digest(), self.encoder.sequence()), "a resync to another stream");
        self.seen.resyncs += 1;
        Ok(mirror)
    }

    /// A batch goes to the workers, and is compared with what they make of it.
    pub(super) fn batch(&mut self, batch: &Scheduled<'_>, truth: &mut Truth<'_>) -> Result<(), String> {
        let mut drafts = BTreeMap::new();
        for row in batch.rows().iter().filter(|row| row.num_draft_tokens > 0 && row.request.0 % 2 == 0) {
            let who = *truth.alive.get(&row.request).ok_or("a row of nobody")?;
            let right = truth.right.get(&row.request).copied().unwrap_or_default();
            let base = row.end() - row.num_draft_tokens;
            let text = &mut truth.requests[who].text;
            let tokens = (base..row.end()).map(|p| text.token(p) + u32::from(p - base >= right));
            drafts.insert(row.request, tokens.collect::<Vec<TokenId>>());
        }
        let given = |request: RequestId| drafts.get(&request).map(Vec::as_slice);
        self.message.clear();
        self.encoder.encode_with(batch, |row| given(row.request), &mut self.message).map_err(|error| error.to_string())?;
        let repeated = self.message.clone();
        let lost = truth.lost - std::mem::replace(&mut self.lost, truth.lost);
        self.seen.lost += lost;
        damaged(&self.first, &self.message, batch.id().0)?;
        let before = (self.first.sequence(), self.first.digest());
        for (mirror, seen) in [(&mut self.first, Some(&mut self.seen)), (&mut self.second, None)] {
            let plan = apply(mirror, &self.message)?.ok_or("no plan")?;
            ensure!(
                plan.batch() == batch.id() && plan.lost() == lost,
                "plan {} after {} losses, must be {lost}",
                plan.batch(),
                plan.lost()
            );
            ensure!(plan.copies() == batch.copies(), "the plan copies {:?}, must copy {:?}", plan.copies(), batch.copies());
            let inputs = || batch.encoder_inputs().iter().map(|input| (input.request, input.span, Some(input.item)));
            let planned = plan.encoder_inputs().map(|input| (input.request, input.index, input.span.item()));
            ensure!(planned.eq(inputs()), "the plan encodes something else than {:?}", batch.encoder_inputs());
            ensure!(plan.len() == batch.rows().len() && plan.rows().len() == plan.len(), "{} rows", plan.len());
            for (number, (planned, row)) in plan.rows().zip(batch.rows()).enumerate() {
                check_row(&planned, batch, row, given(row.request), truth).map_err(|text| format!("row {number} {row:?}: {text}"))?;
            }
            if let Some(seen) = seen {
                seen.note(&plan);
                if let Some(sent) = &mut self.sent {
                    let told = told(&plan);
                    sent.push(Delivery::new(&self.message, before, mirror, told));
                }
            }
            ensure!(mirror.digest() == self.encoder.digest(), "the digests differ");
            let again = mirror.apply(&repeated);
            ensure!(matches!(again, Err(MirrorError::Repeated { .. })), "a repeated message is answered with {again:?}");
        }
        self.check_known(batch, truth)
    }

    /// All that is known, not only the rows.
    fn check_known(&self, batch: &Scheduled<'_>, truth: &mut Truth<'_>) -> Result<(), String> {
        let known = |mirror: &Mirror| mirror.requests().map(|r| (r.request, r.incarnation)).collect::<Vec<_>>();
        ensure!(known(&self.first) == known(&self.second), "{:?} and {:?} are known", known(&self.first), known(&self.second));
        let mut ids = BTreeSet::new();
        for mirrored in self.first.requests() {
            let id = mirrored.request;
            ensure!(ids.insert(id), "{id} is known twice");
            let who = *truth.alive.get(&id).ok_or_else(|| format!("{id} has ended, and is known"))?;
            let text = truth.requests[who].text.prefix(u32::try_from(mirrored.tokens.len()).expect("few tokens"));
            ensure!(mirrored.tokens == text, "{id}: the tokens are {:?}, must be {text:?}", mirrored.tokens);
        }
        ensure!(batch.rows().iter().all(|row| ids.contains(&row.request)), "a row of a request that is not known");
        Ok(())
    }

    /// What the peer is told to write goes to the workers, too.
    pub(super) fn wanted(&mut self, scheduler: &Scheduler, event: &Event) -> Result<(), String> {
        let Event::KvWanted { request, start, end } = *event else { return Ok(()) };
        self.message.clear();
        self.encoder.transfer(scheduler, request, start, end, &mut self.message).map_err(|error| error.to_string())?;
        let table = scheduler.block_table(request).unwrap_or_default();
        let before = (self.first.sequence(), self.first.digest());
        let blocks = end.div_ceil(self.config.block_size) as usize;
        for mirror in [&mut self.first, &mut self.second] {
            let applied = mirror.apply(&self.message).map_err(|error| error.to_string())?;
            let transfer = applied.transfer().ok_or("no transfer")?;
            ensure!((transfer.request, transfer.start, transfer.end) == (request, start, end), "{transfer:?}, must be {event:?}");
            ensure!(Some(transfer.blocks) == table.get(..blocks), "{transfer:?} into {table:?}");
        }
        self.seen.transfers += 1;
        if let Some(sent) = &mut self.sent {
            sent.push(Delivery::new(&self.message, before, &self.first, String::new()));
        }
        Ok(())
    }
}

impl Driver {
    /// A worker joins late; with `leader` the leader is a new one too.
    pub(super) fn join(&mut self, leader: bool) -> Result<(), String> {
        if leader {
            self.mirrors.new_leader(&self.scheduler)?;
        }
        self.mirrors.late_worker(&self.scheduler)?;
        self.meet(if self.flight.is_empty() { "joined an idle pipeline" } else { "joined under way" });
        self.end_call(Line::Done("join"), Vec::new())
    }
}

impl Seen {
    fn note(&mut self, plan: &Plan<'_>) {
        self.ended += plan.ended().len() as u64;
        self.preempted += plan.preempted().len() as u64;
        for row in plan.rows() {
            self.rows += 1;
            self.origins[match row.origin() {
                Origin::Continues => 0,
                Origin::Rejected(_) => 1,
                Origin::RolledBack => 2,
                Origin::Restarted => 3,
                _ => 4,
            }] += 1;
            for token in row.tokens() {
                self.tokens[match token {
                    Token::Known(_) => 0,
                    Token::Kept => 1,
                    Token::Sampled { .. } => 2,
                    Token::Draft(_) => 3,
                    _ => 4,
                }] += 1;
            }
        }
    }

    /// Adds what another run has seen.
    pub fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.ended += other.ended;
        self.preempted += other.preempted;
        self.lost += other.lost;
        self.resyncs += other.resyncs;
        self.transfers += other.transfers;
        for (sum, more) in self.origins.iter_mut().chain(&mut self.tokens).zip(other.origins.iter().chain(&other.tokens)) {
            *sum += more;
        }
    }
}

fn apply<'m>(mirror: &'m mut Mirror, message: &[u8]) -> Result<Option<Plan<'m>>, String> {
    mirror.apply(message).map(Applied::plan).map_err(|error| format!("the mirror refuses a message: {error}"))
}

/// A message that was cut, changed or skipped is refused, and the mirror goes on with the right one (which the caller applies next).
fn damaged(mirror: &Mirror, message: &[u8], seed: u64) -> Result<(), String> {
    let mut mirror = mirror.clone();
    let before = mirror.digest();
    let at = usize::try_from(mix(seed, message.len() as u64)).unwrap_or_default() % message.len();
    let mut changed = message.to_vec();
    changed[at] ^= 1 << (seed % 8);
    for bad in [&message[..at], &changed] {
        let answer = mirror.apply(bad).map(drop);
        ensure!(answer.is_err(), "byte {at} of {message:?} is cut or changed, and nobody sees it");
    }
    ensure!(mirror.digest() == before, "a refused message has changed the mirror");
    apply(&mut mirror, message).map(drop)
}

/// A row of a plan is the row of the batch, and its tokens are the right ones.
fn check_row(
    plan: &PlanRow<'_>,
    batch: &Scheduled<'_>,
    row: &Row,
    drafts: Option<&[TokenId]>,
    truth: &mut Truth<'_>,
) -> Result<(), String> {
    let got =
        (plan.request(), plan.num_computed_tokens(), plan.num_scheduled_tokens(), plan.num_draft_tokens(), plan.kind(), plan.samples());
    let due = (row.request, row.num_computed_tokens, row.num_scheduled_tokens, row.num_draft_tokens, row.kind, row.samples);
    ensure!(got == due && plan.end() == row.end(), "the plan says {got:?}");
    ensure!(plan.blocks() == batch.blocks(row), "the table is {:?}, must be {:?}", plan.blocks(), batch.blocks(row));
    for group in 0..batch.num_groups() {
        let (got, due) = (plan.group_table(group), batch.group_table(row, group));
        ensure!(got == due, "the table of group {group} is {got:?}, must be {due:?}");
    }
    ensure!(plan.known() == batch.tokens(row), "known is {:?}, must be {:?}", plan.known(), batch.tokens(row));
    let who = *truth.alive.get(&row.request).ok_or("nobody's")?;
    let spans: Vec<Span> = in_row(truth.requests[who].text.spans(), row.num_computed_tokens, row.end()).copied().collect();
    ensure!(plan.spans() == spans && batch.spans(row) == spans, "the spans are {:?}, must be {spans:?}", plan.spans());
    ensure!(plan.prompt_len() == truth.requests[who].prompt_len, "the prompt has {} tokens", plan.prompt_len());
    let base = row.end() - row.num_draft_tokens;
    let known = truth.requests[who].known();
    let tokens: Vec<_> = plan.tokens().collect();
    ensure!(tokens.len() == row.num_scheduled_tokens as usize, "{} tokens", tokens.len());
    for (position, token) in (row.num_computed_tokens..).zip(tokens) {
        ensure!(plan.token(position) == Some(token), "position {position} is {token:?} and {:?}", plan.token(position));
        let right = truth.requests[who].text.token(position);
        let good = match token {
            Token::Known(token) => position < base.min(known) && token == right && plan.known().is_some(),
            Token::Kept => position < base.min(known) && plan.known().is_none(),
            Token::Draft(token) => position >= base && drafts.map(|drafts| drafts[(position - base) as usize]) == Some(token),
            Token::OtherDraft => position >= base && drafts.is_none(),
            Token::Sampled { plan, row } => {
                let sampling = truth.flight.iter().find(|flight| flight.id == plan).and_then(|flight| flight.rows.get(row as usize));
                (known..base).contains(&position) && sampling.is_some_and(|row| row.who == who && row.samples && row.end == position)
            }
            _ => false,
        };
        ensure!(good, "position {position} is {token:?}; known are {known}, drafts begin at {base}, the token is {right}");
    }
    ensure!(plan.token(row.end()).is_none(), "a token beyond the end");
    Ok(())
}
