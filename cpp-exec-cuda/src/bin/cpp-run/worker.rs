//! `cpp-run worker`: one stage, for a leader elsewhere.

use std::path::Path;
use std::time::Duration;

use cpp_exec_mock::cpu::{CpuStage, KvShape, Part, Rounding};
use cpp_exec_mock::model::{LlamaConfig, Weights};
use cpp_exec_mock::runtime::Letters;
use cpp_exec_mock::runtime::process::{Rendezvous, Secret, Welcome, WorkerError, WorkerOptions, serve};

use crate::args::{Links, WorkerArgs};
use crate::device::Chosen;
use crate::failure::Failure;
use crate::processes::{env, patience};

/// What a worker runs on.
#[derive(Debug)]
#[cfg_attr(not(all(feature = "cuda", unix)), allow(dead_code, reason = "without CUDA there is no GPU to choose"))]
pub(crate) struct Seat {
    pub(crate) device: Chosen,
    pub(crate) rounding: Rounding,
    pub(crate) link: Links,
    pub(crate) link_patience: Duration,
    /// Which GPU; else by the rank on this host.
    pub(crate) gpu: Option<usize>,
}

pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let device = Chosen::new(args.device, &args.cuda, &args.graphs)?;
    let place = Rendezvous::from_env(env).map_err(|error| Failure::Usage(error.to_string()))?;
    let seat = Seat {
        device,
        rounding: args.rounding.rounding(),
        link: args.link,
        link_patience: Duration::from_secs(args.link_timeout),
        gpu: args.gpu,
    };
    work(&args.model, seat, place, Duration::from_secs(args.join_timeout))
}

/// Works as one of the ranks until the leader says that the run is over.
pub(crate) fn work(folder: &Path, seat: Seat, place: Rendezvous, join: Duration) -> Result<(), Failure> {
    seat.device.carries(seat.link, true)?;
    let stage = place.rank;
    let secret = Secret::from_env(env).map_err(|error| Failure::Usage(error.to_string()))?;
    let model = LlamaConfig::read(folder)?;
    seat.device.runs(&model)?;
    let weights = Weights::open(folder)?;
    let letters = (seat.link == Links::Nccl).then(Letters::default);
    let options = WorkerOptions { place, secret, model: weights.fingerprint(&model), patience: patience(join), letters };
    let part = |welcome: &Welcome| Part { stage: welcome.stage, stages: welcome.stages, layers: welcome.layers.clone() };
    let served = match seat.device {
        Chosen::Cpu => serve(&options, |welcome, config, progress| {
            Ok(CpuStage::load_rounding(&model, &weights, &part(welcome), KvShape::from(config), seat.rounding, progress)?)
        }),
        #[cfg(all(feature = "cuda", unix))]
        Chosen::Cuda(mut gpus) => serve(&options, |welcome, config, progress| {
            let gpu = gpus.open(seat.gpu.unwrap_or(options.place.local_rank))?;
            let part = part(welcome);
            let ends = gpus.ends(&gpu, &part, options.letters.as_ref(), seat.link_patience)?;
            let (kv, room) = (KvShape::from(config), crate::device::room(config, &model));
            gpus.ready(cpp_exec_cuda::cuda::CudaStage::load_with(&gpu, &model, &weights, &part, kv, room, ends, progress)?)
        }),
    };
    served.map_err(|error| {
        let text = format!("worker of stage {stage}: {error}");
        match error {
            WorkerError::Handshake { .. } | WorkerError::Refused(_) | WorkerError::Load(_) => Failure::Usage(text),
            _ => Failure::Failed(text),
        }
    })
}
