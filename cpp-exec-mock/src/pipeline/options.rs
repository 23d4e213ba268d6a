//! How a pipeline is built.

use serde::{Deserialize, Serialize};

/// Whether a stage can work while a transfer of its own is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfer {
    /// It can.
    #[default]
    Overlapped,
    /// It stands still until the transfer is over.
    Blocking,
}

/// How pieces get from one stage to the next.
///
/// | option | what changes in the order of events |
/// |---|---|
/// | sends blocking | a stage takes its next piece only when its last output has arrived at the next stage |
/// | receives blocking | a transfer begins only when the next stage is idle, which then waits for its end |
/// | buffer of Q pieces | a transfer begins only when fewer than Q pieces are under way to the next stage or wait in front of it; until then the stage keeps its output and stands still |
///
/// Whatever the options, pieces keep their order, and a link carries one transmission at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// Of the stage that hands on.
    pub sends: Transfer,
    /// Of the stage that takes over.
    pub receives: Transfer,
    /// Pieces that fit in front of a stage, beside the one it runs; 0 counts as 1, none = any number. Without effect where receives block: then
    /// nothing waits in front of a stage.
    pub buffer: Option<u32>,
}

/// What passes the stages as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// The whole batch.
    #[default]
    Batch,
    /// Each request of the batch by itself, decodes too.
    Request,
    /// Each prefill chunk by itself, and all decodes together.
    Chunk,
}

/// When batches are decided and pieces prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// While stage 0 is at work: it waits for a decision only if it has run out of pieces.
    #[default]
    Ahead,
    /// When stage 0 has nothing left to run: it waits for every decision, and for the preparation of every piece.
    Sync,
}
