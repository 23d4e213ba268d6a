//! The kernel and the [reference scheduler](crate::reference) side by side.

use crate::driver::{Driver, Failure, Line, Record};
use crate::op::Op;
use crate::reference::Reference;
use crate::world::World;

/// Runs a world on the kernel, then the same calls on the reference scheduler: every answer, event and block count must be the same.
///
/// # Errors
/// A broken rule, or the first call that the two answer differently.
pub fn compare(world: &World) -> Result<(), Failure> {
    let records = Driver::run(world)?;
    let mut shapes = world.ops.iter().filter_map(|op| if let Op::Submit(shape) = op { Some(shape) } else { None });
    let mut reference = Reference::new(world.config);
    for (number, record) in records.iter().enumerate() {
        let line = match &record.line {
            Line::Submit(_, answer) => {
                let shape = shapes.next().expect("one operation for each submit");
                if answer.is_ok() {
                    reference.submit(shape);
                }
                record.line.clone()
            }
            Line::Batch(..) | Line::Empty(_) => reference.schedule(),
            Line::Complete(None) => continue,
            Line::Complete(Some(_)) => {
                let batch = reference.next_complete();
                reference.complete();
                Line::Complete(batch)
            }
            Line::Fail(_) => Line::Fail(reference.fail()),
            Line::Effect(name, id, effect) => {
                match (*name, effect) {
                    ("abort", true) => reference.abort(*id),
                    ("ready", true) => reference.ready(*id),
                    _ => {}
                }
                record.line.clone()
            }
            Line::Done(name) => {
                if *name == "reset_prefix_cache" {
                    reference.reset_prefix_cache();
                }
                record.line.clone()
            }
        };
        let other = Record { line, events: reference.take_events(), kv: reference.kv_usage() };
        if *record != other {
            let text = format!("call {number}: the kernel answers\n  {record:?}\nand the reference\n  {other:?}");
            return Err(Failure { op: None, text });
        }
    }
    Ok(())
}
