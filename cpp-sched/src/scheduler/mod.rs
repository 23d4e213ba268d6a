//! skeleton
use crate::*;
/// the scheduler
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
}
/// violation
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub alloc::string::String);
impl Scheduler {
    /// x
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config })
    }
    /// x
    pub fn config(&self) -> &Config {
        &self.config
    }
    /// x
    pub fn submit(&mut self, _request: Request) -> Result<(), SubmitError> {
        todo!()
    }
    /// x
    pub fn schedule(&mut self) -> Schedule<'_> {
        todo!()
    }
    /// x
    pub fn complete(&mut self, _batch: BatchId, _samples: &[Sample<'_>]) -> Result<(), CompleteError> {
        todo!()
    }
    /// every batch in flight is lost; how many
    pub fn fail(&mut self) -> u32 {
        todo!()
    }
    /// false: no effect
    pub fn abort(&mut self, _request: RequestId) -> bool {
        todo!()
    }
    /// x
    pub fn ready(&mut self, _request: RequestId) -> bool {
        todo!()
    }
    /// x
    pub fn set_drafts(&mut self, _request: RequestId, _drafts: u32) -> bool {
        todo!()
    }
    /// x
    pub fn kv_sent(&mut self, _request: RequestId) -> bool {
        todo!()
    }
    /// x
    pub fn kv_send_failed(&mut self, _request: RequestId) -> bool {
        todo!()
    }
    /// x
    pub fn kv_arrived(&mut self, _request: RequestId) -> bool {
        todo!()
    }
    /// x
    pub fn kv_failed(&mut self, _request: RequestId) -> bool {
        todo!()
    }
    /// x
    pub fn tick(&mut self, _now_ns: u64) {
        todo!()
    }
    /// x
    pub fn now_ns(&self) -> u64 {
        todo!()
    }
    /// x
    pub fn reset_prefix_cache(&mut self) {
        todo!()
    }
    /// drains the events
    pub fn events(&mut self) -> alloc::vec::Drain<'_, Event> {
        todo!()
    }
    /// batches in flight
    pub fn in_flight(&self) -> u32 {
        todo!()
    }
    /// x
    pub fn oldest_in_flight(&self) -> Option<&Batch> {
        todo!()
    }
    /// a batch in flight by number
    pub fn batch(&self, _batch: BatchId) -> Option<&Batch> {
        todo!()
    }
    /// nothing alive, nothing in flight
    pub fn is_idle(&self) -> bool {
        todo!()
    }
    /// requests alive
    pub fn num_unfinished(&self) -> u32 {
        todo!()
    }
    /// ids of the requests alive, in the order of submission
    pub fn unfinished(&self) -> alloc::vec::Vec<RequestId> {
        todo!()
    }
    /// x
    pub fn kv_usage(&self) -> KvUsage {
        todo!()
    }
    /// x
    pub fn stats(&self) -> Stats {
        todo!()
    }
    /// None: not alive
    pub fn why(&self, _request: RequestId) -> Option<WaitReason> {
        todo!()
    }
    /// x
    pub fn block_table(&self, _request: RequestId) -> Option<&[BlockId]> {
        todo!()
    }
    /// x
    pub fn num_computed_tokens(&self, _request: RequestId) -> Option<u32> {
        todo!()
    }
    /// x
    pub fn num_committed_tokens(&self, _request: RequestId) -> Option<u32> {
        todo!()
    }
    /// recomputes everything that is kept incrementally and compares
    pub fn check_invariants(&self) -> Result<(), Violation> {
        todo!()
    }
}
