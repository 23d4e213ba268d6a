//! What is read from a file or a front end: as little as needed is enough, and what makes no sense is refused.

use cpp_sched::{Config, Gate, GateSet, Prompt, Request, RequestId, Row, Scheduler};
use serde_json::json;

#[test]
fn a_request_needs_no_more_than_it_must_say() {
    let read: Request = serde_json::from_value(json!({"id": 7, "prompt": {"tokens": [1, 2, 3]}, "max_tokens": 9})).unwrap();
    assert_eq!(read, Request::new(RequestId(7), vec![1, 2, 3], 9));
    let read: Request = serde_json::from_value(json!({
        "id": 7, "prompt": {"lengths": {"len": 40, "block_hashes": []}}, "max_tokens": 9, "weight_millionths": 5, "gates": 2
    }))
    .unwrap();
    let mut expected = Request::with_lengths(RequestId(7), 40, Vec::new(), 9);
    (expected.weight_millionths, expected.gates) = (5, Gate::Grammar.into());
    assert_eq!(read, expected);
    assert!(serde_json::from_value::<Prompt>(json!({"Tokens": [1]})).is_err());
    for missing in ["id", "prompt", "max_tokens"] {
        let mut value = serde_json::to_value(&expected).unwrap();
        value.as_object_mut().unwrap().remove(missing);
        assert!(serde_json::from_value::<Request>(value).unwrap_err().to_string().contains(missing));
    }
    // What was written can be read, and every field that is no part of the minimum may be left out.
    let whole = serde_json::to_value(&expected).unwrap();
    assert_eq!(serde_json::from_value::<Request>(whole.clone()).unwrap(), expected);
    for field in whole.as_object().unwrap().keys().filter(|field| !["id", "prompt", "max_tokens"].contains(&field.as_str())) {
        let mut value = whole.clone();
        value.as_object_mut().unwrap().remove(field);
        assert!(serde_json::from_value::<Request>(value).is_ok(), "{field}");
    }
}

/// A bit that is no gate's could never be opened.
#[test]
fn a_set_of_gates_has_gates_alone() {
    let all = [Gate::Other, Gate::Grammar, Gate::Kv, Gate::Input, Gate::Adapter].into_iter().fold(GateSet::NONE, GateSet::with);
    for bits in 0..=255u8 {
        let read = serde_json::from_value::<GateSet>(json!(bits));
        assert_eq!(read.is_ok(), bits < 32, "{bits}: {read:?}");
        if let Ok(set) = read {
            assert_eq!((set.is_empty(), serde_json::to_value(set).unwrap()), (set.iter().count() == 0, json!(bits)));
        }
    }
    assert_eq!(serde_json::to_value(all).unwrap(), json!(31));
    let error = serde_json::from_value::<GateSet>(json!(128)).unwrap_err().to_string();
    assert!(error.contains("1, 2, 4, 8 and 16"), "{error}");
    assert!(postcard::from_bytes::<GateSet>(&[128]).is_err() && postcard::from_bytes::<GateSet>(&[3]).is_ok());
}

/// A row of a file has any numbers.
#[test]
fn a_row_that_was_read_names_no_blocks() {
    let mut scheduler = Scheduler::new(Config::default()).unwrap();
    scheduler.submit(Request::new(RequestId(1), vec![5; 10], 1)).unwrap();
    let batch = scheduler.schedule().batch().unwrap();
    let mut value = serde_json::to_value(batch.rows()[0]).unwrap();
    for field in ["num_computed_tokens", "num_scheduled_tokens", "num_draft_tokens", "slot", "epoch"] {
        value[field] = json!(u32::MAX);
        let row: Row = serde_json::from_value(value.clone()).unwrap();
        let _ =
            (row.end(), batch.blocks(&row), batch.spans(&row), batch.tokens(&row), batch.group_table(&row, 0), batch.group_table(&row, 3));
    }
    let row: Row = serde_json::from_value(value).unwrap();
    assert_eq!((row.end(), batch.blocks(&row), batch.tokens(&row)), (u32::MAX, &[][..], None));
}
