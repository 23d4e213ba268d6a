//! What a mirror refuses: damaged messages, and those of a broken or hostile leader.

use alloc::vec;
use alloc::vec::Vec;

use super::header::{BODY, Kind, begin, seal};
use super::message::{Identity, RawRow, put_row};
use super::tests::{Leader, config, origins, state, varied};
use super::*;
use crate::batch::RowKind;
use crate::ids::{BlockId, RequestId, TokenId};
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::{Sample, Span, wire::bytes::put};

#[test]
fn cut_and_changed_messages_are_refused() {
    let (config, messages) = varied();
    let mut mirror = Mirror::new(&config);
    for message in &messages {
        let before = state(&mirror);
        for cut in 0..message.len() {
            assert!(mirror.apply(&message[..cut]).is_err());
        }
        for at in 0..message.len() {
            for bit in 0..8 {
                let mut changed = message.clone();
                changed[at] ^= 1 << bit;
                assert!(mirror.apply(&changed).is_err(), "byte {at}, bit {bit}");
            }
        }
        let longer = [&message[..], &[0]].concat();
        assert_eq!(mirror.apply(&longer).map(drop), Err(MirrorError::Long { expected: message.len() as u64, found: longer.len() as u64 }));
        assert_eq!(state(&mirror), before);
        mirror.apply(message).unwrap();
        assert!(matches!(mirror.apply(message), Err(MirrorError::Repeated { .. })));
    }
    let mut fresh = Mirror::new(&config);
    assert_eq!(fresh.apply(&messages[1]).map(drop), Err(MirrorError::Gap { expected: 0, found: 1 }));
    assert_eq!(fresh.sequence(), 0);
}

/// Messages whose digest is right and whose body is not, as a broken or hostile leader would write them.
#[test]
fn a_broken_leader_changes_nothing_and_breaks_nothing() {
    let (config, messages) = varied();
    let mut mirror = Mirror::new(&config);
    let (mut refused, mut taken) = (0, 0);
    for message in &messages {
        let before = state(&mirror);
        for at in BODY..message.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, message[at] ^ 1, message[at] ^ 0x40, message[at].wrapping_add(1)] {
                let mut changed = message.clone();
                changed[at] = value;
                refused += try_sealed(&mirror, changed, &mut taken);
            }
            let mut shorter = message.clone();
            shorter.remove(at);
            refused += try_sealed(&mirror, shorter, &mut taken);
            let mut longer = message.clone();
            longer.insert(at, 0x83);
            refused += try_sealed(&mirror, longer, &mut taken);
        }
        assert_eq!(state(&mirror), before);
        mirror.apply(message).unwrap();
    }
    assert!(refused > 1000 && taken > 100, "{refused} refused, {taken} taken");
}

fn try_sealed(mirror: &Mirror, mut message: Vec<u8>, taken: &mut u32) -> u32 {
    let mut mirror = mirror.clone();
    let before = state(&mirror);
    seal(&mut message, 0, mirror.digest());
    let outcome = mirror.apply(&message).map(|applied| {
        // Whatever it says, looking at it is safe.
        applied.plan().map(|plan| plan.rows().map(|row| (row.blocks().len(), row.tokens().count())).collect::<Vec<_>>())
    });
    match outcome {
        Ok(_) => {
            *taken += 1;
            0
        }
        Err(_) => {
            assert_eq!(state(&mirror), before);
            1
        }
    }
}

/// A plan of one's own making, after what `mirror` has.
fn plan(mirror: &Mirror, rows: &[(RawRow<&[TokenId]>, &[u32])]) -> Vec<u8> {
    plan_with(mirror, &[], &[], 0, rows)
}

fn plan_with(mirror: &Mirror, ended: &[u32], preempted: &[u32], lost: u64, rows: &[(RawRow<&[TokenId]>, &[u32])]) -> Vec<u8> {
    let mut out = Vec::new();
    let at = begin(&mut out, Kind::Plan, mirror.sequence());
    mirror.geometry.put(&mirror.groups, &mut out);
    put(&mut out, mirror.sequence());
    put(&mut out, lost);
    for list in [ended, preempted] {
        put(&mut out, list.len() as u64);
        list.iter().for_each(|&handle| put(&mut out, handle.into()));
    }
    put(&mut out, 0);
    put(&mut out, rows.len() as u64);
    for (row, steps) in rows {
        put_row(&mut out, row, &[], steps.iter().copied());
    }
    seal(&mut out, at, mirror.digest());
    out
}

fn decode(origin: Origin, start: u32, tokens: &[TokenId]) -> RawRow<&[TokenId]> {
    RawRow {
        handle: 0,
        origin,
        identity: Identity { id: 1, incarnation: 0, prompt_len: 3 },
        kind: RowKind::Decode,
        samples: true,
        start,
        len: 1,
        drafts: 0,
        draft_tokens: None,
        new_tokens: tokens.len() as u32,
        tokens: Some(tokens),
        keep: None,
        blocks: &[],
        groups: 0..0,
        spans: 0..0,
    }
}

#[test]
fn a_plan_that_needs_what_is_not_encoded_is_refused() {
    let mut config = config();
    config.encoder_cache_tokens = Some(10);
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut encoder = Encoder::new(&config);
    let mut mirror = Mirror::new(&config);
    let mut submit = |scheduler: &mut Scheduler, id, digest| {
        let mut request = Request::new(RequestId(id), vec![5; 4], 1);
        request.spans = vec![Span::encoded(1, 2, 7, [digest; 16])];
        scheduler.submit(request).unwrap();
        let mut out = Vec::new();
        let batch = scheduler.schedule().batch().unwrap();
        encoder.encode(&batch, &mut out).unwrap();
        let id = batch.id();
        let request = batch.rows()[0].request;
        scheduler.complete(id, &[Sample { request, tokens: &[9] }]).unwrap();
        out
    };
    let first = submit(&mut scheduler, 1, 3);
    let plan = mirror.apply(&first).unwrap().plan().unwrap();
    let inputs: Vec<_> = plan.encoder_inputs().map(|input| (input.request, input.index, input.span.encoder_tokens)).collect();
    assert_eq!(inputs, [(RequestId(1), 0, 7)]);
    assert_eq!(plan.row(0).unwrap().spans(), [Span::encoded(1, 2, 7, [3; 16])]);
    // A plan with the same item again has no section; with another it frees and encodes.
    let second = submit(&mut scheduler, 2, 3);
    assert_eq!((first[5], second[5]), (0x81, 1));
    let mut ignorant = mirror.clone();
    ignorant.forget_encoded();
    let item = Span::encoded(1, 2, 7, [3; 16]).item().unwrap();
    assert_eq!(ignorant.apply(&second).unwrap_err(), MirrorError::NotEncoded { request: Some(RequestId(2)), item });
    mirror.apply(&second).unwrap();
    let third = submit(&mut scheduler, 3, 4);
    let mut ignorant = mirror.clone();
    ignorant.forget_encoded();
    assert_eq!(ignorant.apply(&third).unwrap_err(), MirrorError::Freed(item));
    let plan = mirror.apply(&third).unwrap().plan().unwrap();
    assert_eq!((plan.encoder_freed(), plan.encoder_inputs().count()), (&[item][..], 1));
    assert_eq!(mirror.encoded().map(|item| item.digest).collect::<Vec<_>>(), [[4; 16]]);
}

#[test]
fn every_difference_has_its_error() {
    use MirrorError as E;
    let request = RequestId(1);
    let mut mirror = Mirror::new(&config());
    let first = RawRow { kind: RowKind::Prefill, len: 3, ..decode(Origin::New, 0, &[5, 6, 7]) };
    let fresh = |row: &RawRow<&'static [TokenId]>, steps: &[u32]| {
        let mut mirror = Mirror::new(&config());
        let message = plan(&mirror, &[(row.clone(), steps)]);
        mirror.apply(&message).map(drop)
    };
    assert_eq!(fresh(&RawRow { handle: 1, ..first.clone() }, &[0]), Err(E::Handle { handle: 1 }));
    assert_eq!(fresh(&RawRow { handle: u32::MAX, ..first.clone() }, &[0]), Err(E::Handle { handle: u32::MAX }));
    assert_eq!(fresh(&RawRow { origin: Origin::Continues, ..first.clone() }, &[0]), Err(E::Unknown { handle: 0 }));
    assert_eq!(fresh(&first, &[]), Err(E::Table { request, expected: 1, found: 0 }));
    assert_eq!(fresh(&first, &[0, 2]), Err(E::Table { request, expected: 1, found: 2 }));
    assert_eq!(fresh(&first, &[200]), Err(E::Block { request, block: BlockId(100) }));
    assert_eq!(fresh(&RawRow { len: 0, ..first.clone() }, &[]), Err(E::Length(request)));
    assert_eq!(fresh(&RawRow { start: 2, len: u32::MAX, ..first.clone() }, &[]), Err(E::Length(request)));
    assert_eq!(fresh(&RawRow { drafts: 3, ..first.clone() }, &[0]), Err(E::Length(request)));
    assert_eq!(fresh(&RawRow { len: 4, ..first.clone() }, &[0]), Err(E::Position { request, position: 3 }));
    let short = Identity { prompt_len: 4, ..first.identity };
    assert_eq!(fresh(&RawRow { identity: short, ..first.clone() }, &[0]), Err(E::Tokens(request)));
    assert_eq!(fresh(&first, &[0]), Ok(()));

    let message = plan(&mirror, &[(first.clone(), &[0])]);
    mirror.apply(&message).unwrap();
    let before = state(&mirror);
    let check = |rows: &[(RawRow<&[TokenId]>, &[u32])], ended: &[u32], preempted: &[u32], lost: u64| {
        let mut mirror = mirror.clone();
        let message = plan_with(&mirror, ended, preempted, lost, rows);
        let answer = mirror.apply(&message).map(drop);
        assert!(answer.is_ok() || state(&mirror) == before);
        answer
    };
    let one = |row: RawRow<&'static [TokenId]>| check(&[(row, &[])], &[], &[], 0);
    assert_eq!(one(decode(Origin::Continues, 3, &[8])), Ok(()));
    assert_eq!(one(decode(Origin::Continues, 3, &[])), Ok(()), "the token was sampled by plan 0");
    assert_eq!(one(decode(Origin::Continues, 2, &[8])), Err(E::Start { request, expected: 3, found: 2 }));
    assert_eq!(one(decode(Origin::Rejected(1), 2, &[8])), Err(E::Rejected { request, most: 0, found: 1 }));
    assert_eq!(one(decode(Origin::RolledBack, 2, &[8])), Err(E::NotLost(request)));
    assert_eq!(one(decode(Origin::Restarted, 0, &[8])), Err(E::Running(request)));
    assert_eq!(one(first.clone()), Err(E::Handle { handle: 0 }));
    assert_eq!(one(RawRow { tokens: None, ..decode(Origin::Continues, 3, &[8]) }), Err(E::Tokens(request)));
    assert_eq!(one(RawRow { tokens: None, new_tokens: u32::MAX, ..decode(Origin::Continues, 3, &[]) }), Err(E::Tokens(request)));
    let lost = |row| check(&[(row, &[])], &[], &[], 1);
    assert_eq!(lost(decode(Origin::RolledBack, 2, &[])), Ok(()));
    assert_eq!(lost(decode(Origin::RolledBack, 5, &[8])), Err(E::Start { request, expected: 3, found: 5 }));
    // A second row of one request in one plan continues the first one, and cannot run what the first one samples.
    let row = decode(Origin::Continues, 3, &[8]);
    let next = decode(Origin::Continues, 4, &[]);
    assert_eq!(check(&[(row.clone(), &[]), (row.clone(), &[])], &[], &[], 0), Err(E::Start { request, expected: 4, found: 3 }));
    assert_eq!(check(&[(row.clone(), &[]), (next, &[2])], &[], &[], 0), Err(E::Position { request, position: 4 }));
    // Forgotten before the rows.
    assert_eq!(check(&[(row.clone(), &[])], &[0], &[], 0), Err(E::Unknown { handle: 0 }));
    assert_eq!(check(&[(first.clone(), &[0])], &[0], &[], 0), Ok(()));
    assert_eq!(check(&[(row, &[])], &[], &[0], 0), Err(E::Running(request)));
    assert_eq!(check(&[(RawRow { kind: RowKind::Prefill, len: 3, ..decode(Origin::Restarted, 0, &[]) }, &[0])], &[], &[0], 0), Ok(()));
    for (ended, preempted) in [(&[0, 0][..], &[][..]), (&[1], &[]), (&[], &[7]), (&[0], &[0])] {
        let handle = *ended.iter().chain(preempted).last().unwrap();
        assert_eq!(check(&[], ended, preempted, 0), Err(E::Unknown { handle }));
    }
}

#[test]
fn headers_are_checked_first() {
    use MirrorError as E;
    let (config, messages) = varied();
    let message = &messages[0];
    let with = |at: usize, bytes: &[u8]| {
        let mut message = message.clone();
        message[at..at + bytes.len()].copy_from_slice(bytes);
        Mirror::new(&config).apply(&message).map(drop)
    };
    assert_eq!(with(0, b"X"), Err(E::Magic));
    assert_eq!(with(4, &[2]), Err(E::Version { expected: 1, found: 2 }));
    assert_eq!(with(5, &[9]), Err(E::Kind(9)));
    assert_eq!(with(6, &u64::MAX.to_le_bytes()), Err(E::Short { expected: u64::MAX, found: message.len() as u64 }));
    assert_eq!(with(6, &37u64.to_le_bytes()), Err(E::Number { what: "length", at: 6 }));
    assert_eq!(with(14, &3u64.to_le_bytes()), Err(E::Gap { expected: 0, found: 3 }));
    assert_eq!(with(22, &[message[22] ^ 1]), Err(E::Digest));
    assert_eq!(with(message.len() - 1, &[0x55]), Err(E::Digest));
    let mut other = config;
    other.num_blocks += 1;
    let found = (config.block_size, config.num_blocks);
    let expected = (other.block_size, other.num_blocks);
    assert_eq!(Mirror::new(&other).apply(message).map(drop), Err(E::Geometry { expected, found }));
    // Whoever cuts a stream of bytes knows where a message ends as soon as its header is there.
    for cut in 0..BODY {
        assert_eq!(length(&message[..cut]), Ok(None));
    }
    assert_eq!(length(&[&message[..], message].concat()), Ok(Some(message.len() as u64)));
    assert_eq!(length(b"GET /"), Err(E::Magic));
}

#[test]
fn counts_take_no_memory_before_they_are_believed() {
    let mirror = Mirror::new(&config());
    // Each list of a plan in turn is said to be endless; then a row's.
    for lists in 0..4 {
        let body = [vec![0; 2 + lists], vec![0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2]].concat();
        let what = ["ended requests", "preempted requests", "copies", "rows"][lists];
        assert_eq!(apply_body(&mirror, &body), Err(MirrorError::Count { what, count: u32::MAX.into(), left: 2 }));
    }
    let new = |flags: u8, rest: &[u8]| [&[0, 0, 0, 0, 0, 1, 0, flags, 1, 1, 0, 3, 0][..], rest].concat();
    let endless = [0xff; 9].into_iter().chain([1, 0, 0]).collect::<Vec<_>>();
    let half = u64::MAX >> 1;
    for (flags, what, count, left) in
        [(0xc0 | 0x21, "tokens", u64::MAX, 2), (0xc0 | 0x09, "blocks", half, 1), (0xc0 | 0x05, "drafts", half, 2)]
    {
        assert_eq!(apply_body(&mirror, &new(flags, &endless)), Err(MirrorError::Count { what, count, left }));
    }
    // Lengths that are never written out.
    let long = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let kept = apply_body(&mirror, &new(0xc0 | 0x30, &[&long[..], &long].concat()));
    assert_eq!(kept, Err(MirrorError::Table { request: RequestId(1), expected: 1 << 30, found: 0 }));
}

fn apply_body(mirror: &Mirror, body: &[u8]) -> Result<(), MirrorError> {
    let mut mirror = mirror.clone();
    let mut out = Vec::new();
    let at = begin(&mut out, Kind::Plan, mirror.sequence());
    mirror.geometry.put(&mirror.groups, &mut out);
    out.extend_from_slice(body);
    seal(&mut out, at, mirror.digest());
    let answer = mirror.apply(&out).map(drop);
    let room = mirror.message.tokens.capacity() + mirror.message.blocks.capacity() + mirror.message.ended.capacity();
    assert!(room + mirror.message.preempted.capacity() + mirror.message.rows.capacity() < 64);
    answer
}

#[test]
fn a_resync_is_checked_like_the_rest() {
    let (config, messages) = varied();
    let mut leader = Leader::new(config);
    leader.submit(7, 21, 9);
    leader.schedule();
    leader.schedule();
    let mut resync = Vec::new();
    leader.encoder.resync(&leader.scheduler, &mut resync);
    let mut mirror = Mirror::new(&config);
    mirror.apply(&messages[0]).unwrap();
    let before = state(&mirror);
    for at in 0..resync.len() {
        assert!(mirror.apply(&resync[..at]).is_err());
        for value in [0, 1, 0x7f, 0x80, 0xff, resync[at] ^ 1] {
            let mut changed = resync.clone();
            changed[at] = value;
            assert!(changed == resync || mirror.apply(&changed).is_err());
            seal(&mut changed, 0, 0);
            // A wrong one with a right digest is taken or refused; and what was taken can be used.
            let mut other = mirror.clone();
            if other.apply(&changed).is_ok() {
                assert!(other.requests().count() <= 1);
            } else {
                assert_eq!(state(&other), before);
            }
        }
    }
    assert_eq!(state(&mirror), before);
    assert!(matches!(mirror.apply(&resync), Ok(Applied::Resynced)));
    assert_eq!((mirror.digest(), mirror.sequence()), (leader.encoder.digest(), 2));
    leader.complete(&[]);
    let next = leader.schedule();
    if let Some(message) = next {
        assert_eq!(origins(&mut mirror, &message), [Origin::Continues]);
    }
}

/// Anybody can seal a message: the digest has no key. Nothing that is counted may come near the end of its range.
#[test]
fn numbers_near_their_end_are_refused() {
    let config = config();
    let mirror = Mirror::new(&config);
    let resync = |sequence: u64, next_plan: u64, lost_at: u64| {
        let (mut mirror, mut out) = (mirror.clone(), Vec::new());
        let at = begin(&mut out, Kind::Resync, sequence);
        mirror.geometry.put(&mirror.groups, &mut out);
        out.extend_from_slice(&[0; 16]);
        put(&mut out, next_plan);
        put(&mut out, lost_at);
        put(&mut out, 0);
        seal(&mut out, at, 0);
        mirror.apply(&out).map(drop).map(|()| mirror)
    };
    let refused = |answer: Result<Mirror, MirrorError>| match answer {
        Err(MirrorError::Number { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    for number in [1 << 63, u64::MAX - 1, u64::MAX] {
        assert_eq!(refused(resync(number, 0, 0)), "sequence");
        assert_eq!(refused(resync(0, number, 0)), "plan number");
        assert_eq!(refused(resync(0, 0, number)), "plan number");
    }
    // The last that are taken: what comes next is refused, and nothing is counted beyond its range.
    let last = (1u64 << 63) - 1;
    let mut late = resync(last, last, last).unwrap();
    let next = |mirror: &Mirror, number: u64| {
        let mut out = Vec::new();
        let at = begin(&mut out, Kind::Plan, mirror.sequence());
        mirror.geometry.put(&mirror.groups, &mut out);
        put(&mut out, number);
        out.extend_from_slice(&[0; 5]);
        seal(&mut out, at, mirror.digest());
        out
    };
    let message = next(&late, last);
    assert!(late.apply(&message).is_ok());
    assert_eq!(late.sequence(), 1 << 63);
    let message = next(&late, 1 << 63);
    assert_eq!(late.apply(&message).map(drop), Err(MirrorError::Number { what: "sequence", at: 14 }));
    let mut late = resync(0, last, 0).unwrap();
    let message = next(&late, last);
    assert!(late.apply(&message).is_ok());
    let message = next(&late, 1 << 63);
    assert!(matches!(late.apply(&message), Err(MirrorError::Number { what: "plan number", .. })));
}
