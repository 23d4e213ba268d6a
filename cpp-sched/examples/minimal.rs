//! The loop: fill the pipeline, run the oldest batch, hand its samples back, deliver what the events say.
//!
//! `cargo run -p cpp-sched --example minimal`

use cpp_sched::{Config, Event, Request, RequestId, Sample, Schedule, Scheduler, TokenId};

/// Stands for a model: one token for each row that samples. A real one runs the batch over its stages; see `toy_engine`.
fn run(rows: &[cpp_sched::Row]) -> Vec<(RequestId, TokenId)> {
    rows.iter().filter(|row| row.samples).map(|row| (row.request, 1000 + row.end())).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::default();
    config.stages = 4; // so up to 4 batches are in flight
    config.max_batch_tokens = 8; // so a prompt of 30 tokens is cut into 4 chunks, one a stage
    let mut scheduler = Scheduler::new(config)?;
    scheduler.submit(Request::new(RequestId(1), (0..30).collect(), 3))?;
    scheduler.submit(Request::new(RequestId(2), (50..55).collect(), 4))?;

    while !scheduler.is_idle() {
        while let Schedule::Batch(batch) = scheduler.schedule() {
            for row in batch.rows() {
                println!("{} runs {} {}..{} in {:?}", batch.id(), row.request, row.num_computed_tokens, row.end(), batch.blocks(row));
            }
        }
        let oldest = scheduler.oldest_in_flight().ok_or("nothing runs and nothing is in flight: a request waits for something outside")?;
        let (id, sampled) = (oldest.id(), run(oldest.rows()));
        let samples: Vec<_> =
            sampled.iter().map(|(request, token)| Sample { request: *request, tokens: std::slice::from_ref(token) }).collect();
        scheduler.complete(id, &samples)?;
        for event in scheduler.events() {
            match event {
                Event::Token { request, index, token } => println!("    {request}: output {index} is {token}"),
                Event::Finished { request, reason } => println!("    {request}: finished, {reason:?}"),
                _ => {}
            }
        }
    }
    Ok(())
}
