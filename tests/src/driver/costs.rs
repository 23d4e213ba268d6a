//! What a batch costs, computed again from its rows, and other prices at run time.

use cpp_sched::{Attos, Batch, Chunking, ConfigError, CostModel, CostTerms, RowKind};

use super::groups::on_grain;
use super::{Driver, ensure};
use crate::truth::mix;

impl Driver {
    /// Cost and FLOPs, computed again from the rows.
    pub(super) fn check_sums(&self, batch: &Batch) -> Result<(), String> {
        let (mut tokens, mut pairs, mut context, mut history, mut decodes, mut flops) = (0u64, 0u128, 0u64, 0u64, 0u64, 0u128);
        for row in batch.rows() {
            let (x, l) = (u128::from(row.num_scheduled_tokens), u128::from(row.num_computed_tokens));
            let attended = x * l + x * (x + 1) / 2;
            tokens += u64::from(row.num_scheduled_tokens);
            match row.kind {
                RowKind::Decode => (context, decodes) = (context + u64::from(row.num_computed_tokens), decodes + 1),
                RowKind::Prefill => (pairs, history) = (pairs + attended, history + u64::from(row.num_computed_tokens)),
            }
            let expected = self.config.model.map_or(0, |m| {
                let (layers, heads, head_dim) = (u128::from(m.layers), u128::from(m.heads), u128::from(m.head_dim));
                let (hidden, kv_heads, intermediate) = (u128::from(m.hidden), u128::from(m.kv_heads), u128::from(m.intermediate));
                let weights = layers * hidden * (2 * heads * head_dim + 2 * kv_heads * head_dim + 3 * intermediate);
                2 * x * weights + 4 * heads * head_dim * layers * attended
            });
            ensure!(row.flops == expected, "{}: {} FLOPs, must be {expected}", row.request, row.flops);
            flops += expected;
        }
        ensure!(batch.flops() == flops, "{} FLOPs in the batch, must be {flops}", batch.flops());
        let terms = batch.terms();
        let got = (terms.tokens, terms.pairs, terms.decode_context, terms.prefill_history, terms.decodes);
        ensure!(got == (tokens, pairs, context, history, decodes), "the terms are {terms:?}");
        if self.stages.is_empty() {
            ensure!(batch.cost_ns() == 0 && self.config.cost.is_none(), "a cost without a cost model");
            return Ok(());
        }
        let on = |m: &CostModel| {
            let tiles = u128::from(tokens).div_ceil(m.tile.max(1).into()) * u128::from(m.tile.max(1));
            let linear = (m.c1.0 * tiles).max(m.linear_floor.0);
            let read = m.prefill_read.0 * u128::from(history + tokens - decodes);
            let attention = if pairs > 0 { (m.c2.0 * pairs).max(read) } else { 0 };
            m.c0.0 + linear + attention + m.c3.0 * u128::from(context) + m.c4.0 * u128::from(history) + m.c5.0 * u128::from(decodes)
        };
        let attos = self.stages.iter().map(on).max().unwrap_or(0);
        let ns = (attos + Attos::PER_NS / 2) / Attos::PER_NS;
        ensure!(u128::from(batch.cost_ns()) == ns, "the batch costs {} ns, must be {ns}", batch.cost_ns());
        if let Chunking::Cost { target_ns, align, min } = self.config.chunking
            && attos > Attos::from_ns(target_ns).0
        {
            let [row] = batch.rows() else { return Err(format!("{ns} ns in {:?}, the target is {target_ns}", batch.rows())) };
            let new = row.num_scheduled_tokens - row.num_draft_tokens;
            let who = self.alive.get(&row.request).copied().unwrap_or_default();
            // An atomic span cannot be cut.
            let atomic =
                super::encodings::in_row(self.requests[who].text.spans(), row.num_computed_tokens, row.end()).any(|span| span.atomic);
            let smallest = row.kind == RowKind::Decode || atomic || new < on_grain(&self.config, align) + min;
            ensure!(smallest, "{ns} ns in a chunk of {new} tokens, the target is {target_ns}");
        }
        Ok(())
    }

    /// Other prices, for all stages or one for each: what does not fit is refused and changes nothing.
    pub(super) fn set_costs(&mut self, models: u32, seed: u64) -> Result<(), String> {
        let stages = self.config.stages;
        let count = match models {
            0 => 0,
            1..=3 => 1,
            4..=6 => stages,
            _ => stages + 1,
        };
        let model = |number: u64| {
            let bits = mix(seed, number);
            let part = |shift: u32, most: u64| (bits >> shift) % most;
            let mut model = CostModel::default();
            (model.c0, model.c1) = (Attos::from_ns(part(0, 300)), Attos::from_ns(part(10, 20)));
            (model.c2, model.c4) = (Attos(u128::from(part(20, 3)) * 700_000_000), Attos(u128::from(part(24, 2)) * 250_000_000));
            (model.c3, model.c5) = (Attos::from_ns(part(28, 4)), Attos::from_ns(part(32, 20)));
            model.tile = part(38, 2) as u32 * 4;
            model.linear_floor = Attos::from_ns(part(42, 2) * 90);
            model
        };
        let mut models: Vec<_> = (0..u64::from(count)).map(model).collect();
        let flaw = seed % 16 == 15 && count > 0;
        if flaw {
            models[0].c1 = Attos(Attos::MAX_COEFFICIENT.0 + 1);
        }
        let expected = if self.config.cost.is_none() {
            Err(ConfigError::CostFixed)
        } else if count == 0 || count > 1 && count != stages {
            Err(ConfigError::StageCosts { stages, given: count })
        } else if flaw {
            Err(ConfigError::TooLarge { field: "c1", most: Attos::MAX_COEFFICIENT.to_ns() })
        } else {
            Ok(())
        };
        let before = self.state();
        self.recorder.input(&cpp_sched::journal::Input::SetStageCosts(models.clone()));
        let answer = self.scheduler.set_stage_costs(&models);
        ensure!(answer == expected, "set_stage_costs answers {answer:?}, must be {expected:?}");
        if answer.is_err() {
            ensure!(before == self.state(), "{answer:?}, but something has changed");
        } else {
            // The dearest stage prices what is compared.
            let long = CostTerms::prefill(4096, 512);
            let dearest = models.iter().map(|model| model.cost(&long)).max();
            let chosen = self.scheduler.config().cost;
            ensure!(chosen.is_some_and(|model| models.contains(&model) && Some(model.cost(&long)) == dearest), "{chosen:?} of {models:?}");
            (self.config.cost, self.stages) = (chosen, models);
            self.meet(if count > 1 { "prices for each stage" } else { "new prices" });
        }
        ensure!(*self.scheduler.config() == self.config, "the configuration is not what was asked for");
        self.quiet("set_stage_costs")
    }
}
