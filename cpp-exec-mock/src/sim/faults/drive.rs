//! Faults in a run: when the next one is due, and what is done about it.

use std::collections::VecDeque;

use cpp_sched::BatchId;
use cpp_sched::driver::{Progress, Step};

use super::{Fault, FaultKind, Faults, Recovery};
use crate::pipeline::{Pace, Pipe, Window};
use crate::sim::SimError;
use crate::sim::engine::Engine;
use crate::sim::site::{index, look, step};

/// The faults of a run that goes on.
pub(crate) struct Drive {
    pub(crate) recovery: Recovery,
    timeout_ns: u64,
    /// Of faults with times of their own, in order.
    due: VecDeque<(u64, Due)>,
    /// Results that are to be lost, and transfers that are to hang, in order.
    losses: VecDeque<usize>,
    hangs: VecDeque<usize>,
    /// The batch whose result is lost, which nobody has noticed yet.
    losing: Option<(BatchId, usize)>,
}

#[derive(Clone, Copy)]
enum Due {
    Begins(usize),
    Noticed(usize),
}

impl Drive {
    /// Tells the pipeline of what is known beforehand.
    pub(crate) fn new(faults: &Faults, pipe: &mut Pipe, start_ns: u64) -> Self {
        let recovery = Recovery::new(faults, start_ns);
        let mut due = Vec::new();
        let (mut losses, mut hangs) = (VecDeque::new(), VecDeque::new());
        for (i, &Fault { at_ns, stage, kind, for_ns }) in faults.list().iter().enumerate() {
            let mut disturb = |pace, for_ns| pipe.disturb(stage, Window { from_ns: at_ns, to_ns: at_ns.saturating_add(for_ns), pace });
            match kind {
                FaultKind::Stall => disturb(Pace::Stopped, for_ns),
                FaultKind::Slow(thousandths) => disturb(Pace::Slower(thousandths), for_ns),
                FaultKind::Die => {
                    disturb(Pace::Stopped, faults.timeout_ns);
                    due.push((at_ns.saturating_add(faults.timeout_ns), Due::Noticed(i)));
                }
                FaultKind::Lose => losses.push_back(i),
                FaultKind::Hang => hangs.push_back(i),
            }
            if kind.lasts() {
                due.push((at_ns, Due::Begins(i)));
            }
        }
        due.sort_by_key(|&(ns, _)| ns);
        let drive = Self { recovery, timeout_ns: faults.timeout_ns, due: due.into(), losses, hangs, losing: None };
        drive.arm(pipe);
        drive
    }

    /// One transfer hangs at a time.
    fn arm(&self, pipe: &mut Pipe) {
        if let Some(&i) = self.hangs.front() {
            let fault = self.recovery.incidents[i].fault;
            pipe.hang(fault.stage, fault.at_ns);
        }
    }

    /// The result that is due, and was to be back at `back_ns`: if it is lost, when that is noticed.
    pub(crate) fn loses(&mut self, batch: BatchId, back_ns: u64) -> Option<u64> {
        if self.losing.is_some() {
            return None;
        }
        let i = *self.losses.front().filter(|&&i| self.recovery.incidents[i].fault.at_ns <= back_ns)?;
        self.losses.pop_front();
        self.losing = Some((batch, i));
        self.recovery.begin(i, back_ns);
        Some(back_ns.saturating_add(self.timeout_ns))
    }

    /// Whether this batch's result was lost; asked when that is noticed.
    pub(crate) fn has_lost(&mut self, batch: BatchId, now_ns: u64) -> bool {
        let Some((_, i)) = self.losing.take_if(|(losing, _)| *losing == batch) else { return false };
        let incident = &mut self.recovery.incidents[i];
        (incident.noticed_ns, incident.up_ns, incident.batches_lost) = (Some(now_ns), Some(now_ns), 1);
        true
    }

    /// Whether a result is overdue.
    pub(crate) const fn is_losing(&self) -> bool {
        self.losing.is_some()
    }

    /// When something is due.
    pub(crate) fn next_ns(&self, pipe: &Pipe) -> Option<u64> {
        let hang = pipe.hung_since_ns().zip(self.hangs.front()).map(|(since_ns, &i)| match self.recovery.incidents[i].began_ns {
            None => since_ns,
            Some(_) => since_ns.saturating_add(self.timeout_ns),
        });
        self.due.front().map(|&(ns, _)| ns).into_iter().chain(hang).min()
    }
}

impl Engine<'_> {
    /// What is due by now.
    pub(crate) fn handle_faults(&mut self) -> Result<(), SimError> {
        while let Some(drive) = &mut self.faults
            && let (pipe, now_ns) = (&self.driver.executor().pipe, self.driver.executor().now_ns)
            && drive.next_ns(pipe).is_some_and(|ns| ns <= now_ns)
        {
            if let Some(&(_, due)) = drive.due.front().filter(|&&(ns, _)| ns <= now_ns) {
                drive.due.pop_front();
                match due {
                    Due::Begins(i) => {
                        drive.recovery.begin(i, now_ns);
                        let incident = &mut drive.recovery.incidents[i];
                        if incident.fault.kind != FaultKind::Die {
                            incident.up_ns = Some(incident.fault.at_ns.saturating_add(incident.fault.for_ns));
                        }
                    }
                    Due::Noticed(i) => self.lose_all(i, true)?,
                }
            } else if let Some(&i) = drive.hangs.front() {
                if drive.recovery.incidents[i].began_ns.is_none() {
                    drive.recovery.begin(i, now_ns);
                } else {
                    self.lose_all(i, false)?;
                }
            }
        }
        Ok(())
    }

    /// Results that are due and do not come: they are waited for until the timeout, and lost then.
    pub(crate) fn notice_lost_results(&mut self) -> Result<(), SimError> {
        while let Some(drive) = &mut self.faults
            && let Some(oldest) = self.driver.scheduler().oldest_in_flight().map(cpp_sched::Batch::id)
            && let site = self.driver.executor_mut()
            && let Some(back_ns) = site.pipe.next_result_ns().filter(|&back_ns| back_ns <= site.now_ns)
        {
            if let Some(noticed_ns) = drive.loses(oldest, back_ns) {
                site.pipe.delay_result(noticed_ns);
            } else if drive.has_lost(oldest, site.now_ns) {
                self.lose_result(oldest)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Fault `i` is noticed: nothing that is in flight comes back, and with a stage's memory all KV is gone.
    fn lose_all(&mut self, i: usize, memory: bool) -> Result<(), SimError> {
        self.tick();
        look(&mut self.driver);
        self.driver.fail();
        let rolled_back = step(&mut self.driver)?;
        let Step::Progress(Progress::RolledBack(batches)) = rolled_back else {
            return Err(SimError::Driver(format!("a failure is answered with {rolled_back:?}")));
        };
        if memory {
            self.driver.reset_all_kv();
        }
        self.stand_where_committed();
        let Self { driver, faults: Some(drive), .. } = self else { return Ok(()) };
        let site = driver.executor_mut();
        let now_ns = site.now_ns;
        let fault = drive.recovery.incidents[i].fault;
        let up_ns = fault.at_ns.saturating_add(fault.for_ns).max(now_ns);
        // What was under way when this was noticed is over with it.
        let hung = drive.hangs.front().copied().filter(|&i| drive.recovery.incidents[i].began_ns.is_some());
        if let Some(hung) = hung {
            drive.hangs.pop_front();
            (drive.recovery.incidents[hung].noticed_ns, drive.recovery.incidents[hung].up_ns) = (Some(now_ns), Some(now_ns));
        }
        if let Some((_, losing)) = drive.losing.take() {
            (drive.recovery.incidents[losing].noticed_ns, drive.recovery.incidents[losing].up_ns) = (Some(now_ns), Some(now_ns));
        }
        let incident = &mut drive.recovery.incidents[i];
        (incident.noticed_ns, incident.up_ns, incident.batches_lost) = (Some(now_ns), Some(up_ns), batches.into());
        let slices = site.pipe.outage(now_ns, up_ns);
        site.watch.iter_mut().for_each(|watch| watch.idle(&slices));
        drive.arm(&mut site.pipe);
        self.take_events();
        Ok(())
    }

    /// The oldest batch has run, and its result does not come.
    fn lose_result(&mut self, batch: BatchId) -> Result<(), SimError> {
        self.tick();
        look(&mut self.driver);
        let site = self.driver.executor_mut();
        site.pipe.take_result(site.now_ns);
        site.lose(batch);
        self.driver.lose(batch)?;
        self.stand_where_committed();
        self.take_events();
        Ok(())
    }

    /// Requests with rows that were lost go on from what is committed.
    fn stand_where_committed(&mut self) {
        let lost = std::mem::take(&mut self.site_mut().lost);
        for request in lost {
            let stands = self.driver.scheduler().num_computed_tokens(request);
            let site = self.driver.executor_mut();
            site.records[index(request)].rolled_back(stands, site.now_ns);
        }
    }
}
