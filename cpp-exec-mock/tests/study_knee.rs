//! Studies: how capacity is measured, runs that give up early, and the knee.

use cpp_exec_mock::study::{Knee, Study, StudyError, Summary, knee, play, play_unless};
use cpp_sched::Chunking;

const STUDY: &str = r#"
name = "small"
about = "for tests"
profile = "demo"
stages = 4
seeds = [1]
report_seeds = [2]
phases = [{ load = 1.0, seconds = 30 }]

[[classes]]
name = "all"
share = 1.0
input = { kind = "log_normal", mean = 400, sigma = 0.5, most = 2000 }
output = { kind = "fixed", tokens = 20 }
ttft = { plus_s = 0.5 }
"#;

fn rate(study: &Study) -> f64 {
    let (_, mut config) = study.machine().unwrap();
    config.chunking = Chunking::Adaptive;
    study.capacity(config).unwrap()
}

#[test]
fn a_run_gives_up_only_when_more_than_allowed_have_missed() {
    let study = Study::parse(STUDY).unwrap();
    let (machine, config) = study.machine().unwrap();
    let jobs = study.draw(1, 1.2 * rate(&study)).unwrap();
    let fates = play(&jobs, &machine, config).unwrap();
    let missed = jobs.len() - Summary::of(&jobs, &fates, |_| true).met;
    assert!(missed > 10, "{missed}");
    assert_eq!(play_unless(&jobs, &machine, config, missed).unwrap(), Some(fates));
    assert_eq!(play_unless(&jobs, &machine, config, missed - 1).unwrap(), None);
}

#[test]
fn at_the_knee_one_in_a_hundred_misses_and_a_little_beyond_more_do() {
    let study = Study::parse(STUDY).unwrap();
    let (machine, config) = study.machine().unwrap();
    let rate = rate(&study);
    let point = knee(&study, rate, 1, config, Knee::Misses).unwrap();
    assert!(point.load > 0.2 && point.load < 1.28, "{point:?}");
    assert!(point.summary.attainment() >= 0.99);
    let jobs = study.draw(1, rate * (point.load + 0.01)).unwrap();
    let beyond = Summary::of(&jobs, &play(&jobs, &machine, config).unwrap(), |_| true);
    assert!(beyond.attainment() < 0.99, "{beyond:?}");
    // What must leave no queue behind as well is no more.
    assert!(knee(&study, rate, 1, config, Knee::Sustained).unwrap().load <= point.load);
}

#[test]
fn what_can_be_done_for_good_counts_what_is_decoded() {
    // More decode at once than the short measurement has requests.
    let long = STUDY.replace("tokens = 20", "tokens = 200").replace("demo", "llama-70b-h100-tp8");
    let prefill = rate(&Study::parse(&long).unwrap());
    let steady = rate(&Study::parse(&long.replace("stages = 4", "stages = 4\ncapacity = \"steady\"")).unwrap());
    assert!(steady < 0.8 * prefill, "{steady} of {prefill} requests a second");
}

#[test]
fn a_bound_on_batches_is_kept_or_refused() {
    let bounded = |value: &str| Study::parse(&STUDY.replace("stages = 4", &format!("stages = 4\nmax_batch_s = {value}")));
    assert_eq!(bounded("0.032").unwrap().machine().unwrap().1.adaptive.max_target_ns, Some(32_000_000));
    assert!(matches!(bounded("0.0"), Err(StudyError::Value(problem)) if problem.contains("max_batch_s")));
}
