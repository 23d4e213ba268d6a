//! The workers of a pipeline, as the leader sees them; here as threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cpp_sched::Config;

use super::error::RuntimeError;
use super::link::Link;
use super::message::{Control, Report};
use super::work::Device;
use super::worker::{Inbox, Left, Post, Worker};

/// Workers, one a stage, wherever they run.
pub trait Crew {
    /// Stages that there are.
    fn stages(&self) -> usize;

    /// Tells one stage something. False: it is gone.
    fn tell(&mut self, stage: usize, control: Control) -> bool;

    /// What workers have to say, in the order in which it came; `None` after `timeout`. Zero: only what is there.
    fn listen(&mut self, timeout: Duration) -> Option<Report>;

    /// Lets go of the stages in `dead`, and puts workers without memory in their places. Those that live keep theirs. Afterwards all edges are
    /// new, nothing is under way, and no worker that was there before writes or says anything any more. Returns the stages whose worker is new:
    /// others than those may have died meanwhile.
    ///
    /// # Errors
    /// A stage cannot be started. It may be tried again.
    fn replace(&mut self, dead: &[usize], generation: u64) -> Result<Vec<usize>, RuntimeError>;
}

impl<C: Crew + ?Sized> Crew for Box<C> {
    fn stages(&self) -> usize {
        (**self).stages()
    }

    fn tell(&mut self, stage: usize, control: Control) -> bool {
        (**self).tell(stage, control)
    }

    fn listen(&mut self, timeout: Duration) -> Option<Report> {
        (**self).listen(timeout)
    }

    fn replace(&mut self, dead: &[usize], generation: u64) -> Result<Vec<usize>, RuntimeError> {
        (**self).replace(dead, generation)
    }
}

/// Makes the device of a stage, with empty memory.
pub type Factory<D> = Box<dyn FnMut(usize) -> Result<D, Box<dyn std::error::Error + Send + Sync>> + Send>;

/// A worker that left its post of its own will, and why.
type Ended<D> = (Worker<D>, Left);

struct Staff<D: Device> {
    inbox: Sender<Inbox<D::Activations>>,
    thread: JoinHandle<Option<Ended<D>>>,
}

/// Workers as threads of this process.
#[allow(missing_debug_implementations, reason = "it holds a factory and links")]
pub struct Threads<D: Device + 'static> {
    config: Config,
    factory: Factory<D>,
    link: Box<dyn Link<D::Activations>>,
    staff: Vec<Option<Staff<D>>>,
    reports: (Sender<Report>, Receiver<Report>),
    epoch: Instant,
    /// How many workers each stage has had.
    lives: Vec<u64>,
    patience: Duration,
}

impl<D: Device + 'static> Threads<D> {
    /// Starts a worker for each of the configuration's stages. `patience` is how long a worker may take to leave its post when it is told to;
    /// then it is left to itself.
    ///
    /// # Errors
    /// A stage cannot be started.
    pub fn start(
        config: &Config,
        factory: Factory<D>,
        link: impl Link<D::Activations> + 'static,
        patience: Duration,
    ) -> Result<Self, RuntimeError> {
        let stages = config.stages as usize;
        let mut threads = Self {
            config: *config,
            factory,
            link: Box::new(link),
            staff: (0..stages).map(|_| None).collect(),
            reports: channel(),
            epoch: Instant::now(),
            lives: vec![0; stages],
            patience,
        };
        let workers = (0..stages).map(|stage| threads.hire(stage)).collect::<Result<Vec<_>, _>>()?;
        threads.post(workers, 0)?;
        Ok(threads)
    }

    fn hire(&mut self, stage: usize) -> Result<Worker<D>, RuntimeError> {
        let device = (self.factory)(stage).map_err(|error| RuntimeError::Start { stage, problem: error.to_string() })?;
        Ok(Worker::new(device, &self.config))
    }

    /// Puts workers to their posts, with new edges between them.
    fn post(&mut self, workers: Vec<Worker<D>>, generation: u64) -> Result<(), RuntimeError> {
        let stages = workers.len();
        let (mut ups, mut downs) = (vec![None], Vec::new());
        for stage in 1..stages {
            let edge = self.link.edge().map_err(|error| RuntimeError::Start { stage, problem: error.to_string() })?;
            downs.push(Some(edge.0));
            ups.push(Some(edge.1));
        }
        downs.push(None);
        for (stage, ((mut worker, up), down)) in workers.into_iter().zip(ups).zip(downs).enumerate() {
            let (to_inbox, inbox) = channel();
            let (reports, died) = (self.reports.0.clone(), self.reports.0.clone());
            let life = self.lives[stage];
            let post = Post {
                stage,
                epoch: self.epoch,
                generation,
                inbox,
                to_inbox: to_inbox.clone(),
                up,
                down,
                report: Box::new(move |report| reports.send(report).is_ok()),
            };
            let run = move || {
                let problem = match catch_unwind(AssertUnwindSafe(|| worker.work(post))) {
                    Ok(Left::Stopped) => return Some((worker, Left::Stopped)),
                    Ok(Left::Lost(problem)) => problem,
                    Err(panic) => panic_text(&*panic),
                };
                // Whoever waits for it is gone only with the whole pipeline.
                let _ = died.send(Report::Died { stage, life, problem });
                None
            };
            let thread = thread::Builder::new().name(format!("stage {stage}")).spawn(run);
            let thread = thread.map_err(|error| RuntimeError::Start { stage, problem: error.to_string() })?;
            self.staff[stage] = Some(Staff { inbox: to_inbox, thread });
        }
        Ok(())
    }

    /// Waits for a thread to end, but not for ever.
    fn join(staff: Staff<D>, patience: Duration) -> Option<Worker<D>> {
        let until = Instant::now() + patience;
        while !staff.thread.is_finished() {
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(Duration::from_micros(200));
        }
        staff.thread.join().ok().flatten().map(|(worker, _)| worker)
    }
}

impl<D: Device + 'static> Crew for Threads<D> {
    fn stages(&self) -> usize {
        self.staff.len()
    }

    fn tell(&mut self, stage: usize, control: Control) -> bool {
        let staff = self.staff.get(stage).and_then(Option::as_ref);
        staff.is_some_and(|staff| staff.inbox.send(Inbox::Control(control)).is_ok())
    }

    fn listen(&mut self, timeout: Duration) -> Option<Report> {
        loop {
            // This end holds a sender itself, so the channel is never closed.
            let report = if timeout.is_zero() { self.reports.1.try_recv().ok() } else { self.reports.1.recv_timeout(timeout).ok() };
            match report {
                // An earlier worker of the stage, which was let go already.
                Some(Report::Died { stage, life, .. }) if self.lives[stage] != life => {}
                report => return report,
            }
        }
    }

    fn replace(&mut self, dead: &[usize], generation: u64) -> Result<Vec<usize>, RuntimeError> {
        for stage in 0..self.stages() {
            self.tell(stage, Control::Stop);
        }
        let mut workers = Vec::new();
        for stage in 0..self.stages() {
            let staff = self.staff[stage].take();
            // One that hangs is left alone with its device: it can write to no memory but its own, and its reports go nowhere.
            let patience = if dead.contains(&stage) { Duration::ZERO } else { self.patience };
            let worker = staff.and_then(|staff| Self::join(staff, patience)).filter(|_| !dead.contains(&stage));
            workers.push(worker);
        }
        self.reports = channel();
        let (mut whole, mut new) = (Vec::new(), Vec::new());
        for (stage, worker) in workers.into_iter().enumerate() {
            whole.push(match worker {
                Some(worker) => worker,
                None => {
                    self.lives[stage] += 1;
                    new.push(stage);
                    self.hire(stage)?
                }
            });
        }
        self.post(whole, generation)?;
        Ok(new)
    }
}

/// What a panic has said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}

impl<D: Device + 'static> Drop for Threads<D> {
    fn drop(&mut self) {
        for stage in 0..self.stages() {
            self.tell(stage, Control::Stop);
        }
        for staff in self.staff.iter_mut().filter_map(Option::take) {
            Self::join(staff, self.patience);
        }
    }
}
