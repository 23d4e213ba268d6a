//! What the encoder writes, and what a mirror makes of it.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::Sample;
use crate::config::{Config, Role};
use crate::event::Event;
use crate::ids::{BatchId, RequestId, TokenId};
use crate::outcome::Schedule;
use crate::request::{Prompt, Request};
use crate::scheduler::Scheduler;

pub(super) fn config() -> Config {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.stages) = (4, 100, 1);
    config.max_in_flight = Some(4);
    config
}

/// A leader: scheduler and encoder, and the batches in flight with who samples in them.
pub(super) struct Leader {
    pub(super) scheduler: Scheduler,
    pub(super) encoder: Encoder,
    pub(super) flight: Vec<(BatchId, Vec<RequestId>)>,
}

impl Leader {
    pub(super) fn new(config: Config) -> Self {
        Self { scheduler: Scheduler::new(config).unwrap(), encoder: Encoder::new(&config), flight: Vec::new() }
    }

    pub(super) fn submit(&mut self, id: u64, prompt: u32, outputs: u32) {
        self.scheduler.submit(Request::new(RequestId(id), (0..prompt).map(|i| 1000 + i).collect(), outputs)).unwrap();
    }

    /// The message of the next batch.
    pub(super) fn schedule(&mut self) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        let Schedule::Batch(batch) = self.scheduler.schedule() else { return None };
        self.encoder.encode(&batch, &mut message).unwrap();
        let sampling = batch.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
        self.flight.push((batch.id(), sampling));
        Some(message)
    }

    /// The oldest batch yields `tokens` for each row that samples.
    pub(super) fn complete(&mut self, tokens: &[TokenId]) {
        let (batch, sampling) = self.flight.remove(0);
        let samples: Vec<_> = sampling.iter().map(|&request| Sample { request, tokens }).collect();
        self.scheduler.complete(batch, &samples).unwrap();
    }

    pub(super) fn fail(&mut self) {
        self.scheduler.fail();
        self.flight.clear();
    }
}

/// All that a mirror knows, as a text.
pub(super) fn state(mirror: &Mirror) -> String {
    alloc::format!("{} {:x} {} {:?}", mirror.sequence(), mirror.digest(), mirror.lost_at, mirror.entries)
}

pub(super) fn origins(mirror: &mut Mirror, message: &[u8]) -> Vec<Origin> {
    mirror.apply(message).unwrap().plan().unwrap().rows().map(|row| row.origin()).collect()
}

/// A stream with some of everything, message by message.
pub(super) fn varied() -> (Config, Vec<Vec<u8>>) {
    let mut config = config();
    config.max_batch_tokens = 16;
    let mut leader = Leader::new(config);
    leader.submit(7, 21, 9);
    leader.submit(8, 5, 3);
    let mut messages = Vec::new();
    for step in 0..24u32 {
        _ = leader.scheduler.set_drafts(RequestId(7), step % 3);
        match step {
            4 => leader.submit(9, 30, 2),
            5 => leader.fail(),
            9 => _ = leader.scheduler.abort(RequestId(9)),
            11 => {
                leader.fail();
                leader.submit(8, 6, 3);
            }
            _ => {}
        }
        messages.extend(leader.schedule());
        if step % 2 == 1 && !leader.flight.is_empty() {
            leader.complete(&[70_000 + step]);
        }
    }
    (config, messages)
}

#[test]
fn the_example_of_the_format_is_real() {
    let mut leader = Leader::new(config());
    leader.scheduler.submit(Request::new(RequestId(7), vec![11, 12, 13], 2)).unwrap();
    let first = leader.schedule().unwrap();
    leader.complete(&[300]);
    let second = leader.schedule().unwrap();
    let page = include_str!("FORMAT.md");
    let dump = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let mut text: [String; 2] = Default::default();
    for line in dump.lines().skip(1) {
        // Two columns; in each, bytes stand before what they mean.
        let (left, right) = line.split_at(line.len().min(58));
        for (text, column) in text.iter_mut().zip([left, right]) {
            text.push_str(&column[..column.len().min(25)]);
            text.push(' ');
        }
    }
    for (text, message) in text.iter().zip([&first, &second]) {
        let hex: Vec<_> = message.iter().map(|byte| alloc::format!("{byte:02x}")).collect();
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), hex, "the message is {}", hex.join(" "));
    }
}

#[test]
fn a_decode_costs_few_bytes() {
    let mut config = Config::default();
    (config.num_blocks, config.max_batch_tokens, config.max_batch_requests) = (40_000, 65_536, 256);
    config.max_model_len = Some(4096);
    let mut leader = Leader::new(config);
    for id in 0..256 {
        leader.submit(u64::MAX - id, 200, 1000);
    }
    let mut mirror = Mirror::new(&config);
    let (mut bytes, mut rows) = (0, 0);
    for step in 0..600u32 {
        let message = leader.schedule().unwrap();
        let plan = mirror.apply(&message).unwrap().plan().unwrap();
        if step > 100 {
            bytes += message.len();
            rows += plan.len();
        }
        leader.complete(&[100_000 + step]);
    }
    assert!(bytes <= 9 * rows, "{bytes} bytes for {rows} rows");
    assert_eq!(rows, 499 * 256);
}

#[test]
fn nothing_is_allocated_at_a_steady_state() {
    let config = Config { num_blocks: 4000, ..Config::default() };
    let mut leader = Leader::new(config);
    for id in 0..64 {
        leader.submit(id, 20, 500);
    }
    let mut out = Vec::new();
    let mut room = None;
    for step in 0..400u32 {
        out.clear();
        let Schedule::Batch(batch) = leader.scheduler.schedule() else { panic!("decodes are due") };
        leader.encoder.encode(&batch, &mut out).unwrap();
        let (id, requests) = (batch.id(), batch.rows().iter().map(|row| row.request).collect::<Vec<_>>());
        let samples: Vec<_> = requests.iter().map(|&request| Sample { request, tokens: &[5] }).collect();
        leader.scheduler.complete(id, &samples).unwrap();
        let now = (leader.encoder.room(), out.capacity());
        if step > 50 {
            assert_eq!(room, Some(now));
        }
        room = Some(now);
    }
}

#[test]
fn memory_follows_the_living() {
    let mut leader = Leader::new(config());
    let mut mirror = Mirror::new(&config());
    for id in 0..500 {
        leader.submit(id, 5, 1);
        let message = leader.schedule().unwrap();
        assert_eq!(origins(&mut mirror, &message), [Origin::New]);
        leader.complete(&[1]);
    }
    assert_eq!((leader.encoder.handles, leader.encoder.records.len()), (1, 1));
    assert_eq!(mirror.requests().map(|known| (known.request, known.incarnation)).collect::<Vec<_>>(), [(RequestId(499), 499)]);
}

#[test]
fn an_id_used_again_is_another_request() {
    let mut leader = Leader::new(config());
    let mut mirror = Mirror::new(&config());
    for incarnation in 0..3 {
        leader.submit(5, 6 + incarnation, 1);
        let message = leader.schedule().unwrap();
        let plan = mirror.apply(&message).unwrap().plan().unwrap();
        let ended: &[_] = if incarnation == 0 { &[] } else { &[RequestId(5)] };
        let row = plan.row(0).unwrap();
        assert_eq!((plan.ended(), row.request(), row.incarnation()), (ended, RequestId(5), incarnation.into()));
        assert_eq!(row.known().unwrap().len(), 6 + incarnation as usize);
        leader.complete(&[1]);
    }
}

#[test]
fn a_token_in_flight_names_its_row() {
    let mut config = config();
    (config.async_scheduling, config.stages) = (true, 4);
    let mut leader = Leader::new(config);
    let mut mirror = Mirror::new(&config);
    leader.submit(1, 3, 5);
    leader.submit(2, 4, 5);
    let mut sources = Vec::new();
    for _ in 0..3 {
        let Some(message) = leader.schedule() else { break };
        let plan = mirror.apply(&message).unwrap().plan().unwrap();
        sources.push(plan.rows().map(|row| row.tokens().last().unwrap()).collect::<Vec<_>>());
    }
    let sampled = |plan, row| Token::Sampled { plan: BatchId(plan), row };
    assert_eq!(sources[1], [sampled(0, 0), sampled(0, 1)]);
    // A worker that joins now knows the same.
    let mut message = Vec::new();
    leader.encoder.resync(&leader.scheduler, &mut message);
    let mut late = Mirror::new(&config);
    assert!(matches!(late.apply(&message), Ok(Applied::Resynced)));
    leader.complete(&[77]);
    let next = leader.schedule().unwrap();
    for mirror in [&mut mirror, &mut late] {
        let plan = mirror.apply(&next).unwrap().plan().unwrap();
        assert_eq!(plan.row(0).unwrap().known().unwrap().last(), Some(&77));
    }
    assert_eq!(state(&mirror), state(&late));
}

#[test]
fn a_loss_rolls_back() {
    let mut config = config();
    config.max_batch_tokens = 8;
    let mut leader = Leader::new(config);
    let mut mirror = Mirror::new(&config);
    leader.submit(1, 30, 5);
    for expected in [Origin::New, Origin::Continues, Origin::Continues] {
        assert_eq!(origins(&mut mirror, &leader.schedule().unwrap()), [expected]);
    }
    leader.complete(&[]);
    leader.fail();
    let message = leader.schedule().unwrap();
    let plan = mirror.apply(&message).unwrap().plan().unwrap();
    let row = plan.row(0).unwrap();
    assert_eq!((plan.lost(), row.origin(), row.num_computed_tokens()), (2, Origin::RolledBack, 8));
    assert_eq!(origins(&mut mirror, &leader.schedule().unwrap()), [Origin::Continues]);
}

#[test]
fn drafts_ride_along_and_the_truth_follows() {
    let mut leader = Leader::new(config());
    let mut mirror = Mirror::new(&config());
    leader.submit(1, 3, 9);
    mirror.apply(&leader.schedule().unwrap()).unwrap();
    leader.complete(&[50]);
    assert!(leader.scheduler.set_drafts(RequestId(1), 3).is_applied());
    let mut message = Vec::new();
    let Schedule::Batch(batch) = leader.scheduler.schedule() else { panic!("a decode is due") };
    let few = leader.encoder.encode_with(&batch, |_| Some(&[51, 52][..]), &mut message);
    assert_eq!(few, Err(EncodeError::Drafts { request: RequestId(1), expected: 3, given: 2 }));
    assert!(message.is_empty());
    leader.encoder.encode_with(&batch, |_| Some(&[51, 52, 53, 54][..]), &mut message).unwrap();
    let again = leader.encoder.encode(&batch, &mut message);
    assert_eq!(again, Err(EncodeError::Order { expected: BatchId(2), found: BatchId(1) }));
    leader.flight.push((batch.id(), vec![RequestId(1)]));
    let plan = mirror.apply(&message).unwrap().plan().unwrap();
    let tokens: Vec<_> = plan.row(0).unwrap().tokens().collect();
    assert_eq!(tokens, [Token::Known(50), Token::Draft(51), Token::Draft(52), Token::Draft(53)]);
    // Two were wrong.
    leader.complete(&[51, 60]);
    assert!(leader.scheduler.set_drafts(RequestId(1), 0).is_applied());
    let message = leader.schedule().unwrap();
    let plan = mirror.apply(&message).unwrap().plan().unwrap();
    let row = plan.row(0).unwrap();
    assert_eq!((row.origin(), row.num_computed_tokens()), (Origin::Rejected(2), 5));
    assert_eq!(row.known().unwrap()[3..], [50, 51, 60]);
}

#[test]
fn a_transfer_names_its_blocks() {
    let mut config = config();
    config.role = Role::Decode;
    let mut leader = Leader::new(config);
    let mut mirror = Mirror::new(&config);
    leader.submit(3, 10, 2);
    let Some(Event::KvWanted { request, start, end }) = leader.scheduler.events().next() else { panic!("KV is wanted") };
    let mut message = Vec::new();
    for (request, start, end) in [(RequestId(4), start, end), (request, start, 1000), (request, end, end)] {
        let answer = leader.encoder.transfer(&leader.scheduler, request, start, end, &mut message);
        assert_eq!((answer, message.len()), (Err(EncodeError::Transfer(request)), 0));
    }
    leader.encoder.transfer(&leader.scheduler, request, start, end, &mut message).unwrap();
    let transfer = mirror.apply(&message).unwrap().transfer().unwrap();
    assert_eq!((transfer.request, transfer.start, transfer.end, transfer.blocks.len()), (request, 0, 10, 3));
    assert_eq!(Some(transfer.blocks), leader.scheduler.block_table(request));
    assert!(leader.scheduler.kv_arrived(request).is_applied());
    let message = leader.schedule().unwrap();
    let plan = mirror.apply(&message).unwrap().plan().unwrap();
    assert_eq!(plan.row(0).unwrap().num_computed_tokens(), 9);
    assert_eq!(Some(plan.row(0).unwrap().blocks()), leader.scheduler.block_table(request));
}

#[test]
fn a_session_that_paused_before_a_new_leader_tells_its_next_input() {
    let mut scheduler = Scheduler::new(config()).unwrap();
    let mut request = Request::new(RequestId(1), vec![5; 6], 1);
    request.session = true;
    scheduler.submit(request).unwrap();
    let id = scheduler.schedule().batch().unwrap().id();
    scheduler.complete(id, &[Sample { request: RequestId(1), tokens: &[9] }]).unwrap();
    let (mut encoder, mut mirror, mut out) = (Encoder::attach(&scheduler), Mirror::new(&config()), Vec::new());
    encoder.resync(&scheduler, &mut out);
    mirror.apply(&out).unwrap();
    scheduler.extend(RequestId(1), Prompt::Tokens(vec![4; 3]), 1).unwrap();
    out.clear();
    encoder.encode(&scheduler.schedule().batch().unwrap(), &mut out).unwrap();
    let row = mirror.apply(&out).unwrap().plan().unwrap().row(0).unwrap();
    assert_eq!((row.origin(), row.prompt_len()), (Origin::Extended, 10));
}
