//! Where numbers are rounded to bf16.

use crate::model::{from_bf16, to_bf16};

/// How exactly the layers compute. Sums are f32 either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "with or without")]
pub enum Rounding {
    /// In f32 throughout; weights as they lie in the files.
    #[default]
    F32,
    /// As kernels for GPUs do, which store bf16 between two operations: weights; the residual stream after each sum; normed rows; what comes out of products
    /// but logits; queries and keys after their rotation, values after their bias; the weights of attention where they meet values, but not
    /// their sum; what comes out of attention; and of silu(gate) · up. What lies between two of these is f32.
    Bf16AtOpBorders,
}

impl Rounding {
    /// Rounds what is stored.
    pub(super) fn store(self, numbers: &mut [f32]) {
        if self == Self::Bf16AtOpBorders {
            numbers.iter_mut().for_each(|number| *number = from_bf16(to_bf16(*number)));
        }
    }

    /// A number as it is stored.
    pub(super) fn stored(self, number: f32) -> f32 {
        match self {
            Self::F32 => number,
            Self::Bf16AtOpBorders => from_bf16(to_bf16(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rounding;

    #[test]
    fn numbers_keep_eight_bits_or_all() {
        let third = 1.0f32 / 3.0;
        let mut numbers = [third, -2.5, 0.0];
        Rounding::F32.store(&mut numbers);
        assert_eq!(numbers, [third, -2.5, 0.0]);
        Rounding::Bf16AtOpBorders.store(&mut numbers);
        assert_eq!(numbers, [171.0 / 512.0, -2.5, 0.0]);
        assert_eq!((Rounding::F32.stored(third), Rounding::Bf16AtOpBorders.stored(third)), (third, 171.0 / 512.0));
    }
}
