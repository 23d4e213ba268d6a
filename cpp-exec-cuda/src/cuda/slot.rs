//! What a batch has on the device and beside it while it is under way.

use cpp_exec_mock::runtime::Work;
use cpp_sched::BatchId;
use cudarc::driver::CudaSlice;

use super::error::CudaError;
use super::gpu::{Pointer, Queue};
use super::layers::Batch;
use super::layout::Layout;
use super::lists::{Nobody, Places, Shape, pack};
use super::sample::Chosen;
use super::stream::{Event, Pinned};
use super::weights::Halves;

/// One place of the ring. Used for another batch when what it puts out is through.
#[derive(Debug)]
pub(super) struct Slot {
    /// The batch's lists, on the host and on the device.
    pub(super) meta: Pinned<i32>,
    pub(super) lists: CudaSlice<i32>,
    /// Activations: what comes in, what layers make of it, and what goes out.
    pub(super) x: Halves,
    /// The same on the host, where they go that way.
    pub(super) host: Option<Pinned<u16>>,
    /// On a last stage.
    pub(super) chosen: Option<Chosen>,
    /// The lists are on the device.
    pub(super) meta_ready: Event,
    /// What the stage before has put out is here.
    pub(super) recv_done: Event,
    /// The layers have run.
    pub(super) comp_done: Event,
    /// What the stage puts out is gone: to the next one, or tokens to the host.
    pub(super) out_done: Event,
    /// The batch.
    pub(super) work: Work,
    pub(super) shape: Shape,
    pub(super) copy_launches: Vec<usize>,
    /// Which graph runs it, if one does.
    pub(super) graph: Option<usize>,
    /// Numbers of activations.
    pub(super) values: usize,
}

/// Room of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRoom {
    pub(super) lists: usize,
    pub(super) values: usize,
    pub(super) on_host: bool,
    /// Positions that are sampled at most, and the vocabulary.
    pub(super) sampled: Option<(usize, usize)>,
}

impl Slot {
    pub(super) fn new(queue: &Queue, room: SlotRoom) -> Result<Self, CudaError> {
        let context = queue.gpu().context();
        let event = || Event::new(context);
        Ok(Self {
            meta: Pinned::zeros(context, room.lists)?,
            lists: queue.zeros(room.lists)?,
            x: queue.zeros(room.values)?,
            host: room.on_host.then(|| Pinned::zeros(context, room.values)).transpose()?,
            chosen: room.sampled.map(|(positions, vocabulary)| Chosen::new(queue, positions, vocabulary)).transpose()?,
            meta_ready: event()?,
            recv_done: event()?,
            comp_done: event()?,
            out_done: event()?,
            work: Work::new(BatchId(0)),
            shape: Shape::decodes(0, 1, 0, false),
            copy_launches: Vec::new(),
            graph: None,
            values: 0,
        })
    }

    /// Becomes that of a batch, whose lists are written for a shape. How many numbers of them are to be copied. O(shape).
    pub(super) fn fill(&mut self, work: &Work, layout: &Layout, shape: Shape, nobody: Nobody, hidden: usize) -> usize {
        self.work.clone_from(work);
        self.shape = shape;
        self.copy_launches.clone_from(&layout.copy_launches);
        self.values = layout.positions.len() * hidden;
        pack(layout, &shape, nobody, self.meta.as_mut_slice())
    }

    /// What is run, in this shape.
    pub(super) fn batch(&self, queue: &Queue, shape: Shape) -> Batch {
        Batch {
            shape,
            places: Places::of(&shape),
            lists: queue.pointer(&self.lists),
            x: queue.pointer(&self.x),
            best: self.chosen.as_ref().map_or(Pointer::NULL, |chosen| chosen.best(queue)),
        }
    }
}
