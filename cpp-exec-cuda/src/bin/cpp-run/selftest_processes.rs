//! The part of `cpp-run selftest` that starts workers: two processes on one GPU, and what happens when one is killed.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cpp_exec_cuda::selftest::{Answer, Line, Listener, SelftestError, TestModel};
use cpp_exec_mock::runtime::Patience;
use cpp_exec_mock::runtime::process::{Launch, ProcessOptions, ProcessPatience, Processes, Secret};

use crate::args::SelftestArgs;

const STAGES: usize = 2;

/// How activations go from process to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Through the host, over the connection that the frames' headers go over.
    Host,
    /// From GPU to GPU.
    Nccl,
}

pub(crate) fn lines(args: &SelftestArgs, model: &TestModel, no_nccl: Option<&str>, to: &mut dyn Listener) {
    to.begins("stages as processes");
    for (way, what) in [(Way::Host, "2 stages, processes, through the host"), (Way::Nccl, "2 stages, processes, NCCL")] {
        if let (Way::Nccl, Some(why)) = (way, no_nccl) {
            to.line(Line::not_measured(what, why));
            continue;
        }
        to.line(model.line(what, answers(args, model, way, false).map(|(answers, _)| answers)));
        let what = format!("{what}, one killed");
        let (killed, after) = match answers(args, model, way, true) {
            Ok((answers, after)) => (Ok(answers), after),
            Err(error) => (Err(error), None),
        };
        to.line(model.line(&what, killed));
        let what = "  from its end to the next token";
        to.line(match after {
            Some(after) => Line::seconds(what, after),
            None => Line::not_measured(what, "no token came after it"),
        });
    }
}

/// What two workers say; if one is killed in between, also how long it took until the next token.
fn answers(args: &SelftestArgs, model: &TestModel, way: Way, kills: bool) -> Result<(Vec<Answer>, Option<Duration>), SelftestError> {
    let config = TestModel::scheduling(STAGES as u32);
    let crew = start(args, model, way)?;
    let (mut killed, mut next) = (None, None);
    let patience = Patience { batch: Duration::from_secs(60), abort: Duration::from_secs(10) };
    let (answers, lost) = model.answers(&config, crew, patience, |crew: &mut Processes, out| {
        if kills && out >= 8 && killed.is_none() {
            killed = crew.kill(1).then(|| (Instant::now(), out));
        }
        if let (Some((since, at)), None) = (killed, next)
            && out > at
        {
            next = Some(since.elapsed());
        }
    })?;
    if kills && lost == 0 {
        return Err(SelftestError::Other("nobody has noticed that a stage was killed".to_owned()));
    }
    Ok((answers, next))
}

fn start(args: &SelftestArgs, model: &TestModel, way: Way) -> Result<Processes, SelftestError> {
    let other = |error: &dyn std::fmt::Display| SelftestError::Other(error.to_string());
    let own = std::env::current_exe().map_err(|error| other(&error))?;
    let (folder, libraries) = (model.folder().to_owned(), args.cuda.cuda_lib_dir.clone());
    let (gpu, no_graphs) = (args.gpu.to_string(), args.graphs.no_graphs);
    let launch: Launch = Box::new(move |stage| {
        let mut command = Command::new(&own);
        let link = if way == Way::Nccl { "nccl" } else { "socket" };
        command.args(["worker", "--device", "cuda", "--gpu", &gpu, "--link", link, "--model"]).arg(&folder);
        if no_graphs {
            command.arg("--no-graphs");
        }
        for folder in &libraries {
            command.arg("--cuda-lib-dir").arg(folder);
        }
        // What is wrong with one comes over its connection.
        command.stderr(Stdio::null());
        for (name, value) in on_one_gpu(stage) {
            command.env(name, value);
        }
        Some(command)
    });
    let (model_config, weights) = model.parts();
    let config = TestModel::scheduling(STAGES as u32);
    let options = ProcessOptions {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        secret: Secret::random().map_err(|error| other(&error))?,
        layers: (0..STAGES).map(|stage| TestModel::part(stage, STAGES).layers).collect(),
        max_numbers: config.max_batch_tokens as usize * model_config.hidden_size,
        model: weights.fingerprint(model_config),
        patience: ProcessPatience::default(),
    };
    Processes::start(&config, options, launch, |_| ()).map_err(|error| other(&error))
}

/// What lets two ranks of NCCL share a GPU: up to 2.29 processes that say they are on different hosts, and talk over the loopback. Good for equal tokens;
/// the time that it takes says nothing, since the two take turns with the GPU.
fn on_one_gpu(stage: usize) -> [(&'static str, String); 10] {
    let host = format!("cpp-run-selftest-{stage}");
    [
        ("NCCL_HOSTID", host),
        ("NCCL_SOCKET_IFNAME", "lo".to_owned()),
        ("NCCL_NET", "Socket".to_owned()),
        ("NCCL_IB_DISABLE", "1".to_owned()),
        ("NCCL_NET_PLUGIN", "none".to_owned()),
        ("NCCL_MNNVL_ENABLE", "0".to_owned()),
        ("NCCL_NVLS_ENABLE", "0".to_owned()),
        ("NCCL_RAS_ENABLE", "0".to_owned()),
        ("NCCL_CUMEM_HOST_ENABLE", "0".to_owned()),
        ("NCCL_MAX_CTAS", "2".to_owned()),
    ]
}
