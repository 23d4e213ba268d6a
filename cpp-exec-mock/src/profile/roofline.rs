//! Cost from layers of any kind: what each stage takes on a machine whose speeds are known.

use cpp_sched::{Attos, CostModel, Layer, Mlp};

use super::{Device, ProfileError};

/// What turns layers into time.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "an argument of a pure function: nothing will be added")]
pub struct Roofline<'a> {
    /// The machine of one stage. Its `pays_for_weights` is not looked at: reading weights is a floor here.
    pub device: &'a Device,
    /// What each stage pays for each batch.
    pub per_batch: Attos,
    /// Rows of a tile of the matrix products; 0 or 1: none.
    pub tile: u32,
    /// Tokens of the batches for which the floor of reading experts is right: that of so many tokens, each sent to experts of its own.
    pub floor_tokens: u32,
    /// The output layer on the last stage, as (width, vocabulary).
    pub head: Option<(u32, u32)>,
}

/// Experts that `tokens` tokens touch, if each is sent to `top_k` of `experts` at random: `E * (1 - (1 - k/E)^x)`.
///
/// ```
/// let touched = cpp_exec_mock::profile::experts_touched(256, 8, 64);
/// assert!((touched - 222.4).abs() < 0.1);
/// ```
#[must_use]
pub fn experts_touched(experts: u32, top_k: u32, tokens: u32) -> f64 {
    let experts = f64::from(experts.max(1));
    let missed = (1.0 - f64::from(top_k) / experts).max(0.0);
    experts * (1.0 - missed.powf(f64::from(tokens)))
}

/// The cost model of each stage, where stage `i` has the next `split[i]` of the layers.
///
/// | coefficient | time of |
/// |---|---|
/// | `c0` | `per_batch`; on the last stage also reading the head, once a batch |
/// | `c1` | a token's FLOPs in the linear layers; and where attention has a window, the pairs of a whole window |
/// | `c2` | a pair in the layers that see everything |
/// | `c3` | a token of a decode's context: the larger of reading its KV and computing its pairs |
/// | `c4` | expanding a latent of the history again |
/// | `c5` | a decode's windows and linear states, read (states written too); on the last stage its logits |
/// | `linear_floor` | reading the stage's weights: of the routed experts those that `floor_tokens` tokens touch |
/// | `prefill_read` | reading the KV of a token of a chunk or its history, in the layers that see everything |
/// | `tile` | as given |
///
/// A window counts as full from the first token on, which is too dear by less than `window^2 / 2` pairs per prompt. Head and logits are added and not
/// the larger taken, too much by at most the smaller. Exact integers but for the experts touched, rounded down to an attosecond; coefficients beyond
/// [`Attos::MAX_COEFFICIENT`] are an error.
///
/// # Errors
/// The split has no stage, a stage without layers, or not as many layers as there are; a device's number is 0; a coefficient is too large.
pub fn derive_stages(layers: &[Layer], split: &[usize], roofline: &Roofline<'_>) -> Result<Vec<CostModel>, ProfileError> {
    let bad = |problem: String| ProfileError::new("stage costs", None, problem);
    if let Some(problem) = roofline.device.problem() {
        return Err(bad(problem));
    }
    let given = split.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
    if given != layers.len() || split.is_empty() || split.contains(&0) {
        return Err(bad(format!("the split {split:?} must give each of {} layers to a stage, and each stage a layer", layers.len())));
    }
    let mut rest = layers;
    let mut models = Vec::with_capacity(split.len());
    for (stage, &count) in split.iter().enumerate() {
        let (own, others) = rest.split_at(count);
        rest = others;
        let head = roofline.head.filter(|_| stage + 1 == split.len());
        let model = derive_stage(own, head, roofline);
        let extras = [("linear_floor", model.linear_floor), ("prefill_read", model.prefill_read)];
        if let Some((name, _)) = model.coefficients().into_iter().chain(extras).find(|&(_, c)| c > Attos::MAX_COEFFICIENT) {
            return Err(bad(format!("{name} of stage {stage} is more than {} ns: the device is too slow", Attos::MAX_COEFFICIENT.to_ns())));
        }
        models.push(model);
    }
    Ok(models)
}

fn derive_stage(layers: &[Layer], head: Option<(u32, u32)>, roofline: &Roofline<'_>) -> CostModel {
    let device = roofline.device;
    let time = |amount: u128, per_second: u64, percent: u32| {
        let speed = u128::from(per_second) * u128::from(percent);
        Attos(amount.saturating_mul(100 * 1_000_000_000 * Attos::PER_NS).checked_div(speed).unwrap_or(u128::MAX))
    };
    let linear = |flops| time(flops, device.peak_flops, device.linear_percent).0;
    let attention = |flops| time(flops, device.peak_flops, device.attention_percent).0;
    let read = |bytes| time(bytes, device.memory_bytes_per_s, device.bandwidth_percent).0;
    let kv_bytes = |layer: &Layer| layer.kv_elements().saturating_mul(device.bytes_per_kv.into());
    let weight_bytes = |weights: u128| weights.saturating_mul(device.bytes_per_weight.into());
    let total = |part: &dyn Fn(&Layer) -> u128| layers.iter().fold(0u128, |sum, layer| sum.saturating_add(part(layer)));
    let wide = |layer: &Layer, cost: u128| if layer.window().is_none() { cost } else { 0 };
    let window = |layer: &Layer| u128::from(layer.window().unwrap_or(0));

    let mut cost = CostModel::default();
    cost.c0 = roofline.per_batch;
    cost.c1 = Attos(linear(total(&Layer::token_flops)).saturating_add(attention(total(&|l| l.pair_flops().saturating_mul(window(l))))));
    cost.c2 = Attos(attention(total(&|l| wide(l, l.pair_flops()))));
    cost.c3 = Attos(total(&|l| wide(l, read(kv_bytes(l)).max(attention(l.decode_pair_flops())))));
    cost.c4 = Attos(linear(total(&Layer::history_flops)));
    // A state of 4-byte numbers is read and written.
    let state = |layer: &Layer| layer.state_elements().saturating_mul(8);
    cost.c5 = Attos(read(total(&|l| kv_bytes(l).saturating_mul(window(l)).saturating_add(state(l)))));
    cost.linear_floor = Attos(read(weight_bytes(total(&|l| l.common_weights().saturating_add(touched_weights(l, roofline.floor_tokens))))));
    cost.prefill_read = Attos(read(total(&|l| wide(l, kv_bytes(l)))));
    cost.tile = roofline.tile;
    if let Some((width, vocabulary)) = head {
        let weights = u128::from(width) * u128::from(vocabulary);
        cost.c0.0 = cost.c0.0.saturating_add(read(weight_bytes(weights)));
        cost.c5.0 = cost.c5.0.saturating_add(linear(weights.saturating_mul(2)));
    }
    cost
}

/// Weights of the routed experts that so many tokens touch, to a millionth.
fn touched_weights(layer: &Layer, tokens: u32) -> u128 {
    match layer.mlp {
        Mlp::Experts { experts, top_k, .. } if experts > 0 => {
            let millionths = (experts_touched(experts, top_k, tokens) / f64::from(experts) * 1e6) as u128;
            (layer.routed_weights() / 1_000_000).saturating_mul(millionths)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use cpp_sched::{CostTerms, Mixer};

    use super::*;

    /// 1 PFLOP/s and 1 TB/s, everything reached; a byte a weight, two a KV element.
    fn device() -> Device {
        Device {
            peak_flops: 1_000_000_000_000_000,
            linear_percent: 100,
            attention_percent: 50,
            memory_bytes_per_s: 1_000_000_000_000,
            bandwidth_percent: 100,
            memory_bytes: 1 << 40,
            memory_percent: 90,
            weights_bytes: 0,
            bytes_per_weight: 1,
            bytes_per_kv: 2,
            pays_for_weights: false,
        }
    }

    fn roofline(device: &Device) -> Roofline<'_> {
        Roofline { device, per_batch: Attos::from_ns(1000), tile: 64, floor_tokens: 64, head: None }
    }

    const DENSE: Layer = Layer::new(8192, Mixer::attention(64, 8, 128, None), Mlp::gated(28_672));
    const WINDOW: Layer = Layer::new(8192, Mixer::attention(64, 8, 128, Some(1024)), Mlp::gated(28_672));
    const LATENT: Layer = Layer::new(7168, Mixer::latent(128, 1536, 512, 128, 64, 128, false), Mlp::experts(256, 8, 2048, 1, 2048));

    #[test]
    fn dense_layers_by_hand_and_unequal_stages() {
        let device = device();
        let models = derive_stages(&[DENSE; 5], &[2, 3], &roofline(&device)).unwrap();
        // A layer has 855,638,016 weights: 1711.276032 ns a token, and 855,638.016 ns to read. A pair: 32768 FLOP at 0.5 PFLOP/s, 0.065536 ns.
        assert_eq!(models[0].c1, Attos(2 * 1_711_276_032_000));
        assert_eq!(models[1].c1, Attos(3 * 1_711_276_032_000));
        assert_eq!(models[1].c2, Attos(3 * 65_536_000));
        assert_eq!(models[1].linear_floor, Attos(3 * 855_638_016_000_000));
        // KV: 2048 elements of 2 bytes, 4.096 ns to read, more than the 0.065536 ns of a pair.
        assert_eq!((models[0].c3, models[0].prefill_read), (Attos(2 * 4_096_000_000), Attos(2 * 4_096_000_000)));
        assert_eq!((models[0].c0, models[0].c4, models[0].c5, models[0].tile), (Attos::from_ns(1000), Attos::ZERO, Attos::ZERO, 64));
        // A batch of few tokens takes what reading takes; of many, what computing takes.
        let at = |x| models[1].cost(&CostTerms::prefill(0, x)).to_ns();
        assert_eq!(at(1), 1000 + 2_566_914 + 12);
        assert!(at(2048) > 2048 * 5133);
    }

    #[test]
    fn the_head_is_on_the_last_stage() {
        let device = device();
        let roofline = Roofline { head: Some((8192, 128_256)), ..roofline(&device) };
        let models = derive_stages(&[DENSE; 2], &[1, 1], &roofline).unwrap();
        // 1,050,673,152 weights: 1,050,673.152 ns to read, 2101.346304 ns for a decode's logits.
        assert_eq!((models[0].c0, models[0].c5), (Attos::from_ns(1000), Attos::ZERO));
        assert_eq!(models[1].c0, Attos(1_000_000_000_000 + 1_050_673_152_000_000));
        assert_eq!(models[1].c5, Attos(2_101_346_304_000));
    }

    #[test]
    fn latents_are_expanded_again_and_experts_read_as_touched() {
        let device = device();
        let [model] = derive_stages(&[LATENT], &[1], &roofline(&device)).unwrap()[..] else { panic!("one stage") };
        // 33,554,432 FLOP a latent: 33.554432 ns. A decode's pair: 278,528 FLOP at 0.5 PFLOP/s, 0.557 ns, under the 1.152 ns of reading 1152 bytes.
        assert_eq!((model.c4, model.c3), (Attos(33_554_432_000), Attos(1_152_000_000)));
        // 64 tokens touch 222.4 of 256 experts of 44,040,192 weights.
        let floor = model.linear_floor.0 as f64 / 1e9;
        assert!((floor - (LATENT.common_weights() as f64 + 222.4 * 44_040_192.0) / 1000.0).abs() < 2000.0, "{floor}");
        let absorbed = Layer::new(7168, Mixer::latent(128, 1536, 512, 128, 64, 128, true), LATENT.mlp);
        let [absorbed] = derive_stages(&[absorbed], &[1], &roofline(&device)).unwrap()[..] else { panic!("one stage") };
        assert_eq!((absorbed.c4, absorbed.c1), (Attos::ZERO, model.c1));
        assert_eq!(absorbed.c2, Attos(557_056_000));
    }

    #[test]
    fn windows_and_states_do_not_grow_with_the_context() {
        let device = device();
        let linear = Layer::new(2048, Mixer::linear(16, 128, 256, 6, 64), Mlp::gated(4096));
        let [model] = derive_stages(&[WINDOW, linear], &[2], &roofline(&device)).unwrap()[..] else { panic!("one stage") };
        assert_eq!((model.c2, model.c3, model.c4, model.prefill_read), (Attos::ZERO, Attos::ZERO, Attos::ZERO, Attos::ZERO));
        // A window of 1024 pairs of 0.065536 ns on top of the products: 1711.276032 ns, and 104.595456 ns for the linear layer.
        assert_eq!(model.c1, Attos(1_711_276_032_000 + 104_595_456_000 + 1024 * 65_536_000));
        // 1024 tokens of 4096 bytes, and 524,288 numbers read and written.
        assert_eq!(model.c5, Attos((4_194_304 + 4_194_304) * 1_000_000));
        // A hybrid: only its full layers make pairs.
        let [hybrid] = derive_stages(&[WINDOW, linear, DENSE], &[3], &roofline(&device)).unwrap()[..] else { panic!("one stage") };
        assert_eq!((hybrid.c2, hybrid.c3), (Attos(65_536_000), Attos(4_096_000_000)));
    }

    #[test]
    fn ten_million_tokens_do_not_overflow() {
        let device = device();
        let models = derive_stages(&[LATENT; 61], &[16, 15, 15, 15], &roofline(&device)).unwrap();
        let cost = models[0].cost(&CostTerms::prefill(10_000_000, 1_000_000));
        let flops = 16 * (LATENT.pair_flops() * cpp_sched::causal_pairs(10_000_000, 1_000_000) * 2 + LATENT.history_flops() * 10_000_000);
        assert!(cost.0 > flops * 1000 && cost.0 < u128::MAX / 1_000_000, "{cost:?}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut device = device();
        for split in [&[][..], &[2, 0], &[1], &[usize::MAX, 3]] {
            let error = derive_stages(&[DENSE; 2], split, &roofline(&device)).unwrap_err().to_string();
            assert!(error.contains("must give each of 2 layers"), "{error}");
        }
        device.peak_flops = 0;
        let error = derive_stages(&[DENSE], &[1], &roofline(&device)).unwrap_err().to_string();
        assert_eq!(error, "stage costs: device.peak_flops must be at least 1");
        (device.peak_flops, device.memory_bytes_per_s) = (1, 1);
        let error = derive_stages(&[DENSE], &[1], &roofline(&device)).unwrap_err().to_string();
        assert!(error.contains("the device is too slow"), "{error}");
    }
}
