//! SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): for names that must differ, and for what examples
//! and tests draw. The simulator draws from ChaCha8, which is a better source.

/// The finaliser: a bijection of 64 bits.
#[must_use]
pub const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The next number of the generator whose state this is; any state is a seed.
///
/// ```
/// use cpp_exec_mock::splitmix::next;
/// let (mut one, mut other) = (7, 7);
/// assert_eq!([next(&mut one), next(&mut one)], [next(&mut other), next(&mut other)]);
/// ```
pub const fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// A number from 0 to below 1.
pub const fn unit(state: &mut u64) -> f64 {
    (next(state) >> 11) as f64 / (1u64 << 53) as f64
}

/// A number from `low` to below `high`, equally likely in every decade.
pub fn decades(state: &mut u64, low: f64, high: f64) -> f64 {
    low * (high / low).powf(unit(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference() {
        // The first ones from the seed 1234567, of Vigna's public-domain C code.
        let state = &mut 1_234_567;
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([next(state), next(state), next(state)], expected);
    }

    #[test]
    fn a_number_between_two_others_is_between_them() {
        let state = &mut 9;
        let drawn: Vec<f64> = (0..2000).map(|_| decades(state, 0.01, 1000.0)).collect();
        assert!(drawn.iter().all(|number| (0.01..1000.0).contains(number)));
        let below = drawn.iter().filter(|number| **number < 1.0).count();
        assert!((600..1000).contains(&below), "{below} of 2000, two decades in five");
    }
}
