//! The leader's side: a crew of workers that are processes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use cpp_sched::Config;

use super::ProcessPatience;
use super::desk::{Desk, Event, Member, Refused};
use super::message::{ToLeader, ToWorker};
use super::sealed::shut;
use super::secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE, Secret};
use crate::runtime::crew::Crew;
use crate::runtime::error::RuntimeError;
use crate::runtime::message::{Control, Report};

/// How often workers are put to new posts before it is given up.
const ATTEMPTS: usize = 3;

/// The command that starts the worker of a stage, or `None` if somebody else starts it. Its environment gets the place. The secret comes on its
/// standard input, which [`SECRET_FILE_VARIABLE`] names: an environment can be read in `/proc` for as long as the process lives. (Where there is
/// no `/dev/stdin`, it is in the environment.)
pub type Launch = Box<dyn FnMut(usize) -> Option<Command> + Send>;

/// What the leader hears beside the work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Workers have loaded so many bytes of weights since the last time.
    Loaded(u64),
    /// A connection came to nothing.
    Refused(Refused),
    /// A worker has joined.
    Joined {
        /// Its stage.
        stage: usize,
        /// Its process, on its host.
        pid: u32,
    },
}

/// What a pipeline of processes is.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "what must be decided")]
pub struct ProcessOptions {
    /// Where the leader listens. Port 0 takes a free one, if the leader starts all workers itself.
    pub listen: SocketAddr,
    /// What its processes know.
    pub secret: Secret,
    /// The layers of each stage.
    pub layers: Vec<Range<usize>>,
    /// Numbers that cross an edge at once at most: those of the largest batch.
    pub max_numbers: usize,
    /// What tells the model from others; workers bring theirs.
    pub model: [u8; 32],
    /// How long they wait for each other.
    pub patience: ProcessPatience,
}

#[derive(Debug, Default)]
struct Seat {
    member: Option<Member>,
    child: Option<Child>,
    /// Where the stage before connects to, once everything is loaded.
    data: Option<SocketAddr>,
    /// It was sent to the newest post, and has not left it.
    at_post: bool,
    /// It is there.
    posted: bool,
    /// What it could not do.
    problem: Option<String>,
}

/// Workers as processes; see the [module](super).
#[allow(missing_debug_implementations, reason = "it holds a launcher")]
pub struct Processes {
    desk: Arc<Desk>,
    address: SocketAddr,
    events: Receiver<Event>,
    launch: Launch,
    notice: Box<dyn FnMut(Notice) + Send>,
    seats: Vec<Seat>,
    post: u64,
    /// Stages whose worker, there or yet to come, has no part in what was before.
    fresh: BTreeSet<usize>,
}

impl Processes {
    /// Listens, starts the workers for which `launch` has a command, waits for the others, and puts all to work. `notice` is called with what
    /// happens meanwhile and later, whenever the crew is asked for something.
    ///
    /// # Errors
    /// The port is taken, or a worker does not come.
    pub fn start(
        config: &Config,
        options: ProcessOptions,
        launch: Launch,
        notice: impl FnMut(Notice) + Send + 'static,
    ) -> Result<Self, RuntimeError> {
        let ProcessOptions { listen, secret, layers, max_numbers, model, patience } = options;
        let error = |problem: String| RuntimeError::Listen { address: listen, problem };
        let listener = TcpListener::bind(listen).map_err(|bind| {
            error(match bind.kind() {
                std::io::ErrorKind::AddrInUse => "another program listens there: take another port".to_owned(),
                std::io::ErrorKind::AddrNotAvailable => "this host does not have that address: give one of its own".to_owned(),
                _ => bind.to_string(),
            })
        })?;
        let address = listener.local_addr().map_err(|lost| error(lost.to_string()))?;
        let config = serde_json::to_string(config).map_err(|json| error(json.to_string()))?;
        let seats = layers.iter().map(|_| Seat::default()).collect();
        let fresh = (0..layers.len()).collect();
        let desk = Arc::new(Desk::new(secret, config, layers, max_numbers as u64, model, patience));
        let (sender, events) = channel();
        desk.open(listener, sender);
        let notice = Box::new(notice);
        let mut processes = Self { desk, address, events, launch, notice, seats, post: 0, fresh };
        processes.replace(&[], 0)?;
        Ok(processes)
    }

    /// Where the leader listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The processes of the stages, as far as they have joined.
    #[must_use]
    pub fn pids(&self) -> Vec<Option<u32>> {
        self.seats.iter().map(|seat| seat.member.as_ref().map(|member| member.pid)).collect()
    }

    /// Kills the process of a stage, if it was started here: to see how the others get over it. False: it was not.
    pub fn kill(&mut self, stage: usize) -> bool {
        let child = self.seats.get_mut(stage).and_then(|seat| seat.child.as_mut());
        child.is_some_and(|child| child.kill().is_ok())
    }

    /// Waits for something to happen, but not longer than this.
    fn pump(&mut self, timeout: Duration) -> Option<Report> {
        let event = if timeout.is_zero() { self.events.try_recv().ok()? } else { self.events.recv_timeout(timeout).ok()? };
        self.take_in(event)
    }

    fn take_in(&mut self, event: Event) -> Option<Report> {
        match event {
            Event::Refused(refused) => {
                self.desk.told();
                (self.notice)(Notice::Refused(refused));
                None
            }
            Event::Joined { stage, member } => {
                (self.notice)(Notice::Joined { stage, pid: member.pid });
                let seat = &mut self.seats[stage];
                *seat = Seat { child: seat.child.take(), member: Some(member), ..Seat::default() };
                None
            }
            Event::Gone { stage, life, problem } => {
                let seat = self.seats.get_mut(stage).filter(|seat| seat.life() == Some(life))?;
                *seat = Seat { child: seat.child.take(), ..Seat::default() };
                self.fresh.insert(stage);
                Some(Report::Died { stage, life, problem })
            }
            Event::Said { stage, life, message } => {
                let (seat, post) = (self.seats.get_mut(stage).filter(|seat| seat.life() == Some(life))?, self.post);
                match message {
                    ToLeader::Loaded(bytes) => (self.notice)(Notice::Loaded(bytes)),
                    ToLeader::Ready { port } => {
                        seat.data = seat.member.as_ref().map(|member| SocketAddr::new(member.host, port));
                    }
                    ToLeader::Unable(problem) => seat.problem = Some(problem),
                    ToLeader::Posted { post: at } if at == post => seat.posted = true,
                    ToLeader::NoPost { post: at, problem } if at == post => seat.problem = Some(problem),
                    ToLeader::Left { post: at } if at == post => (seat.at_post, seat.posted) = (false, false),
                    ToLeader::Report(report) => return of_stage(report, stage, life),
                    ToLeader::Posted { .. } | ToLeader::NoPost { .. } | ToLeader::Left { .. } | ToLeader::Pong | ToLeader::Join(_) => {}
                }
                None
            }
        }
    }

    /// Lets go of a stage's worker, and ends it if that is ours to do.
    fn dismiss(&mut self, stage: usize) {
        let seat = std::mem::take(&mut self.seats[stage]);
        if let Some(member) = seat.member {
            shut(&member.stream);
            self.desk.free(stage, member.life);
        }
        if let Some(mut child) = seat.child {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.fresh.insert(stage);
    }

    fn say(&self, stage: usize, message: ToWorker) -> bool {
        self.seats[stage].member.as_ref().is_some_and(|member| member.out.send(message).is_ok())
    }

    /// Calls all workers back from their posts. Who does not come is let go.
    fn leave(&mut self) {
        for stage in 0..self.seats.len() {
            if self.seats[stage].at_post {
                self.say(stage, ToWorker::Leave { post: self.post });
            }
        }
        let until = Instant::now() + self.desk.patience.leave;
        while self.seats.iter().any(|seat| seat.at_post) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // Reports of what is over; a death is noted with the seat.
            let _ = self.pump(left);
        }
        for stage in 0..self.seats.len() {
            if self.seats[stage].at_post {
                self.dismiss(stage);
            }
        }
    }

    fn launch(&mut self, stage: usize) -> Result<(), RuntimeError> {
        let Some(mut command) = (self.launch)(stage) else { return Ok(()) };
        if let Some(mut child) = self.seats[stage].child.take() {
            // Its connection is gone, and so is what it was good for.
            let _ = child.kill();
            let _ = child.wait();
        }
        command
            .env("RANK", stage.to_string())
            .env("WORLD_SIZE", self.seats.len().to_string())
            .env("LOCAL_RANK", stage.to_string())
            .env("MASTER_ADDR", self.address.ip().to_string())
            .env("CPP_MASTER_PORT", self.address.port().to_string())
            .env_remove(SECRET_VARIABLE)
            .env_remove(SECRET_FILE_VARIABLE);
        if cfg!(unix) {
            command.env(SECRET_FILE_VARIABLE, "/dev/stdin").stdin(Stdio::piped());
        } else {
            command.env(SECRET_VARIABLE, self.desk.secret.reveal()).stdin(Stdio::null());
        }
        let mut child = command.spawn().map_err(|error| RuntimeError::Start { stage, problem: error.to_string() })?;
        if let Some(mut stdin) = child.stdin.take() {
            // A pipe holds so little at once. A process that has ended already is found out about.
            let _ = stdin.write_all(self.desk.secret.reveal().as_bytes());
        }
        self.seats[stage].child = Some(child);
        Ok(())
    }

    /// Waits until every stage has a worker that is ready.
    fn fill(&mut self) -> Result<(), RuntimeError> {
        for stage in 0..self.seats.len() {
            if self.seats[stage].member.is_none() {
                self.launch(stage)?;
            }
        }
        let until = Instant::now() + self.desk.patience.join;
        loop {
            let error = |stage, problem: String| Err(RuntimeError::Start { stage, problem });
            for (stage, seat) in self.seats.iter_mut().enumerate() {
                if let Some(problem) = seat.problem.take() {
                    return error(stage, problem);
                }
                if seat.member.is_some() {
                    continue;
                }
                if let Some(Ok(Some(status))) = seat.child.as_mut().map(Child::try_wait) {
                    seat.child = None;
                    return error(stage, format!("its process ended before it was ready: {status}"));
                }
                if Instant::now() >= until {
                    let (waited, address) = (self.desk.patience.join.as_secs_f64(), self.address);
                    return error(stage, format!("no worker has joined at {address} within {waited:.0} s: start one with RANK={stage}"));
                }
            }
            if self.seats.iter().all(|seat| seat.data.is_some()) {
                return Ok(());
            }
            let _ = self.pump(Duration::from_millis(100));
        }
    }

    /// Sends all workers to a new post, and waits until all are there.
    fn send_out(&mut self, generation: u64) -> Result<(), RuntimeError> {
        self.post += 1;
        let data: Vec<Option<SocketAddr>> = self.seats.iter().map(|seat| seat.data).collect();
        for stage in 0..self.seats.len() {
            let down = data.get(stage + 1).copied().flatten();
            self.seats[stage].at_post = self.say(stage, ToWorker::Post { post: self.post, generation, down });
        }
        // Each waits so long for its edges, one after the other, before it says that there are none.
        let until = Instant::now() + 3 * self.desk.patience.handshake;
        loop {
            for (stage, seat) in self.seats.iter_mut().enumerate() {
                if let Some(problem) = seat.problem.take() {
                    return Err(RuntimeError::Start { stage, problem });
                }
                if seat.member.is_none() || Instant::now() >= until {
                    let problem = if seat.member.is_none() { "it is gone again" } else { "it does not get to work" };
                    return Err(RuntimeError::Start { stage, problem: problem.to_owned() });
                }
            }
            if self.seats.iter().all(|seat| seat.posted) {
                return Ok(());
            }
            let _ = self.pump(Duration::from_millis(100));
        }
    }
}

impl Seat {
    fn life(&self) -> Option<u64> {
        self.member.as_ref().map(|member| member.life)
    }
}

/// A worker speaks for its own stage; whatever else it says is nothing.
fn of_stage(report: Report, own: usize, life: u64) -> Option<Report> {
    match report {
        Report::Died { problem, .. } => Some(Report::Died { stage: own, life, problem }),
        Report::Done { stage, .. } | Report::Failed { stage, .. } | Report::Aborted { stage, .. } => (stage == own).then_some(report),
    }
}

impl Crew for Processes {
    fn stages(&self) -> usize {
        self.seats.len()
    }

    fn tell(&mut self, stage: usize, control: Control) -> bool {
        self.seats.get(stage).is_some_and(|seat| seat.posted) && self.say(stage, ToWorker::Control(control))
    }

    fn listen(&mut self, timeout: Duration) -> Option<Report> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // An event need not be a report.
            let event = if left.is_zero() { self.events.try_recv().ok() } else { self.events.recv_timeout(left).ok() };
            if let Some(report) = self.take_in(event?) {
                return Some(report);
            }
        }
    }

    fn replace(&mut self, dead: &[usize], generation: u64) -> Result<Vec<usize>, RuntimeError> {
        for &stage in dead {
            // The launcher may have been quicker: then it is the new one.
            if !self.fresh.contains(&stage) {
                self.dismiss(stage);
            }
        }
        let mut attempt = 1;
        loop {
            self.leave();
            self.fill()?;
            match self.send_out(generation) {
                Ok(()) => return Ok(std::mem::take(&mut self.fresh).into_iter().collect()),
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(_) => attempt += 1,
            }
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.desk.close(self.address);
        for stage in 0..self.seats.len() {
            self.say(stage, ToWorker::Exit);
        }
        let until = Instant::now() + Duration::from_secs(2);
        while self.seats.iter().any(|seat| seat.member.is_some()) && Instant::now() < until {
            let _ = self.pump(Duration::from_millis(20));
        }
        for child in self.seats.iter_mut().filter_map(|seat| seat.child.as_mut()) {
            while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
