//! Writes the inputs that fuzzing starts from, again after a format has changed: `cargo run -p cpp-sched-tests --example corpus -- fuzz/corpus`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cpp_sched_tests::driver::{Driver, Line};
use cpp_sched_tests::malformed::Good;
use cpp_sched_tests::op::GENE;
use cpp_sched_tests::truth::mix;
use cpp_sched_tests::world::{HEADER, Kind, World};

/// Some world, of this many operations.
fn world(seed: u64, operations: usize) -> Vec<u8> {
    (0..(HEADER + operations * GENE) as u64).map(|i| mix(seed, i).to_le_bytes()[2]).collect()
}

/// A byte over and over, the others in between.
fn mostly(byte: u8) -> Vec<u8> {
    (0..32u8).map(|at| if at % 3 == 0 { byte } else { at / 3 % 2 }).collect()
}

/// Policies that answer one thing most of the time, and a network with one fault most of the time, each in a world.
fn with_faults() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let policies = [
        ("everybody_is_put_off_for_ever", 0),
        ("everybody_is_put_off_for_a_while", 1),
        ("who_has_come_furthest_waits", 3),
        ("last_in_first_out", 4),
        ("the_largest_and_the_smallest_keys", 5),
        ("keys_that_fall_at_any_rate", 6),
    ];
    let networks = [
        ("lost", 8),
        ("twice", 9),
        ("late", 10),
        ("cut", 11),
        ("changed", 12),
        ("older_ones_again", 13),
        ("too_long", 14),
        ("the_worker_starts_again", 15),
    ];
    let policies = policies.into_iter().map(|(name, habit)| ("policies", name, habit));
    let networks = networks.into_iter().map(|(name, fault)| ("mirrors", name, fault));
    policies.chain(networks).map(|(target, name, byte)| (target, name, [mostly(byte), world(byte.into(), 40)].concat())).collect()
}

/// Small worlds of the reference scheduler, the first that meets what its name says.
fn of_the_reference() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    type Meets = fn(&Line) -> bool;
    let wanted: [(&str, Meets); 4] = [
        ("preemption", |line| matches!(line, Line::Batch(_, preempted) if preempted.len() > 1)),
        ("batches_lost", |line| matches!(line, Line::Fail(lost) if *lost > 1)),
        ("prefix_hit", |line| matches!(line, Line::Batch(rows, _) if rows.iter().any(|row| row.start > 8 && row.start % 4 == 0))),
        ("abort_of_a_running_request", |line| matches!(line, Line::Effect("abort", _, true))),
    ];
    let found = |meets: Meets| {
        (0..100_000).map(|seed| world(seed, 20)).find(|bytes| {
            let run = Driver::run(&World::from_bytes(Kind::Reference, bytes)).unwrap_or_default();
            run.iter().any(|record| meets(&record.line))
        })
    };
    wanted.into_iter().filter_map(|(name, meets)| Some(("reference", name, found(meets)?))).collect()
}

fn write(folder: &Path, target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder.join(target))?;
    std::fs::write(folder.join(target).join(name), bytes)
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1).map(PathBuf::from) else {
        eprintln!("usage: corpus FOLDER");
        return ExitCode::from(2);
    };
    let worlds = with_faults().into_iter().chain(of_the_reference()).map(|(target, name, bytes)| (target, name.to_owned(), bytes));
    for (target, name, bytes) in Good::all().into_iter().map(|good| (good.target, good.name, good.bytes)).chain(worlds) {
        if let Err(error) = write(&folder, target, &name, &bytes) {
            eprintln!("{target}/{name}: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
