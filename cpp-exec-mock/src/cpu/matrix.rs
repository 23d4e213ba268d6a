//! Products of activations with weights, summed in one order.
//!
//! Every output is the sum over the inputs from the first to the last, one after the other, whatever the number of rows: lanes of a vector
//! register run over *outputs*, never over inputs. So a row's result depends on that row alone, and is the same on any machine.

use crate::model::from_bf16;

/// Outputs that are computed side by side.
const LANES: usize = 16;
/// Rows that share each weight that was read.
const ROWS: usize = 4;

/// Weights of a linear map, in panels: for `LANES` outputs the weights of the first input, then those of the second, and so on.
#[derive(Debug)]
pub struct Matrix {
    inputs: usize,
    outputs: usize,
    panels: Panels,
}

#[derive(Debug)]
enum Panels {
    /// Half the memory, and so half the time where one row is multiplied.
    Bf16(Vec<[u16; LANES]>),
    F32(Vec<[f32; LANES]>),
}

/// A weight as it lies in memory.
trait Weight: Copy + Default {
    fn number(self) -> f32;
}

impl Weight for u16 {
    #[inline(always)]
    fn number(self) -> f32 {
        from_bf16(self)
    }
}

impl Weight for f32 {
    #[inline(always)]
    fn number(self) -> f32 {
        self
    }
}

impl Matrix {
    /// Packs weights as they lie in model files: one row of `inputs` numbers for each output. O(weights).
    #[must_use]
    pub fn from_f32(weights: &[f32], inputs: usize) -> Self {
        Self { inputs, outputs: weights.len() / inputs.max(1), panels: Panels::F32(pack(weights, inputs)) }
    }

    /// As [`from_f32`](Self::from_f32), of bf16 numbers, which are kept as they are.
    #[must_use]
    pub fn from_bf16(weights: &[u16], inputs: usize) -> Self {
        Self { inputs, outputs: weights.len() / inputs.max(1), panels: Panels::Bf16(pack(weights, inputs)) }
    }

    /// Numbers of a row that it is multiplied with.
    #[must_use]
    pub const fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers of a row that comes out.
    #[must_use]
    pub const fn outputs(&self) -> usize {
        self.outputs
    }

    /// Appends the weights of one output to `out`, as an embedding does. O(inputs).
    pub fn push_row(&self, output: usize, out: &mut Vec<f32>) {
        let (panel, lane) = (output / LANES * self.inputs, output % LANES);
        match &self.panels {
            Panels::Bf16(panels) => out.extend(panels[panel..panel + self.inputs].iter().map(|weights| weights[lane].number())),
            Panels::F32(panels) => out.extend(panels[panel..panel + self.inputs].iter().map(|weights| weights[lane])),
        }
    }

    /// Multiplies rows of [`inputs`](Self::inputs) numbers; `out` becomes as many rows of [`outputs`](Self::outputs). O(rows · weights).
    pub fn multiply(&self, rows: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.resize(rows.len() / self.inputs * self.outputs, 0.0);
        match &self.panels {
            Panels::Bf16(panels) => multiply(panels, self.inputs, self.outputs, rows, out),
            Panels::F32(panels) => multiply(panels, self.inputs, self.outputs, rows, out),
        }
    }
}

fn pack<W: Weight>(weights: &[W], inputs: usize) -> Vec<[W; LANES]> {
    let outputs = weights.len() / inputs.max(1);
    let mut panels = vec![[W::default(); LANES]; outputs.div_ceil(LANES) * inputs];
    for (output, row) in weights.chunks_exact(inputs.max(1)).enumerate() {
        let panel = &mut panels[output / LANES * inputs..][..inputs];
        for (place, weight) in panel.iter_mut().zip(row) {
            place[output % LANES] = *weight;
        }
    }
    panels
}

fn multiply<W: Weight>(panels: &[[W; LANES]], inputs: usize, outputs: usize, rows: &[f32], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function was compiled for.
        #[allow(unsafe_code, reason = "the same code with wider registers")]
        return unsafe { multiply_avx2(panels, inputs, outputs, rows, out) };
    }
    multiply_anywhere(panels, inputs, outputs, rows, out);
}

/// The same operations in the same order; only more of them at once.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_avx2<W: Weight>(panels: &[[W; LANES]], inputs: usize, outputs: usize, rows: &[f32], out: &mut [f32]) {
    multiply_anywhere(panels, inputs, outputs, rows, out);
}

#[inline(always)]
fn multiply_anywhere<W: Weight>(panels: &[[W; LANES]], inputs: usize, outputs: usize, rows: &[f32], out: &mut [f32]) {
    for (number, panel) in panels.chunks_exact(inputs).enumerate() {
        let first = number * LANES;
        let width = LANES.min(outputs - first);
        let mut store = |row: usize, sums: &[f32; LANES]| {
            let at = row * outputs + first;
            out[at..at + width].copy_from_slice(&sums[..width]);
        };
        let whole = rows.len() / inputs / ROWS * ROWS;
        for row in (0..whole).step_by(ROWS) {
            let tile = tile::<W, ROWS>(panel, std::array::from_fn(|i| &rows[(row + i) * inputs..][..inputs]));
            for (i, sums) in tile.iter().enumerate() {
                store(row + i, sums);
            }
        }
        // The rest as one tile too: each weight is read and widened once for all of its rows.
        let rest = rows.len() / inputs - whole;
        let mut tail = |sums: &[[f32; LANES]]| sums.iter().enumerate().for_each(|(i, sums)| store(whole + i, sums));
        let row = |i: usize| &rows[(whole + i) * inputs..][..inputs];
        match rest {
            1 => tail(&tile::<W, 1>(panel, std::array::from_fn(row))),
            2 => tail(&tile::<W, 2>(panel, std::array::from_fn(row))),
            3 => tail(&tile::<W, 3>(panel, std::array::from_fn(row))),
            _ => {}
        }
    }
}

#[inline(always)]
fn tile<W: Weight, const N: usize>(panel: &[[W; LANES]], rows: [&[f32]; N]) -> [[f32; LANES]; N] {
    let mut sums = [[0.0; LANES]; N];
    let rows = rows.map(|row| &row[..panel.len()]);
    for (input, weights) in panel.iter().enumerate() {
        let weights = weights.map(W::number);
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let number = row[input];
            for (sum, weight) in sums.iter_mut().zip(&weights) {
                *sum += number * weight;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::Matrix;
    use crate::model::{from_bf16, to_bf16};

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// The definition: input after input.
    fn plain(weights: &[f32], inputs: usize, rows: &[f32]) -> Vec<f32> {
        let product = |row: &[f32], weights: &[f32]| row.iter().zip(weights).fold(0.0, |sum: f32, (x, w)| sum + x * w);
        rows.chunks(inputs).flat_map(|row| weights.chunks(inputs).map(move |weights| product(row, weights))).collect()
    }

    #[test]
    fn every_shape_gives_the_bits_of_the_plain_sum() {
        for (inputs, outputs) in [(1, 1), (7, 16), (33, 17), (64, 48), (5, 3)] {
            let weights = numbers(inputs * outputs, 3);
            let halves: Vec<u16> = weights.iter().map(|weight| to_bf16(*weight)).collect();
            let rounded: Vec<f32> = halves.iter().map(|half| from_bf16(*half)).collect();
            for rows in 0..10 {
                let x = numbers(inputs * rows, 9);
                let mut out = vec![7.0; 3];
                Matrix::from_f32(&weights, inputs).multiply(&x, &mut out);
                assert_eq!(out, plain(&weights, inputs, &x), "{rows} x {inputs} x {outputs}");
                Matrix::from_bf16(&halves, inputs).multiply(&x, &mut out);
                assert_eq!(out, plain(&rounded, inputs, &x), "bf16, {rows} x {inputs} x {outputs}");
            }
        }
    }

    #[test]
    fn a_row_comes_out_as_it_went_in() {
        let weights = numbers(21 * 5, 1);
        let matrix = Matrix::from_f32(&weights, 5);
        let mut row = Vec::new();
        matrix.push_row(18, &mut row);
        assert_eq!(row, weights[90..95]);
    }
}
