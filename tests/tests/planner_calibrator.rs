//! The calibrator under any times: no absurd coefficient, no panic, frozen means frozen.

use cpp_sched::planner::Calibrator;
use cpp_sched::{Attos, CostModel, CostTerms};
use proptest::prelude::*;

fn model(numerator: u128, denominator: u128) -> CostModel {
    let mut model = CostModel::default();
    let scale = |attos: u128| Attos(attos * numerator / denominator);
    (model.c0, model.c1, model.c2) = (scale(2_000_000_000_000_000), scale(3_000_000_000_000), scale(80_000_000));
    (model.c3, model.c4, model.c5) = (scale(2_000_000_000), scale(1_000_000_000), scale(500_000_000_000));
    model
}

fn times() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0..u64::MAX, 1_000_000u64..100_000_000]
}

proptest! {
    /// Whatever times come in, coefficients stay within their bounds, nothing panics, and equal inputs give equal integers.
    #[test]
    fn no_times_make_a_coefficient_absurd(
        stream in prop::collection::vec((0..u32::MAX / 2, 0..u32::MAX / 2, 0..31u32, 0..4u32, times()), 1..300),
        scale in 0..3usize,
        zero in any::<bool>(),
    ) {
        let mut given = [model(1, 1), model(3, 1), model(1, 3)][scale];
        if zero {
            given.c4 = Attos::ZERO;
        }
        let mut calibrator = Calibrator::new(given);
        let mut again = Calibrator::new(given);
        for (i, &(history, tokens, shift, decodes, time)) in stream.iter().enumerate() {
            let mut terms = CostTerms::prefill(history >> shift, tokens >> shift);
            terms.tokens += u64::from(decodes);
            terms.decodes = decodes.into();
            terms.decode_context = u64::from(decodes) * u64::from(history);
            calibrator.observe(&terms, time);
            again.observe(&terms, time);
            if i % 7 == 0 {
                calibrator.refit();
                again.refit();
            }
            for ((_, fitted), (_, given)) in calibrator.model().coefficients().into_iter().zip(given.coefficients()) {
                prop_assert!(fitted <= Attos::MAX_COEFFICIENT);
                if given > Attos::ZERO {
                    prop_assert!(fitted.0 >= given.0 / 101 && fitted.0 <= given.0 * 101, "{fitted:?} from {given:?}");
                }
            }
            let (low, high) = calibrator.interval(&terms);
            prop_assert!(low <= high && calibrator.error().is_finite());
        }
        prop_assert_eq!(calibrator.model(), again.model());
        prop_assert_eq!(calibrator.doubts(), again.doubts());
    }

    #[test]
    fn frozen_is_frozen(stream in prop::collection::vec((1..100_000u32, times()), 1..100)) {
        let mut calibrator = Calibrator::new(model(3, 1));
        for i in 0..30 {
            let terms = CostTerms::prefill(i % 7 * 3000, 256 + i * 37 % 4000);
            calibrator.observe(&terms, model(1, 1).cost(&terms).to_ns());
        }
        calibrator.refit();
        calibrator.freeze(true);
        let (model, used) = (calibrator.model(), calibrator.num_used());
        for (tokens, time) in stream {
            prop_assert!(!calibrator.observe(&CostTerms::prefill(0, tokens), time));
            prop_assert!(!calibrator.refit());
        }
        prop_assert_eq!((model, used), (calibrator.model(), calibrator.num_used()));
    }
}
