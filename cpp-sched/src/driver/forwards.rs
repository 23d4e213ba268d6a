//! What can be written into a journal can be done through a driver, and is written there as it was.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::{Driver, Executor, Samples, Step};
use crate::batch::Scheduled;
use crate::config::{Config, Role};
use crate::cost::{Attos, CostModel};
use crate::encoder::Span;
use crate::gate::Gate;
use crate::ids::{BatchId, RequestId};
use crate::journal::{Input, JournalReader, JournalWriter, Record};
use crate::request::{Fork, Prompt, Request};
use crate::scheduler::{Pause, Scheduler};

/// Takes batches, and returns none of them.
struct Sink;

impl Executor for Sink {
    type Error = core::convert::Infallible;

    fn submit(&mut self, _: &Scheduled<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Samples) -> Result<Option<BatchId>, Self::Error> {
        Ok(None)
    }

    fn fail(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Gives an input to a driver by the method of its name. An input that has none does not compile. False: a step does it.
fn give<E: Executor>(driver: &mut Driver<E>, input: Input) -> bool {
    match input {
        Input::Schedule | Input::Complete { .. } | Input::Fail => return false,
        Input::Tick(now_ns) => driver.tick(now_ns),
        Input::Submit(request) => _ = driver.submit(*request),
        Input::Abort(request) => _ = driver.abort(request),
        Input::Lose(batch) => _ = driver.lose(batch),
        Input::Ready(request) => _ = driver.ready(request),
        Input::Open(request, gate) => _ = driver.open(request, gate),
        Input::Shut(request, gate) => _ = driver.shut(request, gate),
        Input::SetDrafts(request, drafts) => _ = driver.set_drafts(request, drafts),
        Input::Extend { request, input, max_tokens } => _ = driver.extend(request, input, max_tokens),
        Input::ExtendWith { request, input, spans, max_tokens } => _ = driver.extend_with(request, input, &spans, max_tokens),
        Input::Fork { parent, child } => _ = driver.fork(parent, *child),
        Input::KvSent(request) => _ = driver.kv_sent(request),
        Input::KvSentBy(request, consumer) => _ = driver.kv_sent_by(request, consumer),
        Input::KvSendFailed(request) => _ = driver.kv_send_failed(request),
        Input::KvArrived(request) => _ = driver.kv_arrived(request),
        Input::KvFailed(request) => _ = driver.kv_failed(request),
        Input::Pause(pause) => driver.pause(pause),
        Input::Drain(drain) => driver.drain(drain),
        Input::Reconfigure(config) => _ = driver.reconfigure(*config),
        Input::ResetPrefixCache => driver.reset_prefix_cache(),
        Input::ResetAllKv => driver.reset_all_kv(),
        Input::SetStageCosts(models) => match models[..] {
            [model] => _ = driver.set_cost_model(model),
            ref models => _ = driver.set_stage_costs(models),
        },
    }
    true
}

#[test]
fn every_call_on_the_scheduler_is_one_on_the_driver() {
    let id = RequestId(1);
    let request = Box::new(Request::new(id, vec![5; 9], 3));
    let model = CostModel { c0: Attos::from_ns(5), ..CostModel::default() };
    let inputs = vec![
        Input::Tick(7),
        Input::Submit(request.clone()),
        Input::Shut(id, Gate::Grammar),
        Input::Open(id, Gate::Grammar),
        Input::Ready(id),
        Input::SetDrafts(id, 2),
        Input::Extend { request: id, input: Prompt::Tokens(vec![3]), max_tokens: 2 },
        Input::ExtendWith { request: id, input: Prompt::Tokens(vec![3, 4]), spans: vec![Span::atomic(0, 2, [7; 16])], max_tokens: 2 },
        Input::Fork { parent: id, child: Box::new(Fork::like(&request, RequestId(2))) },
        Input::KvSent(id),
        Input::KvSentBy(id, 3),
        Input::KvSendFailed(id),
        Input::KvArrived(id),
        Input::KvFailed(id),
        Input::Lose(BatchId(4)),
        Input::Pause(Pause::New),
        Input::Drain(true),
        Input::Reconfigure(Box::default()),
        Input::SetStageCosts(vec![model]),
        Input::SetStageCosts(vec![model; 2]),
        Input::ResetPrefixCache,
        Input::ResetAllKv,
        Input::Abort(id),
    ];
    let config = Config::default();
    let mut driver = Driver::new(Scheduler::new(config).unwrap(), Sink);
    driver.record(JournalWriter::new(&config));
    for input in &inputs {
        assert!(give(&mut driver, input.clone()), "{input:?}");
    }
    let bytes = driver.journal().unwrap().take();
    let mut reader = JournalReader::new(&bytes).unwrap();
    let mut written = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        if let Record::Input(input) = record {
            written.push(input);
        }
    }
    assert_eq!(written, inputs);
}

/// With role decode a worker is told where a peer's KV goes, by an encoder that the executor has.
#[test]
fn an_encoder_in_an_executor_writes_transfers() {
    use crate::event::Event;
    use crate::wire::{Applied, Encoder, Mirror};

    /// Workers at the end of a wire.
    struct Remote {
        encoder: Encoder,
        mirror: Mirror,
        plans: u32,
    }

    impl Executor for Remote {
        type Error = core::convert::Infallible;

        fn submit(&mut self, batch: &Scheduled<'_>) -> Result<(), Self::Error> {
            let mut message = Vec::new();
            self.encoder.encode(batch, &mut message).unwrap();
            assert!(matches!(self.mirror.apply(&message), Ok(Applied::Plan(_))));
            self.plans += 1;
            Ok(())
        }

        fn poll(&mut self, _: &mut Samples) -> Result<Option<BatchId>, Self::Error> {
            Ok(None)
        }

        fn fail(&mut self) -> Result<(), Self::Error> {
            Ok(())
        }
    }

    let config = Config { role: Role::Decode, ..Config::default() };
    let remote = Remote { encoder: Encoder::new(&config), mirror: Mirror::new(&config), plans: 0 };
    let mut driver = Driver::new(Scheduler::new(config).unwrap(), remote);
    driver.submit(Request::new(RequestId(1), vec![5; 40], 3)).unwrap();
    let mut wanted = Vec::new();
    for _ in 0..4 {
        assert_ne!(driver.step().unwrap(), Step::Idle);
        wanted.extend(driver.events().filter_map(|event| match event {
            Event::KvWanted { request, start, end } => Some((request, start, end)),
            _ => None,
        }));
        for (request, start, end) in wanted.drain(..) {
            let (scheduler, remote) = driver.parts_mut();
            let mut message = Vec::new();
            remote.encoder.transfer(scheduler, request, start, end, &mut message).unwrap();
            let applied = remote.mirror.apply(&message).unwrap();
            let Applied::Transfer(transfer) = applied else { panic!("{applied:?}") };
            assert_eq!(Some(transfer.blocks), scheduler.block_table(request));
            assert!(driver.kv_arrived(request).is_applied());
        }
    }
    assert_eq!(driver.executor().plans, 1);
}
