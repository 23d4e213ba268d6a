//! The sums of a batch and of all batches, whoever is taken out of a batch while it is made.

use std::collections::BTreeMap;

use cpp_sched::{Admission, Attos, Balance, CostModel, CostTerms, ModelDims, Row, RowKind};

use crate::bench::{Bench, request};

fn model() -> CostModel {
    let mut cost = CostModel::default();
    let coefficients = [&mut cost.c0, &mut cost.c1, &mut cost.c2, &mut cost.c3, &mut cost.c4, &mut cost.c5];
    for (coefficient, ns) in coefficients.into_iter().zip([1000, 10, 3, 5, 7, 100]) {
        *coefficient = Attos::from_ns(ns);
    }
    cost
}

fn terms(row: &Row) -> CostTerms {
    match row.kind {
        RowKind::Prefill => CostTerms::prefill(row.num_computed_tokens, row.num_scheduled_tokens),
        RowKind::Decode => CostTerms::decode(row.num_computed_tokens, row.num_scheduled_tokens),
    }
}

/// Requests with drafts, in pools that are too small for them: a decode that lacks a block takes it from one that the same batch has placed.
#[test]
fn sums_hold_whoever_is_taken_out_of_the_batch_that_is_made() {
    let dims = ModelDims::new(2, 64, 4, 2, 16, 128);
    let (mut taken_out, mut without_drafts) = (0, 0);
    for world in 0..96u32 {
        let mut bench = Bench::new(|c| {
            (c.num_blocks, c.admission, c.stages) = (9 + world % 7, Admission::Lazy, 1 + world / 7 % 3);
            (c.cost, c.model, c.max_batch_tokens) = (Some(model()), Some(dims), 14 + world % 5);
            c.balance = [Balance::Off, Balance::Count, Balance::Cost][world as usize % 3];
            c.draft_slots = world / 3 % 2;
        });
        for id in 1..=4 {
            bench.with(request(id, 3 + (world + id as u32) % 6, 14), |r| {
                r.drafts = if world % 4 == 3 { 0 } else { (id as u32 + world) % 4 }
            });
        }
        let (mut drafts, mut tokens, mut again) = (0u64, 0u64, 0u64);
        let mut reached = BTreeMap::new();
        for _ in 0..400 {
            if bench.scheduler.is_idle() {
                break;
            }
            if bench.try_step().is_err() {
                bench.complete();
                continue;
            }
            let batch = bench.last();
            let mut sum = CostTerms::default();
            for row in batch.rows() {
                let t = terms(row);
                (sum.tokens, sum.pairs, sum.decodes) = (sum.tokens + t.tokens, sum.pairs + t.pairs, sum.decodes + t.decodes);
                (sum.decode_context, sum.prefill_history) =
                    (sum.decode_context + t.decode_context, sum.prefill_history + t.prefill_history);
                assert_eq!(row.flops, dims.flops(row.num_computed_tokens, row.num_scheduled_tokens));
                drafts += u64::from(row.num_draft_tokens);
                let before = reached.entry(row.request).or_insert(0u32);
                again += u64::from((*before).min(row.end()).saturating_sub(row.num_computed_tokens));
                *before = row.end().max(*before);
            }
            tokens += sum.tokens;
            assert_eq!((batch.num_tokens(), batch.cost_ns()), (sum.tokens, model().cost(&sum).to_ns()), "world {world}");
            assert_eq!(batch.flops(), batch.rows().iter().map(|row| row.flops).sum::<u128>());
            // A drafter takes its slots beside each row.
            let slots = batch.rows().len() as u64 * u64::from(world / 3 % 2);
            assert!(sum.tokens + slots <= u64::from(14 + world % 5), "world {world}");
            taken_out += u32::from(!batch.preempted().is_empty());
            // Half of the drafts are right.
            if bench.scheduler.in_flight() == 1 + world / 7 % 3 {
                bench.complete_with(|row| {
                    let first = 1000 + row.end() - row.num_draft_tokens;
                    (first..=first + row.num_draft_tokens / 2).collect()
                });
            }
        }
        assert!(bench.scheduler.is_idle(), "world {world}");
        let stats = bench.stats();
        assert_eq!((stats.draft_tokens, stats.scheduled_tokens), (drafts, tokens), "world {world}");
        // A position behind a draft that was wrong runs again, too, and is no recomputed one.
        assert!(stats.recomputed_tokens <= again && (drafts > 0 || stats.recomputed_tokens == again), "world {world}");
        without_drafts += u32::from(drafts == 0 && again > 0);
        assert_eq!((stats.running, stats.waiting, stats.output_tokens), (0, 0, 4 * 14), "world {world}");
    }
    assert!(taken_out > 50 && without_drafts > 5, "{taken_out} batches named somebody who was preempted, {without_drafts} worlds");
}
