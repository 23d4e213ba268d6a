//! tmp
use cpp_exec_mock::planning::*;
use cpp_sched::*;
fn random(state: &mut u64) -> u64 { *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15); let mut z = *state; z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9); z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb); z ^ (z >> 31) }
fn decades(state: &mut u64, low: f64, high: f64) -> f64 { let part = (random(state) >> 11) as f64 / (1u64 << 53) as f64; low * (high / low).powf(part) }
fn main() {
    let mut s = 1; let state = &mut s;
    for case in 0..1000 {
        let mut cost = CostModel::default();
        cost.c0 = Attos((decades(state, 1e5, 2e7) * 1e9) as u128);
        cost.c1 = Attos((decades(state, 50.0, 2e4) * 1e9) as u128);
        cost.c2 = Attos((decades(state, 1e-3, 3.0) * 1e9) as u128);
        if case % 4 == 3 { cost.c4 = Attos((decades(state, 1.0, 1e3) * 1e9) as u128); }
        let prompt = decades(state, 2e3, 3e5) as u32;
        let mut problem = Problem::new(prompt, [2, 4, 8, 16][(random(state) % 4) as usize], cost);
        problem.requests = [1, 1, 1, 2, 4, 16][(random(state) % 6) as usize];
        if random(state).is_multiple_of(4) { problem.cached = prompt / 2 / 256 * 256; }
        let mut n = problem; n.max_in_flight = Some(problem.stages);
        let o = best_target(&problem, problem.stages);
        let p = plan(&n).unwrap();
        if p.makespan.0 as f64 / o.makespan.0 as f64 > 1.005 {
            println!("{case} N={prompt} cached {} R {} P {} c {:?}: {:.4} best target {:.3} in {}; ours {:?}", problem.cached, problem.requests, problem.stages, (cost.c0.0/1000000000, cost.c1.0/1000000000, cost.c2.0), p.makespan.0 as f64 / o.makespan.0 as f64 - 1.0, o.target.0 as f64/1e15, o.batches, p.batches.iter().map(|b| b.0 / 1_000_000_000_000).take(40).collect::<Vec<_>>());
        }
    }
}
