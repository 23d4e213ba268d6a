//! Everything that reads bytes, on damaged forms of good inputs: small changes get further than noise. The fuzz targets go on from here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cpp_sched::Scheduler;
use cpp_sched::wire::Mirror;
use cpp_sched_tests::malformed::{Good, TARGETS, small_config};
use cpp_sched_tests::truth::mix;

fn damaged(good: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for turn in 0..1 + seed % 3 {
        let draw = mix(seed, turn);
        let at = (draw >> 8) as usize % bytes.len().max(1);
        match draw % 6 {
            _ if bytes.is_empty() => {}
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << (draw >> 40 & 7),
            2 => bytes[at] = [0, 0xff, 0x7f, 0x80, b'9', b'-'][(draw >> 40) as usize % 6],
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, (draw >> 40) as u8),
            _ => {
                let (from, to) = (at, (at + 8).min(bytes.len()));
                let piece = bytes[from..to].to_vec();
                bytes.splice(from..from, piece);
            }
        }
    }
    bytes
}

#[test]
fn damaged_inputs_are_refused_or_work() {
    let rounds = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256u64);
    for (index, good) in Good::all().iter().enumerate() {
        let (target, run) = TARGETS.iter().find(|(name, _)| *name == good.target).expect("a target of this name");
        run(&good.bytes);
        for seed in 0..rounds {
            let bytes = damaged(&good.bytes, mix(index as u64, seed));
            if catch_unwind(AssertUnwindSafe(|| run(&bytes))).is_err() {
                panic!("{target}, {}, seed {seed}: {:?}", good.name, String::from_utf8_lossy(&bytes));
            }
        }
    }
}

#[test]
fn good_inputs_are_good() {
    // Else the test above damages what is refused anyway.
    let all = Good::all();
    let of = |target| all.iter().filter(move |good| good.target == target);
    let journal = of("journals").next().expect("a journal");
    assert!(cpp_sched::journal::replay(&journal.bytes).unwrap().difference.is_none());
    let messages = &of("messages").next().expect("messages").bytes;
    let length = usize::from(u16::from_le_bytes([messages[0], messages[1]]));
    Mirror::new(&small_config()).apply(&messages[2..2 + length]).unwrap();
    let postcards: Vec<_> = of("snapshots").filter(|good| good.name.ends_with("postcard")).collect();
    assert!(!postcards.is_empty());
    for snapshot in postcards {
        Scheduler::restore(postcard::from_bytes(&snapshot.bytes).unwrap()).unwrap();
    }
}
