//! Faults at random times.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, OpenClosed01};

use super::spec::When;
use super::{Fault, FaultError, FaultKind, FaultSpec};

/// Faults that a run may have.
const MOST: usize = 100_000;

/// Streams of the seed below this are those of the workload.
const FIRST_STREAM: u64 = 1 << 32;

/// Adds the faults of the `number`th specification.
pub(super) fn faults(
    spec: &FaultSpec,
    stages: u32,
    seed: u64,
    number: u64,
    horizon_ns: u64,
    list: &mut Vec<Fault>,
) -> Result<(), FaultError> {
    let fault = |at_ns, stage| Fault { at_ns, stage, kind: spec.kind, for_ns: spec.for_ns };
    match spec.when {
        When::At(at_ns) => list.push(fault(at_ns, spec.stage.unwrap_or(0))),
        When::Every { mean_ns, until_ns } => {
            let until_ns = until_ns.unwrap_or(horizon_ns);
            if until_ns == 0 {
                return Err(FaultError::new(&spec.text, "the last arrival is at 0: say until=TIME"));
            }
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(FIRST_STREAM + number);
            let drawable = if spec.kind == FaultKind::Hang { stages - 1 } else { stages };
            let mut at_ns = 0u64;
            loop {
                let uniform: f64 = OpenClosed01.sample(&mut rng);
                #[expect(clippy::cast_precision_loss, reason = "a mean of whole nanoseconds, rounded again below")]
                let gap_ns = (-libm::log(uniform) * mean_ns as f64 + 0.5) as u64;
                at_ns = at_ns.saturating_add(gap_ns.max(1));
                if at_ns >= until_ns {
                    return Ok(());
                }
                let stage = spec.stage.unwrap_or_else(|| rng.random_range(0..drawable));
                list.push(fault(at_ns, stage));
                if list.len() > MOST {
                    return Err(FaultError::new(&spec.text, &format!("more than {MOST} faults: make `every` longer")));
                }
            }
        }
    }
    Ok(())
}
