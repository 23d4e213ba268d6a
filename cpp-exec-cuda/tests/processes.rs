//! Stages as processes of `cpp-run`: started by the leader, or by the variables of a launcher; killed, stopped, and started again.
#![cfg(unix)]

#[path = "support/folder.rs"]
mod folder;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use cpp_exec_mock::model::{LlamaConfig, Split, Weights};
use cpp_exec_mock::runtime::process::{Launch, ProcessOptions, ProcessPatience, Processes, Secret};
use cpp_exec_mock::runtime::{Patience, Pipeline, RuntimeError};
use cpp_sched::driver::{Driver, Failure, Progress, Step};
use cpp_sched::{Config, Event, Request, RequestId, Scheduler, TokenId};
use folder::Folder;

const SECRET: &str = "a secret of the tests";
const PROMPTS: [&str; 4] = ["--prompt", "a tiny model says nothing of use", "--prompt", "a tiny model says it twice"];

/// A process that does not outlive the test.
struct Running(Child);

impl Running {
    fn end(mut self) -> Output {
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        let status = self.0.wait().expect("it ends");
        let read = |pipe: Option<Box<dyn std::io::Read>>| {
            let mut bytes = Vec::new();
            pipe.expect("captured").read_to_end(&mut bytes).expect("readable");
            bytes
        };
        Output { status, stdout: read(stdout.map(|pipe| Box::new(pipe) as _)), stderr: read(stderr.map(|pipe| Box::new(pipe) as _)) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `cpp-run` without the variables of whoever runs these tests, and with these.
fn cpp_run(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cpp-run"));
    for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR", "MASTER_PORT", "CPP_SECRET", "CPP_SECRET_FILE"] {
        command.env_remove(name);
    }
    command.args(args).envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn spawn(args: &[&str], variables: &[(&str, &str)]) -> Running {
    Running(cpp_run(args, variables).spawn().expect("cpp-run starts"))
}

fn generate<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["generate", "--model", folder, "--device", "cpu", "--max-tokens", "12", "--max-batch-tokens", "7"], &PROMPTS[..], more].concat()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The one line on stderr of a command that must fail with status 2.
fn refused(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    text
}

fn in_threads(folder: &Folder) -> String {
    stdout(&cpp_run(&generate(folder.text(), &[]), &[]).output().expect("cpp-run starts"))
}

/// A port that is free, or was a moment ago.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address")
}

#[test]
fn processes_give_the_text_of_threads() {
    let folder = Folder::tiny("same");
    let expected = in_threads(&folder);
    for more in [
        &["--processes"][..],
        &["--processes", "--stages", "2", "--drafts", "2"],
        &["--processes=own", "--stages", "4", "--async", "--adaptive", "--batches"],
    ] {
        let output = cpp_run(&generate(folder.text(), more), &[]).output().expect("cpp-run starts");
        assert_eq!(stdout(&output), expected, "{more:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!told.contains("refused") && told.contains("tokens in"), "{told}");
    }
}

/// As a launcher starts them: the same command everywhere, and who is who in variables.
#[test]
fn a_launchers_variables_make_a_pipeline_of_equal_commands() {
    let folder = Folder::tiny("launched");
    let expected = in_threads(&folder);
    let torchrun = ("RANK", "WORLD_SIZE", "MASTER_PORT");
    let slurm = ("SLURM_PROCID", "SLURM_NTASKS", "CPP_MASTER_PORT");
    for (rank_variable, size_variable, port_variable) in [torchrun, slurm] {
        let port = free_port().port().to_string();
        let start = |rank: &str| {
            let variables = [(rank_variable, rank), (size_variable, "3"), (port_variable, port.as_str()), ("CPP_SECRET", SECRET)];
            spawn(&generate(folder.text(), &["--processes=launched"]), &variables)
        };
        // The leader last.
        let [two, one, zero] = ["2", "1", "0"].map(start);
        assert_eq!(stdout(&zero.end()), expected);
        for worker in [one, two] {
            assert_eq!(stdout(&worker.end()), "", "rank 0 alone writes");
        }
    }
}

#[test]
fn workers_may_stand_apart_from_the_leader() {
    let folder = Folder::tiny("apart");
    let file = folder.0.join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).expect("written");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("changed");
    let (port, file) = (free_port().port().to_string(), file.to_str().expect("printable"));
    let common = [("MASTER_PORT", port.as_str()), ("CPP_SECRET_FILE", file)];
    let worker = |rank: &str| {
        let args = ["worker", "--model", folder.text(), "--device", "cpu"];
        spawn(&args, &[&[("RANK", rank), ("WORLD_SIZE", "2")], &common[..]].concat())
    };
    let workers = [worker("0"), worker("1")];
    let leader = spawn(&generate(folder.text(), &["--processes=launched", "--stages", "2"]), &common);
    assert_eq!(stdout(&leader.end()), in_threads(&folder));
    workers.into_iter().for_each(|worker| assert_eq!(stdout(&worker.end()), ""));
}

#[test]
fn the_secret_is_on_no_command_line_and_in_no_output() {
    let folder = Folder::tiny("secret");
    let port = free_port().port().to_string();
    let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", port.as_str()), ("CPP_SECRET", SECRET)];
    let leader = spawn(&generate(folder.text(), &["--processes=launched"]), &variables);
    let wrong = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", port.as_str()), ("CPP_SECRET", "not the same secret")];
    let intruder = spawn(&["worker", "--model", folder.text(), "--device", "cpu"], &wrong).end();
    let text = refused(&intruder);
    assert!(text.contains("does not have the same secret") && !text.contains("not the same secret"), "{text}");
    // The leader and its own worker, as everybody on this machine sees them.
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines: Vec<_> = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok()).collect();
    let ours = lines.iter().filter(|line| String::from_utf8_lossy(line).contains(folder.text()));
    for line in ours.clone() {
        assert!(!String::from_utf8_lossy(line).contains(SECRET));
    }
    assert!(cfg!(not(target_os = "linux")) || ours.count() >= 1);
    let worker = spawn(&generate(folder.text(), &["--processes=launched"]), &[&[("RANK", "1")], &variables[1..]].concat());
    let output = leader.end();
    assert!(stdout(&output).starts_with("[1] "));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("was refused: it does not have the same secret") && !told.contains(SECRET), "{told}");
    let _ = stdout(&worker.end());
}

/// An environment can be read in `/proc` for as long as a process lives, by whoever the process belongs to.
#[test]
fn the_secret_is_in_no_environment_and_no_argument_of_a_started_worker() {
    let folder = Folder::tiny("environment");
    let mut led = Led::new(&folder, loopback(), own(&folder), Duration::from_secs(20));
    for stage in 0..3 {
        let pid = led.pid(stage);
        for file in ["environ", "cmdline"] {
            match std::fs::read(format!("/proc/{pid}/{file}")) {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    assert!(!text.contains(SECRET), "{file} of stage {stage}: {text}");
                    assert!(text.contains(if file == "environ" { "CPP_SECRET_FILE=/dev/stdin" } else { "worker" }), "{text}");
                }
                Err(error) => eprintln!("not looked at: /proc/{pid}/{file}: {error}"),
            }
        }
    }
    assert_eq!(led.run(Vec::new()).len(), 30);
}

#[test]
fn what_is_missing_is_told_in_one_line() {
    let folder = Folder::tiny("missing");
    let worker = |variables: &[(&str, &str)]| {
        let args = ["worker", "--model", folder.text(), "--device", "cpu", "--join-timeout", "1"];
        cpp_run(&args, variables).output().expect("cpp-run starts")
    };
    let place = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "1")];
    assert!(refused(&worker(&[])).contains("WORLD_SIZE"));
    assert!(refused(&worker(&place[1..])).contains("none of RANK, SLURM_PROCID"));
    assert!(refused(&worker(&place)).contains("CPP_SECRET_FILE"));
    assert!(refused(&worker(&[&place[..], &[("CPP_SECRET", "short")]].concat())).contains("16 or more"));
    let nobody = worker(&[&place[..], &[("CPP_SECRET", SECRET)]].concat());
    let text = String::from_utf8_lossy(&nobody.stderr);
    assert!(nobody.status.code() == Some(1) && text.contains("the leader at 127.0.0.1:1 cannot be reached"), "{text}");

    let leader = |more: &[&str], variables: &[(&str, &str)]| {
        refused(&cpp_run(&generate(folder.text(), more), variables).output().expect("cpp-run starts"))
    };
    assert!(leader(&["--processes=launched"], &[]).contains("CPP_SECRET"));
    assert!(leader(&["--processes=launched"], &[("CPP_SECRET", SECRET)]).contains("MASTER_PORT"));
    let launched = [("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_PORT", "1"), ("CPP_SECRET", SECRET)];
    assert!(leader(&["--processes=launched", "--stages", "2"], &launched).contains("3 processes"));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    assert!(leader(&["--processes", "--listen", &taken], &[]).contains("another program listens there"));
}

/// What is done to a leader's workers, and after how many tokens.
type Blow<'a> = (usize, Box<dyn FnMut(&mut Led) + 'a>);

/// A leader in this process, over workers that are processes of `cpp-run`.
struct Led {
    driver: Driver<Pipeline<Processes>>,
    tokens: Vec<TokenId>,
    failures: Vec<RuntimeError>,
    recovered: usize,
}

impl Led {
    fn new(folder: &Folder, listen: SocketAddr, launch: Launch, silence: Duration) -> Self {
        let model = LlamaConfig::read(&folder.0).expect("a model");
        let weights = Weights::open(&folder.0).expect("weights");
        let mut config = Config::default();
        config.stages = 3;
        config.block_size = 4;
        config.num_blocks = 64;
        config.max_batch_tokens = 9;
        let options = ProcessOptions {
            listen,
            secret: Secret::new(SECRET).expect("long enough"),
            layers: Split::Even.layers(&model, 3).expect("layers for all"),
            max_numbers: 9 * model.hidden_size,
            model: weights.fingerprint(&model),
            patience: ProcessPatience { silence, ..ProcessPatience::default() },
        };
        let processes = Processes::start(&config, options, launch, |_| {}).expect("all workers come");
        let driver = Driver::new(Scheduler::new(config).expect("valid"), Pipeline::new(&config, processes, Patience::default()));
        Self { driver, tokens: Vec::new(), failures: Vec::new(), recovered: 0 }
    }

    fn pid(&mut self, stage: usize) -> u32 {
        self.driver.executor_mut().crew_mut().pids()[stage].expect("it has joined")
    }

    /// One step; false at the end.
    fn step(&mut self) -> bool {
        let step = self.driver.step().expect("not too many failures in a row");
        match &step {
            Step::Progress(Progress::Failed(Failure::Executor(error))) => self.failures.push(error.clone()),
            Step::Progress(Progress::Failed(other)) => panic!("{other}"),
            Step::Progress(Progress::RolledBack(_)) => self.recovered += usize::from(Pipeline::recover(&mut self.driver)),
            Step::Progress(_) => {}
            end => assert_eq!(end, &Step::Idle),
        }
        let tokens = self.driver.events().filter_map(|event| if let Event::Token { token, .. } = event { Some(token) } else { None });
        self.tokens.extend(tokens);
        step.is_progress()
    }

    /// The tokens of a request, with something done to a stage after each so many of them.
    fn run(&mut self, mut faults: Vec<Blow<'_>>) -> Vec<TokenId> {
        let first = self.tokens.len();
        self.driver.submit(Request::new(RequestId(1), (0..40).map(|at| at * 7 % 256).collect(), 30)).expect("it fits");
        while self.step() {
            if let Some(at) = faults.iter().position(|(after, _)| self.tokens.len() - first >= *after) {
                (faults.remove(at).1)(self);
            }
        }
        assert!(faults.is_empty(), "each was done");
        self.tokens.split_off(first)
    }
}

/// The kernel's own command, since the standard library ends children alone.
fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status().expect("there is kill");
    assert!(status.success(), "{name} {pid}");
}

fn own(folder: &Folder) -> Launch {
    let folder = folder.0.clone();
    Box::new(move |_| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cpp-run"));
        command.args(["worker", "--device", "cpu", "--model"]).arg(&folder).stderr(Stdio::null());
        Some(command)
    })
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[test]
fn a_killed_process_is_replaced_and_its_batches_run_again() {
    let folder = Folder::tiny("killed");
    let mut led = Led::new(&folder, loopback(), own(&folder), Duration::from_secs(20));
    let expected = led.run(Vec::new());
    assert_eq!((expected.len(), led.failures.len()), (30, 0));
    let before = [0, 1, 2].map(|stage| led.pid(stage));
    let kill = |stage: usize| -> Box<dyn FnMut(&mut Led)> { Box::new(move |led| signal("-KILL", led.pid(stage))) };
    assert_eq!(led.run(vec![(3, kill(1)), (9, kill(0)), (20, kill(2))]), expected);
    assert_eq!((led.failures.len(), led.recovered), (3, 3), "{:?}", led.failures);
    assert!(led.failures.iter().all(|error| matches!(error, RuntimeError::Died { .. })), "{:?}", led.failures);
    let after = [0, 1, 2].map(|stage| led.pid(stage));
    assert!(before.iter().all(|pid| !after.contains(pid)), "{before:?}, {after:?}");
    drop(led);
    for pid in after {
        assert!(
            cfg!(not(target_os = "linux")) || !PathBuf::from(format!("/proc/{pid}")).exists(),
            "process {pid} has ended with its leader"
        );
    }
}

#[test]
fn a_stopped_process_is_silent_and_replaced() {
    let folder = Folder::tiny("stopped");
    let mut led = Led::new(&folder, loopback(), own(&folder), Duration::from_secs(8));
    let expected = led.run(Vec::new());
    let stop = |stage: usize| -> Box<dyn FnMut(&mut Led)> { Box::new(move |led| signal("-STOP", led.pid(stage))) };
    assert_eq!(led.run(vec![(5, stop(1))]), expected);
    assert!(
        matches!(&led.failures[..], [RuntimeError::Died { stage: 1, problem }] if problem.contains("nothing was heard")),
        "{:?}",
        led.failures
    );
}

#[test]
fn a_killed_process_of_a_launcher_is_waited_for() {
    let folder = Folder::tiny("waited");
    let address = free_port();
    let port = address.port().to_string();
    let start = |rank: usize| {
        let rank = rank.to_string();
        let variables = [("RANK", rank.as_str()), ("WORLD_SIZE", "3"), ("MASTER_PORT", &port), ("CPP_SECRET", SECRET)];
        spawn(&["worker", "--model", folder.text(), "--device", "cpu"], &variables)
    };
    let mut workers: Vec<Running> = (0..3).map(start).collect();
    let mut led = Led::new(&folder, address, Box::new(|_| None), Duration::from_secs(20));
    let expected = led.run(Vec::new());
    // What a launcher does: it sees the process end, and starts it again.
    let again: Box<dyn FnMut(&mut Led)> = Box::new(|led| {
        assert_eq!(led.pid(1), workers[1].0.id());
        workers[1].0.kill().expect("it lives");
        workers[1] = start(1);
    });
    assert_eq!(led.run(vec![(6, again)]), expected);
    assert_eq!(led.recovered, 1, "{:?}", led.failures);
    drop(led);
    for worker in workers {
        assert!(worker.end().status.success());
    }
}

#[test]
fn workers_end_when_their_leader_is_killed() {
    let folder = Folder::tiny("orphans");
    let port = free_port().port().to_string();
    let variables = [("WORLD_SIZE", "2"), ("MASTER_PORT", port.as_str()), ("CPP_SECRET", SECRET)];
    let long = ["generate", "--model", folder.text(), "--device", "cpu", "--max-tokens", "4000", "--prompt", "x", "--processes=launched"];
    let mut leader = spawn(&long, &variables);
    let args = ["worker", "--model", folder.text(), "--device", "cpu"];
    let workers = ["0", "1"].map(|rank| spawn(&args, &[&[("RANK", rank)], &variables[..]].concat()));
    let mut first = [0; 1];
    std::io::Read::read_exact(leader.0.stdout.as_mut().expect("captured"), &mut first).expect("it writes");
    leader.0.kill().expect("it lives");
    for worker in workers {
        let output = worker.end();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains("the leader is gone"), "{told}");
    }
}
