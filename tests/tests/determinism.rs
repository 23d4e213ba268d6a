//! Equal inputs give equal batches: run twice, under another hash key, and with other ids.

use std::collections::BTreeMap;

use cpp_sched::{Event, HashKey, RequestId};
use cpp_sched_tests::driver::{Driver, Line, Record};
use cpp_sched_tests::world::{Kind, World};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn config() -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("tests/determinism.proptest-regressions");
    let default = ProptestConfig::default();
    ProptestConfig { failure_persistence: Some(Box::new(seeds)), cases: default.cases / 4 + 1, ..default }
}

fn failed(text: impl ToString) -> TestCaseError {
    TestCaseError::fail(text.to_string())
}

/// Runs two worlds side by side: all that can be asked must be the same after each operation, block numbers included.
fn same_all_the_way(one: &World, other: &World) -> Result<(), TestCaseError> {
    let (mut a, mut b) = (Driver::new(one.config).map_err(failed)?, Driver::new(other.config).map_err(failed)?);
    for (op, twin) in one.ops.iter().zip(&other.ops) {
        a.apply(op).map_err(failed)?;
        b.apply(twin).map_err(failed)?;
        prop_assert_eq!(a.observe(), b.observe(), "after {:?}", op);
    }
    a.drain().map_err(failed)?;
    b.drain().map_err(failed)?;
    prop_assert_eq!(a.records(), b.records());
    Ok(())
}

/// Another name for an id, that falls elsewhere in every map.
fn renamed(id: u64) -> u64 {
    (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn rename(world: &World) -> World {
    let mut other = world.clone();
    for op in &mut other.ops {
        for id in op.ids_mut() {
            *id = renamed(*id);
        }
    }
    other
}

/// The records of a renamed world with the old names.
fn with_old_names(records: &[Record], names: &BTreeMap<u64, u64>) -> Vec<String> {
    let old = |id: &mut RequestId| *id = RequestId(names[&id.0]);
    records
        .iter()
        .cloned()
        .map(|mut record| {
            match &mut record.line {
                Line::Batch(rows, preempted) => {
                    rows.iter_mut().for_each(|row| old(&mut row.request));
                    preempted.iter_mut().for_each(old);
                }
                Line::Effect(_, id, _) => old(id),
                // Errors name the request several times: only whether there is one is compared.
                Line::Submit(id, answer) => return format!("submit {:?} {}", names[&id.0], answer.is_ok()),
                _ => {}
            }
            let events = record.events.iter().map(|event| match *event {
                Event::Token { mut request, index, token } => {
                    old(&mut request);
                    format!("{:?}", Event::Token { request, index, token })
                }
                Event::Finished { mut request, reason } => {
                    old(&mut request);
                    format!("{:?}", Event::Finished { request, reason })
                }
                Event::Preempted { mut request } => {
                    old(&mut request);
                    format!("{:?}", Event::Preempted { request })
                }
                other => format!("{:?}", std::mem::discriminant(&other)),
            });
            format!("{:?} {:?} {:?}", record.line, events.collect::<Vec<_>>(), record.kv)
        })
        .collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn two_runs_are_equal(world in World::strategy(Kind::Any, 60)) {
        same_all_the_way(&world, &world)?;
    }

    #[test]
    fn the_hash_key_decides_nothing(world in World::strategy(Kind::Any, 60), key in any::<[u8; 16]>()) {
        let mut other = world.clone();
        other.config.hash_key = HashKey(key);
        same_all_the_way(&world, &other)?;
    }

    #[test]
    fn the_names_of_requests_decide_nothing(world in World::strategy(Kind::Any, 60)) {
        let names: BTreeMap<u64, u64> = (0..300).flat_map(|id| [(id, id), (renamed(id), id)]).collect();
        let records = Driver::run(&world).map_err(failed)?;
        let other = Driver::run(&rename(&world)).map_err(failed)?;
        prop_assert_eq!(with_old_names(&records, &names), with_old_names(&other, &names));
    }
}
