//! The arithmetic of costs at its limits: where halves are rounded, where 64 bits end, where a floor begins to matter.

use cpp_sched::{Attos, CostModel, CostTerms, ParseAttosError};

fn ns(n: u64) -> Attos {
    Attos::from_ns(n)
}

#[test]
fn attoseconds_are_rounded_to_the_nearest_nanosecond_however_many_there_are() {
    let (half, one) = (500_000_000u128, 1_000_000_000u128);
    // Half of 64 bits is where another arithmetic begins; 2^64 ns is where it ends.
    let places = [0, 1, 2, 9_223_372_036, u64::MAX as u128 / 2 / one, u64::MAX as u128 / one, 1 << 40, u64::MAX as u128 - 1];
    for whole in places {
        for beside in [whole.saturating_sub(1), whole, whole + 1] {
            let at = |rest| Attos(beside * one + rest).to_ns();
            let rounded = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
            assert_eq!([0, 1, half - 1].map(at), [rounded(beside); 3], "{beside}");
            assert_eq!([half, half + 1, one - 1].map(at), [rounded(beside + 1); 3], "{beside}");
        }
    }
    for attos in [u64::MAX as u128 / 2 - 1, u64::MAX as u128 / 2, u64::MAX as u128 / 2 + 1, u64::MAX as u128] {
        assert_eq!(u128::from(Attos(attos).to_ns()), (attos + half) / one, "{attos}");
    }
    assert_eq!([(1 << 64) * one, (1 << 65) * one, u128::MAX].map(|attos| Attos(attos).to_ns()), [u64::MAX; 3]);
}

#[test]
fn a_number_of_nanoseconds_is_read_up_to_the_largest_one() {
    let largest = Attos(100_000_000_000_000_000_000 * 1_000_000_000);
    assert_eq!("1e20".parse(), Ok(largest));
    assert_eq!("99999999999999999999.999999999".parse(), Ok(Attos(largest.0 - 1)));
    assert_eq!("99999999999999999999.9999999996".parse(), Ok(largest));
    for text in ["100000000000000000000.000000001", "1.1e20", "1e21", "2e20"] {
        assert_eq!(text.parse::<Attos>(), Err(ParseAttosError::TooLarge), "{text}");
    }
}

#[test]
fn tiles_and_floors_begin_where_they_say() {
    let mut model = CostModel::default();
    (model.c1, model.c2, model.tile) = (ns(3), ns(2), 16);
    let prefill = |model: &CostModel, history, tokens| model.cost(&CostTerms::prefill(history, tokens)).to_ns();
    assert_eq!(
        [1, 15, 16, 17, 32, 33].map(|tokens| prefill(&model, 0, tokens)),
        [48 + 2, 48 + 2 * 120, 48 + 2 * 136, 96 + 2 * 153, 96 + 2 * 528, 144 + 2 * 561]
    );
    // A tile of two is the smallest one.
    model.tile = 2;
    assert_eq!([1, 2, 3].map(|tokens| prefill(&model, 0, tokens)), [6 + 2, 6 + 6, 12 + 12]);
    model.tile = 0;
    model.linear_floor = ns(30);
    assert_eq!([9, 10, 11].map(|tokens| prefill(&model, 0, tokens)), [30 + 90, 30 + 110, 33 + 132]);
    // Reading takes 7 a token, of the histories and of the chunks' own; drafts are no chunk.
    (model.linear_floor, model.prefill_read) = (ns(0), ns(7));
    assert_eq!([(0, 5), (0, 6), (0, 7)].map(|(history, tokens)| prefill(&model, history, tokens)), [15 + 35, 18 + 42, 21 + 56]);
    assert_eq!(prefill(&model, 100, 1), 3 + 101 * 7);
    assert_eq!(model.cost(&CostTerms::decode(100, 4)).to_ns(), 12, "decodes read nothing here");
    assert_eq!(model.cost(&CostTerms::default()).to_ns(), 0);
}
