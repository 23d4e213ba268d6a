use super::*;
use alloc::vec::Vec;

fn truth() -> CostModel {
    CostModel {
        c0: Attos::from_ns(2_000_000),
        c1: Attos::from_ns(3000),
        c2: Attos(80_000_000),
        c3: Attos(2_000_000_000),
        c4: Attos(1_000_000_000),
        c5: Attos::from_ns(500),
        ..CostModel::default()
    }
}

fn wrong(numerator: u128, denominator: u128) -> CostModel {
    let scale = |a: Attos| Attos(a.0 * numerator / denominator);
    let t = truth();
    CostModel { c0: scale(t.c0), c1: scale(t.c1), c2: scale(t.c2), c3: scale(t.c3), c4: scale(t.c4), c5: scale(t.c5), ..t }
}

/// Batches of many shapes: chunks, decodes, both.
fn shapes(n: u32) -> impl Iterator<Item = CostTerms> {
    (0..n).map(|i| {
        let mut terms = CostTerms::prefill(i % 7 * 3000, 256 + i * 37 % 4000);
        for decode in 0..i % 5 * 4 {
            terms.add(CostTerms::decode(1000 + decode * i % 9000, 1));
        }
        terms
    })
}

/// The largest relative error of a model over many shapes.
fn error(model: &CostModel) -> f64 {
    let errors = shapes(50).map(|terms| (model.cost(&terms).0 as f64 / truth().cost(&terms).0 as f64 - 1.0).abs());
    errors.fold(0.0, f64::max)
}

#[test]
fn exact_times_are_fitted_from_a_model_that_is_wrong_by_three() {
    for given in [wrong(3, 1), wrong(1, 3), CostModel { c1: wrong(3, 1).c1, c4: Attos::ZERO, ..wrong(1, 3) }] {
        let mut calibrator = Calibrator::new(given);
        for terms in shapes(200) {
            calibrator.observe(&terms, truth().cost(&terms).to_ns());
        }
        calibrator.refit();
        assert!(calibrator.is_trusted());
        assert!(error(&calibrator.model()) < 0.01, "{given:?}: {:?}", calibrator.model());
        for terms in shapes(50) {
            let (low, high) = calibrator.interval(&terms);
            let exact = truth().cost(&terms).to_ns();
            assert!((low..=high).contains(&exact));
            // What was measured without an error is predicted without much of one.
            assert!(high - low < exact / 10, "{low}..={high}");
        }
    }
}

#[test]
fn early_outliers_and_a_slow_warm_up_do_not_throw_the_fit() {
    for given in [wrong(3, 1), wrong(1, 3)] {
        let mut calibrator = Calibrator::new(given);
        for (i, terms) in shapes(40).enumerate() {
            let slow = [10, 4, 2, 2, 1, 7, 1, 1, 1, 1, 1, 9].get(i).copied().unwrap_or(1);
            calibrator.observe(&terms, truth().cost(&terms).to_ns() * slow);
        }
        calibrator.refit();
        assert!(calibrator.is_trusted() && error(&calibrator.model()) < 0.02, "{:?}", calibrator.model());
    }
}

#[test]
fn a_change_of_the_machine_is_followed() {
    let mut calibrator = Calibrator::new(truth());
    for terms in shapes(500) {
        calibrator.observe(&terms, truth().cost(&terms).to_ns());
    }
    for terms in shapes(100) {
        calibrator.observe(&terms, wrong(2, 1).cost(&terms).to_ns());
    }
    calibrator.refit();
    let (model, twice) = (calibrator.model(), wrong(2, 1));
    for terms in shapes(50) {
        let (is, said) = (twice.cost(&terms).to_ns(), model.cost(&terms).to_ns());
        assert!(is.abs_diff(said) < is / 50, "{said} for {is}");
    }
}

#[test]
fn a_long_run_of_decodes_leaves_what_is_known_about_prompts() {
    let mut calibrator = Calibrator::new(wrong(3, 1));
    for terms in shapes(300) {
        calibrator.observe(&terms, truth().cost(&terms).to_ns());
    }
    for i in 0..20_000u32 {
        let mut terms = CostTerms::default();
        (0..=i % 30).for_each(|decode| terms.add(CostTerms::decode(500 + decode * 100 + i % 977, 1)));
        calibrator.observe(&terms, truth().cost(&terms).to_ns());
    }
    calibrator.refit();
    assert!(error(&calibrator.model()) < 0.02, "{:?}", calibrator.model());
}

#[test]
fn a_bad_fit_falls_back_to_the_given_model() {
    let mut calibrator = Calibrator::new(truth());
    for (i, terms) in shapes(200).enumerate() {
        calibrator.observe(&terms, truth().cost(&terms).to_ns() * [1, 9, 3, 30][i % 4]);
    }
    calibrator.refit();
    assert!(!calibrator.is_trusted());
    assert_eq!(calibrator.model(), truth());
}

#[test]
fn floors_stay_as_given_and_the_rest_is_fitted() {
    let floor = CostModel { linear_floor: Attos::from_ns(5_000_000), ..truth() };
    let mut calibrator = Calibrator::new(CostModel { linear_floor: floor.linear_floor, ..wrong(2, 1) });
    for terms in shapes(300) {
        calibrator.observe(&terms, floor.cost(&terms).to_ns());
        // Whether a floor holds is judged by the last fit.
        calibrator.refit();
    }
    calibrator.refit();
    for terms in shapes(50) {
        let (is, said) = (floor.cost(&terms).to_ns(), calibrator.model().cost(&terms).to_ns());
        assert!(is.abs_diff(said) < is / 20, "{said} for {is}");
    }
}

#[test]
fn stages_are_fitted_each_for_itself_and_probing_ends() {
    let mut calibrator = StageCalibrator::new(&[wrong(3, 1), wrong(1, 3)]);
    let mut handed_out = 0;
    for terms in shapes(200) {
        let time = truth().cost(&terms).to_ns();
        calibrator.observe(&terms, &[time, time * 2, 77]);
        handed_out += usize::from(calibrator.update().is_some());
    }
    assert!(handed_out > 0 && !calibrator.is_probing());
    assert!(error(&calibrator.stages()[0].model()) < 0.02);
    for terms in shapes(50) {
        let (first, second) = (calibrator.stages()[0].model().cost(&terms).to_ns(), calibrator.stages()[1].model().cost(&terms).to_ns());
        assert!((2 * first).abs_diff(second) < first / 20);
    }
    calibrator.freeze(true);
    assert!(calibrator.update().is_none());
}

#[test]
fn a_frozen_probe_hands_the_plain_fit_out() {
    let mut calibrator = StageCalibrator::new(&[wrong(3, 1)]);
    let terms = CostTerms::prefill(0, 1000);
    let mut probed = Attos::ZERO;
    for _ in 0..20 {
        calibrator.observe(&terms, &[truth().cost(&terms).to_ns()]);
        probed = calibrator.update().map_or(probed, |models| models[0].c0);
    }
    assert!(calibrator.is_probing(), "equal batches say nothing about the constant");
    calibrator.freeze(true);
    let fitted = calibrator.stages()[0].model();
    assert!(probed < fitted.c0, "probing asks for shorter chunks");
    assert_eq!(calibrator.update(), Some(&[fitted][..]));
}

/// A period that starts with every tenth batch met alternating turns of six at the same parity for ever, and nothing was learnt.
#[test]
fn probing_asks_for_shorter_chunks_whenever_a_busy_period_starts_until_the_constant_is_certain() {
    let mut calibrator = StageCalibrator::new(&[wrong(3, 1); 8]);
    let (mut starts, mut handed_out) = (0, Attos::ZERO);
    for batch in 1..=60u32 {
        let terms = CostTerms::prefill(0, 3000 + batch % 10);
        calibrator.observe(&terms, &[truth().cost(&terms).to_ns(); 8]);
        handed_out = calibrator.update().map_or(handed_out, |models| models[0].c0);
        if batch % 10 == 0 && calibrator.is_probing() {
            starts += 1;
            assert!(handed_out < truth().c0, "batch {batch}: {handed_out:?}");
        }
    }
    assert!(starts > 2);
}

/// A batch costs what its dearest stage takes: without the others' help one stage whose times are useless would spoil all plans.
#[test]
fn a_stage_without_a_fit_of_its_own_follows_the_others() {
    let mut calibrator = StageCalibrator::new(&[wrong(3, 1); 4]);
    let mut models = Vec::new();
    for (i, terms) in shapes(200).enumerate() {
        let time = truth().cost(&terms).to_ns();
        // The last stage is measured by a clock that is good for nothing; the third takes a half more than the first two.
        calibrator.observe(&terms, &[time, time, time * 3 / 2, time * [1, 9, 3, 30][i % 4]]);
        if let Some(new) = calibrator.update() {
            models = new.to_vec();
        }
    }
    assert!(!calibrator.stages()[3].is_trusted());
    let given = calibrator.stages()[3].model();
    for terms in shapes(50) {
        let told = |model: &CostModel| model.cost(&terms).0 as f64 / truth().cost(&terms).0 as f64;
        assert!((told(&models[0]) - 1.0).abs() < 0.1 && (told(&models[2]) - 1.5).abs() < 0.15, "{models:?}");
        assert!(told(&models[3]) < 12.0 && (told(&given) - 3.0).abs() < 0.01, "{models:?}");
    }
}

#[test]
fn tables_are_fitted_without_a_model() {
    let times: Vec<_> = shapes(100).map(|terms| (terms, truth().cost(&terms).to_ns())).collect();
    let fit = fit_table(&times).unwrap();
    assert!(error(&fit.model) < 0.01, "{fit:?}");
    assert_eq!(fit_table(&[]), None);
    assert_eq!(fit_table(&[(CostTerms::prefill(0, 1), 0)]), None);
}
