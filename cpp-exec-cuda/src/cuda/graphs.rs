//! Small decodes as graphs: the launches of all layers in one call.
//!
//! A graph has the addresses of a slot and the sizes of a [`Shape`], so there is one for each of both. What it holds is what
//! [`Layers::run`](super::layers::Layers::run) puts on the stream: kernels and products, no copy, no event, and nothing of an edge.

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

use super::error::{CudaError, Doing};
use super::layers::Layers;
use super::lists::Shape;
use super::slot::Slot;

/// Decodes of a batch that graphs are made for, at most.
const MOST: usize = 64;

/// Graphs of all slots.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    shapes: Vec<Shape>,
    /// Of each slot one for each shape.
    slots: Vec<Vec<Graph>>,
}

struct Graph(CudaGraph);

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Graph")
    }
}

#[allow(unsafe_code)]
// SAFETY: a graph belongs to its stage, which one thread uses at a time; the driver does not ask for the same thread.
unsafe impl Send for Graph {}

/// The shapes that graphs are made for: 1, 2, 4 .. 64 rows, each with one split a row, then with as many as the longest row has. Smallest first.
pub(super) fn shapes(rows: usize, splits_of_row: usize, blocks_of_row: usize, samples: bool) -> Vec<Shape> {
    let sizes: Vec<usize> = (0..).map(|power| 1 << power).take_while(|size| *size <= MOST && *size <= rows).collect();
    let shape = |splits: usize| move |&size: &usize| Shape::decodes(size, splits, blocks_of_row, samples);
    let short = sizes.iter().map(shape(1));
    let long = sizes.iter().filter(|_| splits_of_row > 1).map(shape(splits_of_row));
    short.chain(long).collect()
}

impl Graphs {
    /// Captures all graphs. Every kernel has been launched and every product run at these sizes before ([`Layers::products`]), and cuBLAS has memory to work
    /// in, so that nothing is loaded or reserved meanwhile. O(shapes · slots · layers).
    pub(super) fn capture(layers: &Layers, slots: &[Slot], shapes: Vec<Shape>) -> Result<Self, CudaError> {
        let stream = layers.queue.stream().inner();
        let capture = |slot: &Slot, shape: Shape| {
            stream.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).doing("capturing a graph")?;
            let put = layers.run(&slot.batch(&layers.queue, shape));
            // The capture ends whatever came of it.
            let graph = stream.end_capture(CUgraphInstantiate_flags(0)).doing("capturing a graph");
            put?;
            let graph = graph?.ok_or(CudaError::NoGraph)?;
            graph.upload().doing("capturing a graph")?;
            Ok(Graph(graph))
        };
        let slots =
            slots.iter().map(|slot| shapes.iter().map(|shape| capture(slot, *shape)).collect()).collect::<Result<_, CudaError>>()?;
        Ok(Self { shapes, slots })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.iter().map(Vec::len).sum()
    }

    /// The smallest shape that holds a batch.
    pub(super) fn shape_for(&self, batch: &Shape) -> Option<(usize, Shape)> {
        self.shapes.iter().copied().enumerate().find(|(_, shape)| shape.holds(batch))
    }

    /// Puts a graph on the stream of kernels.
    pub(super) fn launch(&self, slot: usize, graph: usize) -> Result<(), CudaError> {
        self.slots[slot][graph].0.launch().doing("starting a graph")
    }
}
