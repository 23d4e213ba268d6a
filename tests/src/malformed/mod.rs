//! Bytes from anywhere, given to everything that reads bytes: nothing may panic, loop or take memory without bound, and what is accepted must
//! work. Each function takes any bytes; the fuzz targets and `tests/malformed.rs` call them.

mod good;

use std::path::Path;

use cpp_exec_mock::calibrate::Table;
use cpp_exec_mock::conformance::{Runner, Scenario};
use cpp_exec_mock::profile::Profile;
use cpp_exec_mock::study::Study;
use cpp_exec_mock::workload::{Format, LoadOptions, Workload};
use cpp_sched::journal::replay;
use cpp_sched::wire::Mirror;
use cpp_sched::{Config, Request, RequestId, Sample, Schedule, Scheduler, Snapshot};

pub use good::{Good, small_config};

/// A function of any bytes.
pub type Target = fn(&[u8]);

/// The function of each name.
pub const TARGETS: [(&str, Target); 5] =
    [("messages", messages), ("snapshots", snapshots), ("journals", journals), ("texts", texts), ("configurations", configurations)];

/// Messages for a worker: each begins with two bytes of length.
///
/// # Panics
/// If a mirror that refused a message has changed.
pub fn messages(mut bytes: &[u8]) {
    let mut mirror = Mirror::new(&small_config());
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (message, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
        bytes = rest;
        let before = (mirror.sequence(), mirror.digest(), mirror.requests().count(), mirror.encoded().len());
        if mirror.apply(message).is_err() {
            assert_eq!((mirror.sequence(), mirror.digest(), mirror.requests().count(), mirror.encoded().len()), before);
        }
    }
}

/// A snapshot in postcard's form, or (if it begins with `{`) in JSON. One that is accepted must go on.
///
/// # Panics
/// If a scheduler that was restored breaks.
pub fn snapshots(bytes: &[u8]) {
    let snapshot: Option<Snapshot> =
        if bytes.first() == Some(&b'{') { serde_json::from_slice(bytes).ok() } else { postcard::from_bytes(bytes).ok() };
    let Some(mut scheduler) = snapshot.and_then(|snapshot| Scheduler::restore(snapshot).ok()) else { return };
    let again = Scheduler::restore(scheduler.snapshot());
    assert!(again.is_ok(), "a snapshot of what was restored is refused: {:?}", again.err());
    go_on(&mut scheduler);
}

/// A journal; replaying it ends, one way or another.
pub fn journals(bytes: &[u8]) {
    let _ = replay(bytes);
}

/// A file of one of the formats that are text: the first byte says which.
///
/// # Panics
/// If what was read breaks its own promises.
pub fn texts(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match which % 10 {
        0 => {
            if let Ok(scenario) = Scenario::parse(&text) {
                // A scenario may ask for anything; a small one is played.
                if bytes.len() < 600 && Runner::new(&scenario, Vec::new()).is_ok() {}
            }
        }
        1 => {
            if let Ok(profile) = Profile::parse(&text, "fuzz") {
                for stages in [0, 1, 3, u32::MAX] {
                    let _ = (profile.stage_cost(stages), profile.num_blocks(stages), profile.config(stages));
                }
            }
        }
        2 => drop(Study::parse(&text)),
        3 => drop(Table::read(bytes)),
        format => {
            let options = LoadOptions { format: Format::ALL.get(usize::from(format) - 4).copied(), ..LoadOptions::default() };
            if let Ok(workload) = Workload::read(Path::new("fuzz"), bytes.to_vec(), &options) {
                assert!(!workload.items().is_empty(), "a workload without a request is an error");
                assert!(workload.items().windows(2).all(|pair| pair[0].arrival_ns <= pair[1].arrival_ns), "arrivals are in order");
            }
        }
    }
}

/// A configuration in JSON. One that is valid makes a scheduler that runs a request or refuses it.
///
/// # Panics
/// If a valid configuration makes a scheduler that breaks.
pub fn configurations(bytes: &[u8]) {
    let Ok(config) = serde_json::from_slice::<Config>(bytes) else { return };
    // What is large is right, and takes the memory that it asks for.
    if config.validate().is_err() || config.num_blocks > 1 << 16 || config.stages > 64 || config.depth() > 64 {
        return;
    }
    let mut scheduler = Scheduler::new(config).expect("a valid configuration");
    for id in 0..3 {
        let _ = scheduler.submit(Request::new(RequestId(id), vec![7; 40 + id as usize], 3));
    }
    go_on(&mut scheduler);
}

/// Some steps, right results.
fn go_on(scheduler: &mut Scheduler) {
    for _ in 0..20 {
        scheduler.check_invariants().expect("all is consistent");
        if let Schedule::Batch(_) = scheduler.schedule() {
            continue;
        }
        let Some(oldest) = scheduler.oldest_in_flight() else { break };
        let id = oldest.id();
        let sampling: Vec<_> = oldest.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
        let samples: Vec<_> = sampling.into_iter().map(|request| Sample { request, tokens: &[7] }).collect();
        scheduler.complete(id, &samples).expect("a right result");
    }
    scheduler.fail();
    scheduler.check_invariants().expect("all is consistent after a loss");
    for request in scheduler.unfinished() {
        _ = scheduler.abort(request);
    }
    scheduler.check_invariants().expect("all is consistent after aborts");
}
