//! Which mutant is alive. This file stands in the copy that `tests/mutants` makes of the kernel, and nowhere else.
//!
//! `CPP_MUTANT=17` makes mutant 17 alive. `CPP_MUTANT=record:FILE` makes none alive and writes a line `thread<TAB>site` into the file when a
//! thread comes to a site for the first time; test threads are named after their tests.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};
use std::fs::File;
use std::io::Write;
use std::string::String;
use std::sync::Mutex;

/// No mutant has a number from here on.
const SPECIAL: u32 = 1 << 30;
const UNKNOWN: u32 = u32::MAX;
const RECORD: u32 = u32::MAX - 1;

static ALIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
static FILE: Mutex<Option<File>> = Mutex::new(None);

std::thread_local! {
    static SEEN: [Cell<u64>; 160] = const { [const { Cell::new(0) }; 160] };
}

/// The number of the mutant that is alive, 0 if none is. Asked at a site.
#[inline(always)]
pub(crate) fn at(site: u32) -> u32 {
    let alive = ALIVE.load(Ordering::Relaxed);
    if alive < SPECIAL { alive } else { ask(site) }
}

#[cold]
#[inline(never)]
fn ask(site: u32) -> u32 {
    if ALIVE.load(Ordering::Relaxed) == UNKNOWN {
        let text = std::env::var("CPP_MUTANT").unwrap_or_else(|_| String::from("0"));
        let alive = match text.strip_prefix("record:") {
            Some(path) => {
                let file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("the file of CPP_MUTANT");
                *FILE.lock().expect("a lock") = Some(file);
                RECORD
            }
            None => text.parse().expect("CPP_MUTANT is a number or record:FILE"),
        };
        ALIVE.store(alive, Ordering::Relaxed);
        return at(site);
    }
    let (word, bit) = (site as usize / 64, 1u64 << (site % 64));
    let new = SEEN.try_with(|seen| seen[word].replace(seen[word].get() | bit) & bit == 0).unwrap_or(true);
    if new {
        let thread = std::thread::current();
        let mut file = FILE.lock().expect("a lock");
        if let Some(file) = file.as_mut() {
            let line = std::format!("{}\t{site}\n", thread.name().unwrap_or("?"));
            file.write_all(line.as_bytes()).expect("the file of CPP_MUTANT takes lines");
        }
    }
    0
}

/// One of two types behind an `impl Trait`.
#[derive(Clone, Debug)]
pub(crate) enum Either<A, B> {
    Left(A),
    Right(B),
}

impl<A: Iterator<Item = B::Item>, B: Iterator> Iterator for Either<A, B> {
    type Item = B::Item;
    fn next(&mut self) -> Option<B::Item> {
        match self {
            Self::Left(a) => a.next(),
            Self::Right(b) => b.next(),
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Left(a) => a.size_hint(),
            Self::Right(b) => b.size_hint(),
        }
    }
}

impl<A: DoubleEndedIterator<Item = B::Item>, B: DoubleEndedIterator> DoubleEndedIterator for Either<A, B> {
    fn next_back(&mut self) -> Option<B::Item> {
        match self {
            Self::Left(a) => a.next_back(),
            Self::Right(b) => b.next_back(),
        }
    }
}

impl<A: ExactSizeIterator<Item = B::Item>, B: ExactSizeIterator> ExactSizeIterator for Either<A, B> {}
