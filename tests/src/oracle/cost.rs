//! Cost, FLOPs and balance of a batch.

use std::collections::BTreeMap;

use serde_json::Number;

use super::entry::Entry;
use super::request::Track;
use super::{Checker, Flown};

/// Units of a coefficient in one nanosecond.
const UNITS: i128 = 1_000_000_000;

/// c0 to c5 in units of 1e-9 ns.
pub(super) fn coefficients(cost: &BTreeMap<String, Number>) -> [i128; 6] {
    ["c0", "c1", "c2", "c3", "c4", "c5"].map(|key| cost.get(key).map_or(0, |number| decimal(&number.to_string())))
}

/// A decimal literal times 1e9, rounded down.
fn decimal(text: &str) -> i128 {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().unwrap_or_default();
    let shift = 9 + exponent.parse::<i32>().unwrap_or_default() - i32::try_from(fraction.len()).unwrap_or_default();
    if shift >= 0 { digits * 10i128.pow(shift.unsigned_abs()) } else { digits / 10i128.pow(shift.unsigned_abs().min(38)) }
}

/// `x*L + x*(x+1)/2`.
fn pairs(start: u64, len: u64) -> i128 {
    i128::from(len) * i128::from(start) + i128::from(len) * i128::from(len + 1) / 2
}

impl Checker {
    pub(super) fn check_flops(&mut self, entry: &Entry) {
        let Some(model) = &self.config.model else { return };
        let [layers, hidden, heads, kv_heads, head_dim, intermediate] =
            [model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.intermediate].map(i128::from);
        let weights = layers * hidden * (2 * heads * head_dim + 2 * kv_heads * head_dim + 3 * intermediate);
        let mut total = 0;
        for item in &entry.items {
            let flops = 2 * i128::from(item.len) * weights + 4 * heads * head_dim * layers * pairs(item.start, item.len);
            total += flops;
            if item.flops != u128::try_from(flops).ok() {
                self.bad(format!("{}: {:?} FLOPs, must be {flops}", item.id, item.flops));
            }
        }
        if entry.flops != u128::try_from(total).ok() {
            self.bad(format!("{:?} FLOPs in the batch, must be {total}", entry.flops));
        }
    }

    pub(super) fn check_cost(&mut self, entry: &Entry, batch: &[Flown]) {
        let Some(c) = self.coefficients else { return };
        let cost = c[0] + batch.iter().map(|flown| self.item_cost(flown)).sum::<i128>();
        let given = entry.cost_ns.map(i128::from).unwrap_or_default() * UNITS;
        if (given - cost).abs() > UNITS {
            self.bad(format!("cost_ns {:?}, must be {}", entry.cost_ns, cost / UNITS));
        }
        let Some(target) = self.config.chunking.target_ns else { return };
        if self.config.chunking.kind == "cost" && cost > i128::from(target) * UNITS + UNITS {
            let least = self.config.chunking.min.unwrap_or(1) + self.config.chunking.align.unwrap_or(1);
            if batch.len() > 1 || batch.iter().any(|flown| flown.prefill && flown.new >= least) {
                self.bad(format!("cost {}, target {target}, and the batch is no single smallest item", cost / UNITS));
            }
        }
    }

    /// What one item adds to the cost of its batch.
    fn item_cost(&self, flown: &Flown) -> i128 {
        let Some(c) = self.coefficients else { return 0 };
        let (tokens, history) = (flown.end - flown.start, i128::from(flown.start));
        let kind = if flown.prefill { c[2] * pairs(flown.start, tokens) + c[4] * history } else { c[3] * history + c[5] };
        c[1] * i128::from(tokens) + kind
    }

    pub(super) fn check_balance(&mut self, batch: &[Flown]) {
        let depth = self.config.depth() as u64;
        // From above: a decode's context is at most what is known of it and in flight for it, and it may carry all its drafts.
        let most = |track: &Track| {
            let context = i128::from(track.known().max(track.cursor));
            self.coefficients.map_or(context, |c| c[1] * i128::from(1 + track.spec.drafts) + c[3] * context + c[5])
        };
        let decodes = |track: &&Track| track.alive() && (track.delivered > 0 || track.cursor >= track.prompt);
        let decoding: Vec<i128> = self.tracks.iter().filter(decodes).map(most).collect();
        let steady: Vec<&Flown> = batch.iter().filter(|flown| flown.steady).collect();
        let (rows, all) = (steady.len() as u64, decoding.len() as u64);
        if self.config.balance == "count" && rows > all.div_ceil(depth) {
            self.bad(format!("{rows} decodes in one batch, but {all} requests decode and {depth} batches may be in flight"));
        }
        if self.config.balance == "cost" && rows > 1 {
            let (sum, largest) = (decoding.iter().sum::<i128>(), decoding.iter().copied().max().unwrap_or_default());
            let own: i128 =
                steady.iter().map(|flown| if self.coefficients.is_some() { self.item_cost(flown) } else { i128::from(flown.start) }).sum();
            if own * i128::from(depth) > sum + largest * i128::from(depth) {
                self.bad(format!("decodes of {own} in one batch, but all are {sum}, the largest {largest}, and {depth} batches may fly"));
            }
        }
    }
}
