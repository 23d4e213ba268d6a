//! Six unknowns: symmetric systems, solved within bounds. Only additions, products, quotients and comparisons in a fixed order, so that equal inputs give
//! equal bits on every machine that has IEEE 754 doubles.

/// Coefficients of a cost model.
pub(super) const N: usize = 6;

/// One number for each coefficient.
pub(super) type Row = [f64; N];

/// A symmetric matrix over the coefficients; only the half below the diagonal, and it, are read.
pub(super) type Matrix = [Row; N];

/// What is less than this counts as nothing where it would be divided by.
pub(super) const TINY: f64 = 1e-300;

pub(super) fn dot(a: &Row, b: &Row) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The product of a symmetric matrix with a vector.
pub(super) fn times(matrix: &Matrix, x: &Row) -> Row {
    core::array::from_fn(|i| (0..N).map(|j| matrix[i.max(j)][i.min(j)] * x[j]).sum())
}

/// The square root, by Newton's iteration from half of the exponent: there is none without `std`.
pub(super) fn root(x: f64) -> f64 {
    if x.is_nan() || x <= 0.0 {
        return 0.0;
    }
    let mut y = f64::from_bits((x.to_bits() >> 1) + (1023 << 51));
    for _ in 0..5 {
        y = 0.5 * (y + x / y);
    }
    y
}

pub(super) fn magnitude(x: f64) -> f64 {
    if x < 0.0 { -x } else { x }
}

/// The middle of the values, the larger of two; 0 of none. Reorders them.
pub(super) fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(middle, f64::total_cmp).1 }
}

/// Solves `matrix * x = target` with `low <= x <= high`: an unknown that would leave its bounds is held at the bound, the one that leaves them farthest
/// first, and the rest is solved anew. O(N^4).
pub(super) fn solve_within(matrix: &Matrix, target: &Row, low: &Row, high: &Row) -> Row {
    let mut held = [None; N];
    loop {
        let solution = solve(matrix, target, &held);
        let outside = |i: usize| (low[i] - solution[i]).max(solution[i] - high[i]) * root(matrix[i][i]);
        let worst = (0..N).filter(|&i| held[i].is_none() && outside(i) > 0.0).max_by(|&a, &b| outside(a).total_cmp(&outside(b)));
        match worst {
            Some(i) => held[i] = Some(if solution[i] < low[i] { low[i] } else { high[i] }),
            None => return solution,
        }
    }
}

/// Solves a symmetric positive definite system over the unknowns that are not held: Cholesky, after scaling the diagonal to 1.
pub(super) fn solve(matrix: &Matrix, target: &Row, held: &[Option<f64>; N]) -> Row {
    let free = |i: &usize| held[*i].is_none();
    let scale: Row = core::array::from_fn(|i| 1.0 / root(matrix[i][i]).max(TINY));
    let mut lower = [[0.0; N]; N];
    let mut half = [0.0; N];
    let known = times(matrix, &held.map(|value| value.unwrap_or(0.0)));
    for i in (0..N).filter(free) {
        for j in (0..=i).filter(free) {
            let done: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let rest = matrix[i][j] * scale[i] * scale[j] - done;
            // Directions without any information are held by this.
            lower[i][j] = if i == j { root(rest.max(1e-13)) } else { rest / lower[j][j] };
        }
        let done: f64 = (0..i).map(|k| lower[i][k] * half[k]).sum();
        half[i] = ((target[i] - known[i]) * scale[i] - done) / lower[i][i];
    }
    let mut solution = [0.0; N];
    for i in (0..N).rev().filter(free) {
        let done: f64 = (i + 1..N).filter(free).map(|k| lower[k][i] * solution[k]).sum();
        solution[i] = (half[i] - done) / lower[i][i];
    }
    core::array::from_fn(|i| held[i].unwrap_or(solution[i] * scale[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_one() {
        for x in [1e-300, 1e-9, 0.5, 1.0, 2.0, 1e18, 1e300] {
            assert!((root(x) * root(x) / x - 1.0).abs() < 1e-12, "{x}");
        }
        assert_eq!((root(0.0), root(-1.0), root(f64::NAN)), (0.0, 0.0, 0.0));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0]), 3.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 3.0);
    }

    #[test]
    fn systems_are_solved_inside_and_at_the_bounds() {
        let mut matrix = [[0.0; N]; N];
        for (i, row) in matrix.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                *cell = if i == j { 4.0 + i as f64 } else { 1.0 };
            }
        }
        let is = [1.0, -2.0, 3.0, 0.5, 20.0, 0.0];
        let target = times(&matrix, &is);
        let free = solve_within(&matrix, &target, &[-100.0; N], &[100.0; N]);
        assert!(free.iter().zip(is).all(|(a, b)| (a - b).abs() < 1e-9), "{free:?}");
        let bound = solve_within(&matrix, &target, &[0.0; N], &[10.0; N]);
        assert_eq!((bound[1], bound[4]), (0.0, 10.0));
        // What is free still solves its own rows.
        for i in [0, 2, 3] {
            assert!((dot(&matrix[i], &bound) - target[i]).abs() < 1e-9, "{bound:?}");
        }
    }
}
