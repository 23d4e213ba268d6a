//! Batches go onto the streams as far as they can, and off them.

use std::time::{Duration, Instant};

use cpp_exec_mock::runtime::Device;

use super::{Counts, CudaStage, Link, PATIENCE, place};
use crate::cuda::edge::{DeviceAddress, EdgeEnd, Progress};
use crate::cuda::error::{CudaError, Doing};
use crate::cuda::planted::{happens, is_due};
use crate::cuda::stream::Stream;

impl CudaStage {
    /// Whether both ends are ready; goes on with connecting them. Never waits.
    pub(super) fn connect(&mut self) -> Result<bool, CudaError> {
        if !self.is_busy() {
            return Ok(true);
        }
        let place = self.layers.queue.pointer(&self.slots[0].x).address();
        let up =
            self.ends.up.as_mut().map_or(Ok(true), |up| connect(up.as_mut(), &mut self.links[0], self.generation, place, &self.recv))?;
        let down = self
            .ends
            .down
            .as_mut()
            .map_or(Ok(true), |down| connect(down.as_mut(), &mut self.links[1], self.generation, place, &self.send))?;
        Ok(up && down)
    }

    /// Puts everything on the streams that can be put there.
    pub(super) fn advance(&mut self) -> Result<(), CudaError> {
        loop {
            let before = self.counts;
            self.receive()?;
            self.compute()?;
            self.send()?;
            if self.counts == before {
                return self.free();
            }
        }
    }

    /// What batches begin with.
    pub(super) fn receive(&mut self) -> Result<(), CudaError> {
        while self.counts.received < self.counts.started {
            let number = place(self.counts.received, self.slots.len());
            let slot = &self.slots[number];
            let into = self.layers.queue.pointer(&slot.x).address();
            if !self.first {
                if let Some(up) = &mut self.ends.up {
                    #[allow(unsafe_code)]
                    // SAFETY: `x` is the slot's for as long as the batch is under way, with room for every batch that the layout lets through; the
                    // stream lives as long as the stage, which aborts its ends before.
                    let progress =
                        if self.receiving { up.poll()? } else { unsafe { up.receive(number, into, slot.values, self.recv.raw()) }? };
                    self.receiving = !is_due(progress == Progress::Done);
                    if self.receiving {
                        return Ok(());
                    }
                } else if let Some(host) = &slot.host {
                    self.recv.copy_in(host, slot.values, into)?;
                }
                slot.recv_done.record(&self.recv).doing("receiving")?;
            }
            self.counts.received += 1;
        }
        Ok(())
    }

    /// Layers.
    pub(super) fn compute(&mut self) -> Result<(), CudaError> {
        while self.counts.computed < self.counts.started {
            // What the kernels wait for must have been recorded: before that the event stands for an earlier batch.
            if !is_due(self.counts.computed < self.counts.received) {
                break;
            }
            let number = place(self.counts.computed, self.slots.len());
            let (layers, slot) = (&self.layers, &mut self.slots[number]);
            let stream = layers.queue.stream().clone();
            stream.wait(&slot.meta_ready).doing("running a batch")?;
            if !self.first {
                stream.wait(&slot.recv_done).doing("running a batch")?;
            }
            let batch = slot.batch(&layers.queue, slot.shape);
            match slot.graph {
                Some(graph) => self.graphs.launch(number, graph)?,
                None => {
                    layers.copy_blocks(&batch, &slot.copy_launches)?;
                    layers.run(&batch)?;
                }
            }
            if let Some(chosen) = &mut slot.chosen {
                let wanted = chosen.positions();
                layers.sample(&batch, chosen, wanted)?;
            }
            slot.comp_done.record(&stream).doing("running a batch")?;
            self.counts.computed += 1;
        }
        Ok(())
    }

    /// What batches put out.
    pub(super) fn send(&mut self) -> Result<(), CudaError> {
        while self.counts.sent < self.counts.computed {
            let number = place(self.counts.sent, self.slots.len());
            let (queue, slot) = (&self.layers.queue, &mut self.slots[number]);
            let from = queue.pointer(&slot.x).address();
            if !self.sending {
                self.send.wait(&slot.comp_done).doing("sending")?;
            }
            if let Some(chosen) = &mut slot.chosen {
                chosen.copy_out(queue, &self.send)?;
            } else if let Some(down) = &mut self.ends.down {
                #[allow(unsafe_code)]
                // SAFETY: as in `receive`.
                let progress = if self.sending { down.poll()? } else { unsafe { down.send(number, from, slot.values, self.send.raw()) }? };
                self.sending = !is_due(progress == Progress::Done);
                if self.sending {
                    return Ok(());
                }
            } else if let Some(host) = &mut slot.host {
                self.send.copy_out(from, host, 0, slot.values)?;
            }
            slot.out_done.record(&self.send).doing("sending")?;
            self.counts.sent += 1;
        }
        Ok(())
    }

    /// Whether what carries activations has failed behind an operation that was on its stream.
    pub(super) fn look_at_ends(&mut self) -> Result<(), CudaError> {
        if let (Some(up), false) = (&mut self.ends.up, self.receiving) {
            let _ = up.poll()?;
        }
        if let (Some(down), false) = (&mut self.ends.down, self.sending) {
            let _ = down.poll()?;
        }
        Ok(())
    }

    /// Slots whose batches are through in every respect.
    pub(super) fn free(&mut self) -> Result<(), CudaError> {
        while self.counts.freed < self.counts.reported.min(self.counts.sent) {
            let slot = &self.slots[place(self.counts.freed, self.slots.len())];
            if !slot.out_done.is_complete().doing("running a batch")? {
                break;
            }
            self.counts.freed += 1;
        }
        Ok(())
    }

    /// Whether the oldest batch that was not reported is through, as far as the runtime is concerned: its layers have run, or what it puts out is on
    /// the host.
    pub(super) fn is_through(&self) -> Result<bool, CudaError> {
        let slot = &self.slots[place(self.counts.reported, self.slots.len())];
        if self.counts.reported == self.counts.started {
            return Ok(false);
        }
        // Before it is recorded, an event stands for an earlier batch.
        if self.ends.down.is_some() {
            if !is_due(self.counts.reported < self.counts.computed) {
                return Ok(false);
            }
            return slot.comp_done.is_complete().doing("running a batch");
        }
        if !is_due(self.counts.reported < self.counts.sent) {
            return Ok(false);
        }
        slot.out_done.is_complete().doing("running a batch")
    }

    /// Returns when nothing is on any stream. The host waits, but at no call of the driver: somebody else may have to end what it waits for.
    pub(super) fn drain(&self) -> Result<(), CudaError> {
        let until = Instant::now() + PATIENCE;
        for stream in [&self.io, &self.recv, self.layers.queue.stream(), &self.send] {
            self.drained.record(stream).doing("forgetting batches")?;
            while !self.drained.is_complete().doing("forgetting batches")? {
                if Instant::now() > until {
                    return Err(CudaError::Stuck { waited: PATIENCE });
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    /// Ends everything under way.
    pub(super) fn abort(&mut self) -> Result<(), CudaError> {
        // First what waits for other stages: the streams run dry only then.
        let up = self.ends.up.as_mut().filter(|_| happens()).map_or(Ok(()), |up| up.abort());
        let down = self.ends.down.as_mut().filter(|_| happens()).map_or(Ok(()), |down| down.abort());
        if happens() {
            self.drain()?;
        }
        self.links = [Link::Apart; 2];
        self.counts = Counts::default();
        (self.receiving, self.sending) = (false, false);
        up?;
        Ok(down?)
    }
}

/// Goes on with connecting an end and passing one value over it. True: it is ready.
fn connect<E: EdgeEnd + ?Sized>(
    end: &mut E,
    link: &mut Link,
    generation: u64,
    scratch: DeviceAddress,
    stream: &Stream,
) -> Result<bool, CudaError> {
    loop {
        let progress = match *link {
            Link::Ready => return Ok(true),
            Link::Apart => end.connect(generation)?,
            #[allow(unsafe_code)]
            // SAFETY: activations of a slot that no batch uses yet; the stream lives as long as the stage, which aborts its ends before.
            Link::Connected => unsafe {
                *link = Link::Warming;
                end.warm_up(scratch, stream.raw())?
            },
            Link::Warming => end.poll()?,
        };
        if progress == Progress::Pending {
            return Ok(false);
        }
        *link = match *link {
            Link::Apart => Link::Connected,
            Link::Connected | Link::Warming | Link::Ready => Link::Ready,
        };
    }
}
