//! A crew over sockets, with everything that may come to its port: strangers, late-comers, impostors, and workers that fail. Workers are threads
//! here, so that devices can fail when they are told to; `cpp-exec-cuda/tests/processes.rs` starts and kills real ones.

#[path = "common/folder.rs"]
mod folder;
#[path = "common/harness.rs"]
#[allow(dead_code, reason = "the tests over threads use all of it")]
mod harness;
#[path = "common/small.rs"]
mod small;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cpp_exec_mock::cpu::{KvShape, Sampling};
use cpp_exec_mock::model::Split;
use cpp_exec_mock::runtime::process::{
    HandshakeError, JoinError, Notice, ProcessOptions, ProcessPatience, Processes, Refusal, Rendezvous, SealError, Secret, WorkerError,
    WorkerOptions, serve,
};
use cpp_exec_mock::runtime::{Patience, Pipeline, RuntimeError};
use cpp_sched::driver::Driver;
use cpp_sched::{Admission, Config, Scheduler};
use harness::{Case, Fault, Faults, Model, check, no_faults, run};
use small::{config, tiny};

const SECRET: &str = "a secret of the tests";

fn cases() -> Vec<Case> {
    (0..6u32)
        .map(|number| Case {
            prompt: (0..18).chain((0..3 + number * 5).map(|at| (at * (number + 3) + number * 17) % 256)).collect(),
            outputs: 6 + number,
            drafts: number % 3,
            sampling: if number % 2 == 1 {
                Sampling { temperature: 1.1, top_k: 30, top_p: 0.95, seed: number.into() }
            } else {
                Sampling::default()
            },
            abort_after: (number == 4).then_some(3),
        })
        .collect()
}

fn patience() -> ProcessPatience {
    ProcessPatience {
        // No test waits for the end of it; a busy machine takes its time.
        handshake: Duration::from_secs(20),
        silence: Duration::from_secs(20),
        join: Duration::from_secs(60),
        ..Default::default()
    }
}

/// A port that is free, or was a moment ago.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn worker_options(model: &Model, leader: SocketAddr, rank: usize, world_size: usize) -> WorkerOptions {
    let place = Rendezvous { rank, world_size, local_rank: rank, host: leader.ip().to_string(), port: leader.port() };
    let model = model.weights.fingerprint(&model.config);
    WorkerOptions { place, secret: Secret::new(SECRET).unwrap(), model, patience: patience(), letters: None }
}

fn work(model: &Arc<Model>, options: &WorkerOptions, faults: &Faults) -> Result<(), WorkerError> {
    serve(options, |welcome, config, progress| {
        progress(1);
        Ok(model.frail(welcome.stage, welcome.stages, KvShape::from(config), faults))
    })
}

/// A launcher: a worker for each stage, started again for as long as it fails.
fn launch(model: &Arc<Model>, leader: SocketAddr, stages: usize, faults: &Faults) -> Vec<JoinHandle<Vec<WorkerError>>> {
    let start = |rank| {
        let (model, faults) = (Arc::clone(model), Arc::clone(faults));
        thread::spawn(move || {
            let mut errors = Vec::new();
            while let Err(error) = work(&model, &worker_options(&model, leader, rank, stages), &faults) {
                errors.push(error);
                assert!(errors.len() < 10, "{errors:?}");
            }
            errors
        })
    };
    (0..stages).map(start).collect()
}

type Runtime = Driver<Pipeline<Processes>>;

/// A leader whose workers somebody else starts, and what it hears beside the work.
fn lead(model: &Model, config: Config, listen: SocketAddr, patience: ProcessPatience) -> Result<(Runtime, Receiver<Notice>), RuntimeError> {
    let (sender, notices) = channel();
    let options = ProcessOptions {
        listen,
        secret: Secret::new(SECRET).unwrap(),
        layers: Split::Even.layers(&model.config, config.stages as usize).unwrap(),
        max_numbers: config.max_batch_tokens as usize * model.config.hidden_size,
        model: model.weights.fingerprint(&model.config),
        patience,
    };
    let processes = Processes::start(&config, options, Box::new(|_| None), move |notice| drop(sender.send(notice)))?;
    let scheduler = Scheduler::new(config).unwrap();
    Ok((Driver::new(scheduler, Pipeline::new(&config, processes, Patience::default())), notices))
}

fn refusals(notices: &Receiver<Notice>) -> Vec<JoinError> {
    notices.try_iter().filter_map(|notice| if let Notice::Refused(refused) = notice { Some(refused.error) } else { None }).collect()
}

#[test]
fn stages_behind_sockets_change_no_token() {
    let (model, cases) = (tiny(1), cases());
    for stages in [1, 2, 4] {
        let mut config = config(stages);
        config.num_blocks = 16;
        config.admission = Admission::Lazy;
        let address = free_port();
        let workers = launch(&model, address, stages as usize, &no_faults());
        let (mut driver, notices) = lead(&model, config, address, patience()).unwrap();
        check(&model, &cases, &run(&mut driver, &cases, true));
        let stats = driver.scheduler().stats();
        assert!(stats.preemptions > 0 && stats.cache_hit_tokens > 0, "{stats:?}");
        assert_eq!(driver.executor_mut().timings().len() as u64, stats.batches);
        assert_eq!(refusals(&notices), []);
        drop(driver);
        for worker in workers {
            assert_eq!(worker.join().unwrap(), [], "the run was over, and each has ended");
        }
    }
}

#[test]
fn a_worker_that_is_lost_comes_again_and_its_batches_run_again() {
    let (model, cases) = (tiny(1), cases());
    let faults: Faults = Arc::new(Mutex::new(vec![(1, 7, Fault::Panic), (0, 14, Fault::Error), (2, 22, Fault::Panic)]));
    let address = free_port();
    let workers = launch(&model, address, 3, &faults);
    let (mut driver, _notices) = lead(&model, config(3), address, patience()).unwrap();
    let outcome = run(&mut driver, &cases, true);
    check(&model, &cases, &outcome);
    assert_eq!((outcome.failures.len(), outcome.recovered), (3, 2), "{:?}", outcome.failures);
    drop(driver);
    let errors: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    let gone = [WorkerError::Device("the device is gone, as told".to_owned())];
    assert_eq!(errors, [vec![], gone.to_vec(), gone.to_vec()]);
}

#[test]
fn strangers_disturb_nobody_and_each_is_told() {
    let (model, cases) = (tiny(1), cases());
    let address = free_port();
    let workers = launch(&model, address, 2, &no_faults());
    let short = ProcessPatience { handshake: Duration::from_secs(2), ..patience() };
    let (mut driver, notices) = lead(&model, config(2), address, short).unwrap();
    let connect = || TcpStream::connect(address).unwrap();
    let say = |bytes: &[u8]| {
        let mut stream = connect();
        stream.write_all(bytes).unwrap();
        stream
    };
    let halves = [connect(), say(b"CPP"), say(b"CPPW\x01\x00\x01\x00................................")];
    let (garbage, huge) = (say(b"GET / HTTP/1.1\r\n\r\n"), say(&[0xff; 64]));
    drop(connect());
    let wrong = WorkerOptions { secret: Secret::new("another secret, alas").unwrap(), ..worker_options(&model, address, 1, 2) };
    let error = work(&model, &wrong, &no_faults()).unwrap_err();
    assert!(matches!(&error, WorkerError::Handshake { error: HandshakeError::Secret, .. }), "{error:?}");
    for text in [error.to_string(), format!("{error:?}"), format!("{wrong:?}")] {
        assert!(!text.contains("alas"), "the secret is shown nowhere: {text}");
    }

    check(&model, &cases, &run(&mut driver, &cases, false));
    // Whatever is heard is heard when the crew is asked for something.
    let (mut refused, until) = (refusals(&notices), Instant::now() + Duration::from_secs(60));
    while refused.len() < 7 && Instant::now() < until {
        thread::sleep(Duration::from_millis(300));
        check(&model, &cases, &run_again(&mut driver, &cases));
        refused.extend(refusals(&notices));
    }
    refused.sort_by_key(|error| format!("{error:?}"));
    let handshake = JoinError::Handshake;
    let silent = || handshake(HandshakeError::Connection(SealError::Silent(short.handshake)));
    let mut expected = vec![
        handshake(HandshakeError::Stranger),
        handshake(HandshakeError::Stranger),
        handshake(HandshakeError::Connection(SealError::Closed)),
        handshake(HandshakeError::Secret),
        silent(),
        silent(),
        silent(),
    ];
    expected.sort_by_key(|error| format!("{error:?}"));
    assert_eq!(refused, expected);
    drop((driver, halves, garbage, huge));
    workers.into_iter().for_each(|worker| assert_eq!(worker.join().unwrap(), []));
}

/// The same requests once more, on a driver that has run them: the ids are free again.
fn run_again(driver: &mut Runtime, cases: &[Case]) -> harness::Outcome {
    run(driver, cases, false)
}

#[test]
fn who_floods_the_port_keeps_no_worker_out() {
    let model = tiny(1);
    let address = free_port();
    let leading = {
        let model = Arc::clone(&model);
        thread::spawn(move || lead(&model, config(1), address, patience()).map(|(driver, notices)| (refusals(&notices), driver)))
    };
    let mut flood = Vec::new();
    let until = Instant::now() + Duration::from_secs(5);
    while flood.len() < 200 && Instant::now() < until {
        flood.extend(TcpStream::connect(address));
    }
    let workers = launch(&model, address, 1, &no_faults());
    let (refused, driver) = leading.join().unwrap().unwrap();
    assert!(refused.contains(&JoinError::Busy), "{refused:?}");
    drop(driver);
    workers.into_iter().for_each(|worker| assert_eq!(worker.join().unwrap(), []));
}

/// Connections that say nothing, each opened again when it is hung up on. They are given ten minutes to prove themselves, so waiting helps nobody.
#[test]
fn who_holds_connections_open_keeps_no_worker_out() {
    let (model, cases) = (tiny(1), cases());
    let address = free_port();
    let long = ProcessPatience { handshake: Duration::from_secs(600), ..patience() };
    let (stop, stopped) = channel::<()>();
    let holding = thread::spawn(move || {
        let mut held: Vec<TcpStream> = Vec::new();
        while matches!(stopped.try_recv(), Err(TryRecvError::Empty)) {
            held.retain_mut(|stream| matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock));
            while held.len() < 150
                && let Ok(stream) = TcpStream::connect(address)
            {
                stream.set_nonblocking(true).unwrap();
                held.push(stream);
            }
            thread::sleep(Duration::from_millis(20));
        }
    });
    // They are there first.
    let workers = thread::spawn({
        let model = Arc::clone(&model);
        move || {
            thread::sleep(Duration::from_millis(500));
            launch(&model, address, 2, &no_faults())
        }
    });
    let (mut driver, notices) = lead(&model, config(2), address, long).unwrap();
    check(&model, &cases, &run(&mut driver, &cases, false));
    let refused = refusals(&notices);
    assert!(!refused.is_empty() && refused.iter().all(|error| *error == JoinError::Busy), "{refused:?}");
    drop(driver);
    drop(stop);
    holding.join().unwrap();
    workers.join().unwrap().into_iter().for_each(|worker| assert_eq!(worker.join().unwrap(), []));
}

#[test]
fn a_second_worker_of_a_stage_is_sent_away_and_the_first_works_on() {
    let (model, cases) = (tiny(1), cases());
    let address = free_port();
    let workers = launch(&model, address, 2, &no_faults());
    let (mut driver, notices) = lead(&model, config(2), address, patience()).unwrap();
    let taken = Refusal::Taken { rank: 1, pid: std::process::id() };
    let error = work(&model, &worker_options(&model, address, 1, 2), &no_faults()).unwrap_err();
    assert_eq!(error, WorkerError::Refused(taken.clone()));
    assert!(error.to_string().contains("two processes were started with the same rank"), "{error}");
    check(&model, &cases, &run(&mut driver, &cases, false));
    assert_eq!(refusals(&notices), [JoinError::Refusal(taken)]);
    drop(driver);
    workers.into_iter().for_each(|worker| assert_eq!(worker.join().unwrap(), []));
}

#[test]
fn workers_that_do_not_belong_are_told_why() {
    let (model, other) = (tiny(1), tiny(2));
    let address = free_port();
    let workers = launch(&model, address, 2, &no_faults());
    let (driver, _notices) = lead(&model, config(2), address, patience()).unwrap();
    let error = |model: &Arc<Model>, rank, world_size| {
        let options = worker_options(model, address, rank, world_size);
        work(model, &options, &no_faults()).unwrap_err()
    };
    assert_eq!(error(&other, 1, 2), WorkerError::Refused(Refusal::Model { rank: 1 }));
    assert_eq!(error(&model, 2, 3), WorkerError::Refused(Refusal::Rank { rank: 2, stages: 2 }));
    assert_eq!(error(&model, 1, 3), WorkerError::Refused(Refusal::WorldSize { world_size: 3, stages: 2 }));
    drop(driver);
    workers.into_iter().for_each(|worker| assert_eq!(worker.join().unwrap(), []));
}

#[test]
fn a_port_in_use_and_a_foreign_address_are_told() {
    let model = tiny(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let lead = |address| lead(&model, config(1), address, patience()).map(|_| ()).unwrap_err().to_string();
    assert!(lead(listener.local_addr().unwrap()).ends_with("another program listens there: take another port"));
    // Of the range for documentation: nobody's.
    assert!(lead("192.0.2.1:29500".parse().unwrap()).contains("this host does not have that address"));
}

#[test]
fn a_worker_that_does_not_come_is_named() {
    let model = tiny(1);
    let address = free_port();
    // Long enough for the other one to come.
    let short = ProcessPatience { join: Duration::from_secs(5), ..patience() };
    let workers = launch_one_of_two(&model, address);
    let error = lead(&model, config(2), address, short).map(|_| ()).unwrap_err();
    assert!(matches!(&error, RuntimeError::Start { stage: 1, problem } if problem.contains("start one with RANK=1")), "{error}");
    assert_eq!(workers.join().unwrap(), Ok(()), "the leader has sent it home");
}

fn launch_one_of_two(model: &Arc<Model>, address: SocketAddr) -> JoinHandle<Result<(), WorkerError>> {
    let model = Arc::clone(model);
    thread::spawn(move || work(&model, &worker_options(&model, address, 0, 2), &no_faults()))
}

#[test]
fn a_worker_without_a_leader_says_where_it_looked() {
    let model = tiny(1);
    let address = free_port();
    let mut options = worker_options(&model, address, 0, 1);
    options.patience.join = Duration::from_millis(300);
    let error = work(&model, &options, &no_faults()).unwrap_err();
    assert!(matches!(&error, WorkerError::Unreachable { leader, .. } if *leader == address.to_string()), "{error}");
}

#[test]
fn a_leader_that_hangs_up_ends_its_workers() {
    // Something else listens at the leader's port: it takes every connection and hangs up.
    let model = tiny(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    let mut options = worker_options(&model, address, 0, 1);
    options.patience.join = Duration::from_millis(300);
    let error = work(&model, &options, &no_faults()).unwrap_err();
    assert!(matches!(&error, WorkerError::Unreachable { problem, .. } if problem.contains("closed")), "{error}");
}

#[test]
fn a_device_that_cannot_be_made_is_told_to_the_leader() {
    let model = tiny(1);
    let address = free_port();
    let worker = {
        let model = Arc::clone(&model);
        thread::spawn(move || {
            let options = worker_options(&model, address, 0, 1);
            serve::<harness::Frail>(&options, |_, _, _| Err("out of memory, say".into()))
        })
    };
    let error = lead(&model, config(1), address, patience()).map(|_| ()).unwrap_err();
    assert_eq!(error, RuntimeError::Start { stage: 0, problem: "out of memory, say".to_owned() });
    assert_eq!(worker.join().unwrap(), Err(WorkerError::Load("out of memory, say".to_owned())));
}
