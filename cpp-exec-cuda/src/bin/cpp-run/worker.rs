//! `cpp-run worker`: one stage, for a leader elsewhere.

use std::path::Path;
use std::time::Duration;

use cpp_exec_mock::cpu::{CpuStage, KvShape, Part, Rounding};
use cpp_exec_mock::model::{LlamaConfig, Weights};
use cpp_exec_mock::runtime::process::{Rendezvous, Secret, Welcome, WorkerError, WorkerOptions, serve};

use crate::args::WorkerArgs;
use crate::device::Chosen;
use crate::failure::Failure;
use crate::processes::{env, patience};

pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let device = Chosen::new(args.device, &args.cuda)?;
    let place = Rendezvous::from_env(env).map_err(|error| Failure::Usage(error.to_string()))?;
    work(&args.model, (device, args.rounding.rounding()), place, Duration::from_secs(args.join_timeout))
}

/// Works as one of the ranks until the leader says that the run is over.
pub(crate) fn work(folder: &Path, (device, rounding): (Chosen, Rounding), place: Rendezvous, join: Duration) -> Result<(), Failure> {
    let stage = place.rank;
    let secret = Secret::from_env(env).map_err(|error| Failure::Usage(error.to_string()))?;
    let model = LlamaConfig::read(folder)?;
    let weights = Weights::open(folder)?;
    let options = WorkerOptions { place, secret, model: weights.fingerprint(&model), patience: patience(join), letters: None };
    let part = |welcome: &Welcome| Part { stage: welcome.stage, stages: welcome.stages, layers: welcome.layers.clone() };
    let served = match device {
        Chosen::Cpu => serve(&options, |welcome, config, progress| {
            Ok(CpuStage::load_rounding(&model, &weights, &part(welcome), KvShape::from(config), rounding, progress)?)
        }),
        #[cfg(all(feature = "cuda", unix))]
        Chosen::Cuda(mut gpus) => serve(&options, |welcome, config, progress| {
            let gpu = gpus.open(options.place.local_rank)?;
            let (kv, room) = (KvShape::from(config), crate::device::room(config, &model));
            Ok(cpp_exec_cuda::cuda::CudaStage::load(&gpu, &model, &weights, &part(welcome), kv, room, progress)?)
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
