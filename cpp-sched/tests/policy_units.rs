//! What a policy counts, to the unit: levels and tokens against time, decodes as well as prompts.

use cpp_sched::{Config, Gate, PolicyKind, Request, RequestId, Sample, Schedule, Scheduler};

#[test]
fn fair_charges_decodes_too_where_there_is_no_cost_model() {
    let mut config = Config::default();
    (config.policy, config.block_size, config.max_batch_tokens) = (PolicyKind::Fair, 4, 9);
    let mut scheduler = Scheduler::new(config).unwrap();
    let submit = |scheduler: &mut Scheduler, id, tenant, tokens, outputs| {
        let mut request = Request::new(RequestId(id), vec![7; tokens], outputs);
        request.tenant = Some(tenant);
        scheduler.submit(request).unwrap();
    };
    // Prompts of 4 and 12 tokens; then the first tenant decodes, and the second one's gate is shut.
    submit(&mut scheduler, 1, 1, 4, 40);
    submit(&mut scheduler, 2, 2, 12, 40);
    for round in 0..20 {
        let Schedule::Batch(batch) = scheduler.schedule() else { panic!("no batch in round {round}") };
        let (id, rows) = (batch.id(), batch.rows().to_vec());
        let samples: Vec<_> = rows.iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[1] }).collect();
        scheduler.complete(id, &samples).unwrap();
        if scheduler.num_output_tokens(RequestId(2)) == Some(1) {
            // Each round anew: all but the first change nothing.
            let _ = scheduler.shut(RequestId(2), Gate::Other);
        }
    }
    submit(&mut scheduler, 3, 1, 8, 1);
    submit(&mut scheduler, 4, 2, 8, 1);
    let batch = scheduler.schedule().batch().unwrap();
    assert_eq!(batch.rows().iter().map(|row| row.request.0).collect::<Vec<_>>(), [1, 4], "20 tokens and more against 13");
}

/// Two requests, each with prompt, priority and arrival: which comes first.
fn first_of(policy: PolicyKind, set: fn(&mut Config), requests: [(usize, i64, u64); 2]) -> u64 {
    let mut config = Config::default();
    (config.policy, config.block_size, config.max_batch_tokens) = (policy, 4, 4);
    set(&mut config);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.tick(10_000);
    for (id, (tokens, priority, arrival)) in (0..).zip(requests) {
        let mut request = Request::new(RequestId(id), vec![7; tokens], 1);
        (request.priority, request.arrival_ns) = (priority, Some(arrival));
        scheduler.submit(request).unwrap();
    }
    scheduler.schedule().batch().unwrap().rows()[0].request.0
}

#[test]
fn a_level_or_a_token_is_worth_exactly_its_ageing() {
    let priority = |arrival| first_of(PolicyKind::Priority, |c| c.priority_ageing_ns = Some(100), [(8, 3, 1000), (8, -2, arrival)]);
    assert_eq!([1499, 1500, 1501].map(priority), [1, 0, 0], "five levels are 500 ns; of two equal ones the earlier submit comes first");
    let srpf = |arrival| first_of(PolicyKind::Srpf, |c| c.srpf_ageing_ns = Some(100), [(13, 0, 1000), (8, 0, arrival)]);
    assert_eq!([1499, 1500, 1501].map(srpf), [1, 0, 0], "five tokens are 500 ns");
}
