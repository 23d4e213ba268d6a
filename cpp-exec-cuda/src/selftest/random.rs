//! Numbers from a seed.

use cpp_exec_mock::model::{from_bf16, to_bf16};

/// xorshift64* (Vigna, 2016): enough for test data, and the same everywhere.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From `least` to `most`.
    pub(super) const fn between(&mut self, least: usize, most: usize) -> usize {
        least + (self.next() >> 33) as usize % (most - least + 1)
    }

    /// From -1 to 1, as bf16.
    pub(super) fn half(&mut self) -> u16 {
        to_bf16((self.next() >> 40) as f32 / 8_388_608.0 - 1.0)
    }

    pub(super) fn halves(&mut self, numbers: usize) -> Vec<u16> {
        (0..numbers).map(|_| self.half()).collect()
    }

    /// `0..numbers` in some order.
    pub(super) fn order(&mut self, numbers: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..numbers as u32).collect();
        for last in (1..numbers).rev() {
            order.swap(last, self.between(0, last));
        }
        order
    }
}

/// bf16 as f64.
pub(super) fn wide(half: u16) -> f64 {
    from_bf16(half).into()
}
