//! Messages over a network that loses, repeats, delays, cuts and changes them: a worker takes exactly the next message of its stream as it was
//! written, makes of it what every worker does, and anything else leaves it as it was. A resync puts it back.

use cpp_sched::Config;
use cpp_sched::wire::{Applied, Mirror, MirrorError};

use crate::driver::{Delivery, Driver, Failure, told};
use crate::world::World;

/// Bytes that say what happens on the way, before those of the world.
pub const FAULTS: usize = 32;

/// How often what happened, for tests that ask whether it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Messages taken.
    pub taken: u64,
    /// Resyncs taken.
    pub resyncs: u64,
    /// Messages refused: cut or changed, missing ones before them, applied before.
    pub refused: [u64; 3],
}

struct Worker {
    mirror: Mirror,
    met: Met,
}

impl Worker {
    fn stream(&self) -> (u64, u128) {
        (self.mirror.sequence(), self.mirror.digest())
    }

    /// A message arrives as it was written.
    fn receive(&mut self, delivery: &Delivery) -> Result<(), String> {
        let (before, fits) = (self.stream(), delivery.resync || self.stream() == delivery.before);
        let answer =
            self.mirror.apply(&delivery.bytes).map(|applied| if let Applied::Plan(plan) = applied { told(&plan) } else { String::new() });
        match answer {
            Ok(said) if fits => {
                if said != delivery.told || self.stream() != delivery.after {
                    return Err(format!("this worker is told {said} and is at {:?}, others {delivery:?}", self.stream()));
                }
                *(if delivery.resync { &mut self.met.resyncs } else { &mut self.met.taken }) += 1;
            }
            Ok(said) => return Err(format!("a worker at {before:?} takes a message for {:?}: {said}", delivery.before)),
            Err(error) if fits => return Err(format!("a worker at {before:?} refuses its next message: {error}")),
            Err(error) => self.refused(before, &error)?,
        }
        Ok(())
    }

    /// Bytes arrive that nobody wrote.
    fn receive_damaged(&mut self, bytes: &[u8]) -> Result<(), String> {
        let before = self.stream();
        match self.mirror.apply(bytes).map(drop) {
            Ok(()) => Err(format!("a worker at {before:?} takes {bytes:?}, which nobody wrote")),
            Err(error) => self.refused(before, &error),
        }
    }

    fn refused(&mut self, before: (u64, u128), error: &MirrorError) -> Result<(), String> {
        if self.stream() != before {
            return Err(format!("a message that is refused ({error}) has changed the worker"));
        }
        let kind = match error {
            MirrorError::Gap { .. } => 1,
            MirrorError::Repeated { .. } => 2,
            _ => 0,
        };
        self.met.refused[kind] += 1;
        Ok(())
    }
}

/// Runs a world, then gives one more worker what the others were sent, by an unreliable network.
///
/// # Errors
/// A broken rule of the world, or a worker that takes what it must not, refuses what it must take, or makes something else of it.
pub fn deliver(world: &World, faults: &[u8]) -> Result<Met, Failure> {
    let failure = |text| Failure { op: None, text };
    let mut driver = Driver::new(world.config).map_err(|error| failure(error.to_string()))?;
    driver.record_deliveries();
    for (number, op) in world.ops.iter().enumerate() {
        driver.apply(op).map_err(|text| Failure { op: Some(number), text })?;
    }
    driver.drain().map_err(failure)?;
    play(&world.config, driver.deliveries(), faults).map_err(failure)
}

fn play(config: &Config, sent: &[Delivery], faults: &[u8]) -> Result<Met, String> {
    let mut worker = Worker { mirror: Mirror::new(config), met: Met::default() };
    let fault = |at: usize| faults.get(at % FAULTS).copied().unwrap_or_default();
    let mut late: Option<&Delivery> = None;
    for (number, delivery) in sent.iter().enumerate() {
        let (what, how) = (fault(number), usize::from(fault(number + 7)));
        // A worker that is in step is rarely given a resync.
        if delivery.resync && worker.stream() == delivery.after && how % 8 != 0 {
            continue;
        }
        match what % 16 {
            0..8 => worker.receive(delivery)?,
            // Lost.
            8 => {}
            9 => {
                worker.receive(delivery)?;
                worker.receive(delivery)?;
            }
            10 => late = Some(delivery),
            11 => {
                let cut = how % delivery.bytes.len();
                worker.receive_damaged(&delivery.bytes[..cut])?;
                worker.receive(delivery)?;
            }
            12 => {
                let mut changed = delivery.bytes.clone();
                let at = how * 7 % changed.len();
                changed[at] ^= 1 << (what >> 4 & 7);
                worker.receive_damaged(&changed)?;
            }
            13 => {
                // One from before comes again.
                worker.receive(&sent[number - number.min(how % 9)])?;
                worker.receive(delivery)?;
            }
            14 => worker.receive_damaged(&[&delivery.bytes[..], &[what]].concat())?,
            _ => {
                // The worker starts again and knows nothing.
                worker.mirror = Mirror::new(config);
                worker.receive(delivery)?;
            }
        }
        if what % 16 != 10
            && let Some(delivery) = late.take()
        {
            worker.receive(delivery)?;
        }
    }
    // In the end a resync helps whatever has happened.
    if let Some(last) = sent.iter().rev().find(|delivery| delivery.resync) {
        worker.receive(last)?;
    }
    Ok(worker.met)
}
