//! What computes: chosen once, by what was asked for and what is here.

use std::path::PathBuf;

use cpp_exec_mock::cpu::{CpuStage, KvShape, Part, Rounding};
use cpp_exec_mock::model::{LlamaConfig, Weights};
use cpp_exec_mock::runtime::Factory;
use cpp_sched::Config;

use crate::args::{CudaArgs, Device, GraphArgs, Links};
use crate::failure::{Failure, note};

/// What the stages run on.
#[derive(Debug)]
pub(crate) enum Chosen {
    Cpu,
    #[cfg(all(feature = "cuda", unix))]
    Cuda(Gpus),
}

/// The GPUs of this machine.
#[cfg(all(feature = "cuda", unix))]
#[derive(Debug)]
pub(crate) struct Gpus {
    folders: Vec<PathBuf>,
    graphs: bool,
    count: usize,
    opened: std::collections::BTreeMap<usize, std::sync::Arc<cpp_exec_cuda::cuda::Gpu>>,
}

/// Where CUDA's libraries are looked for, beside where the system looks.
pub(crate) fn folders(args: &CudaArgs) -> Vec<PathBuf> {
    let more = std::env::var_os("CPP_CUDA_LIB_DIR");
    args.cuda_lib_dir.iter().cloned().chain(more.iter().flat_map(std::env::split_paths)).collect()
}

impl Chosen {
    /// What was asked for, if it is here; without a wish a GPU if there is one, and which it is on stderr.
    pub(crate) fn new(device: Device, args: &CudaArgs, graphs: &GraphArgs) -> Result<Self, Failure> {
        if device == Device::Cpu {
            return Ok(Self::Cpu);
        }
        match Self::cuda(args, graphs) {
            Ok(cuda) => Ok(cuda),
            Err(why) if device == Device::Auto => {
                note(&format!("on the processor: {why}"));
                Ok(Self::Cpu)
            }
            Err(why) => Err(Failure::Usage(format!("{why}; run on the processor with --device cpu"))),
        }
    }

    #[cfg(all(feature = "cuda", unix))]
    fn cuda(args: &CudaArgs, graphs: &GraphArgs) -> Result<Self, String> {
        let folders = folders(args);
        let found = cpp_exec_cuda::cuda::Survey::look(&folders);
        if let Some(why) = found.why_not() {
            return Err(why);
        }
        let names: Vec<&str> = found.gpus.iter().map(|gpu| &gpu.name[..]).collect();
        note(&format!("on {}", names.join(", ")));
        Ok(Self::Cuda(Gpus { folders, graphs: !graphs.no_graphs, count: found.gpus.len(), opened: std::collections::BTreeMap::new() }))
    }

    #[cfg(not(all(feature = "cuda", unix)))]
    fn cuda(args: &CudaArgs, graphs: &GraphArgs) -> Result<Self, String> {
        let _ = (folders(args), graphs.no_graphs);
        Err("this cpp-run was built without CUDA".to_owned())
    }

    /// Whether the device can run a model: a wish that cannot be had here, like a GPU that there is none of.
    pub(crate) fn runs(&self, model: &LlamaConfig) -> Result<(), Failure> {
        match self {
            Self::Cpu => {
                let _ = model;
                Ok(())
            }
            #[cfg(all(feature = "cuda", unix))]
            Self::Cuda(_) => cpp_exec_cuda::cuda::CudaStage::check_model(model).map_err(|error| Failure::Usage(error.to_string())),
        }
    }

    /// What the device has no room for is refused before it is begun.
    pub(crate) fn limit(&self, config: &mut Config, model: &LlamaConfig) {
        if !matches!(self, Self::Cpu) {
            config.max_model_len = u32::try_from(model.max_position).ok();
        }
    }

    /// Whether activations can go from stage to stage that way.
    pub(crate) fn carries(&self, link: Links, processes: bool) -> Result<(), Failure> {
        let wrong = |why: &str| Err(Failure::Usage(format!("--link {}: {why}", link.name())));
        match link {
            Links::Channel if processes => wrong("processes share no memory: socket or nccl"),
            Links::Nccl if !processes => wrong("threads of one process have no need of it: leave it out, or add --processes"),
            Links::Nccl if matches!(self, Self::Cpu) => wrong("it carries what is on GPUs: --device cuda"),
            _ => Ok(()),
        }
    }

    /// As `--device` has it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            #[cfg(all(feature = "cuda", unix))]
            Self::Cuda(_) => "cuda",
        }
    }
}

/// Stages on the processor.
pub(crate) fn cpu_stages(
    model: LlamaConfig,
    weights: Weights,
    parts: Vec<Part>,
    (kv, rounding): (KvShape, Rounding),
    progress: impl Fn(u64) + Send + 'static,
) -> Factory<CpuStage> {
    Box::new(move |stage| Ok(CpuStage::load_rounding(&model, &weights, &parts[stage], kv, rounding, &progress)?))
}

#[cfg(all(feature = "cuda", unix))]
pub(crate) use gpus::{gpu_stages, room};

#[cfg(all(feature = "cuda", unix))]
mod gpus {
    use std::sync::Arc;
    use std::time::Duration;

    use cpp_exec_cuda::cuda::{CudaError, CudaStage, Ends, Gpu, InProcessEdge, KernelCache, Room};
    use cpp_exec_cuda::nccl::{EdgeConfig, LoadError, Nccl, NcclEnd, Rank};
    use cpp_exec_mock::cpu::{KvShape, Part};
    use cpp_exec_mock::model::{LlamaConfig, Weights};
    use cpp_exec_mock::runtime::{Factory, Letters};

    use super::{Config, Gpus};

    impl Gpus {
        /// The GPU for the stage of this number on this machine: one after the other, and from the first again.
        pub(crate) fn open(&mut self, number: usize) -> Result<Arc<Gpu>, CudaError> {
            let ordinal = number % self.count.max(1);
            if let Some(gpu) = self.opened.get(&ordinal) {
                return Ok(Arc::clone(gpu));
            }
            let gpu = Gpu::open(ordinal, &self.folders, KernelCache::standard().as_ref())?;
            self.opened.insert(ordinal, Arc::clone(&gpu));
            Ok(gpu)
        }
    }

    impl Gpus {
        /// A stage that has been loaded, with graphs for small decodes if they are wanted.
        pub(crate) fn ready(&self, mut stage: CudaStage) -> Result<CudaStage, Box<dyn std::error::Error + Send + Sync>> {
            if self.graphs {
                let graphs = stage.capture_graphs();
                graphs.map_err(|error| format!("graphs of small decodes: {error}; leave them out with --no-graphs"))?;
            }
            Ok(stage)
        }

        /// The ends of a stage that is a process: over NCCL if there are letters to introduce them, else none.
        pub(crate) fn ends(&self, gpu: &Gpu, part: &Part, letters: Option<&Letters>, patience: Duration) -> Result<Ends, LoadError> {
            let Some(letters) = letters else { return Ok(Ends::default()) };
            let nccl = Nccl::load_near(&self.folders)?;
            let end = |rank| NcclEnd::new(nccl, rank, EdgeConfig::default(), gpu, letters.clone()).with_patience(patience);
            Ok(Ends {
                up: (!part.is_first()).then(|| Box::new(end(Rank::Downstream)) as _),
                down: (!part.is_last()).then(|| Box::new(end(Rank::Upstream)) as _),
            })
        }
    }

    /// What a stage must have room for under a configuration.
    pub(crate) fn room(config: &Config, model: &LlamaConfig) -> Room {
        let memory = config.num_blocks.saturating_mul(config.block_size);
        let positions = u32::try_from(model.max_position).unwrap_or(u32::MAX).min(memory);
        Room {
            positions,
            tokens: config.max_batch_tokens,
            rows: config.max_batch_requests.min(config.max_batch_tokens),
            batches: config.depth(),
        }
    }

    /// Stages on GPUs, one after the other.
    pub(crate) fn gpu_stages(
        mut gpus: Gpus,
        model: LlamaConfig,
        weights: Weights,
        parts: Vec<Part>,
        config: &Config,
        progress: impl Fn(u64) + Send + 'static,
    ) -> Factory<CudaStage> {
        let (kv, room) = (KvShape::from(config), room(config, &model));
        // Activations stay on the GPU, or go from one to the next.
        let mut edges: Option<Vec<InProcessEdge>> = None;
        Box::new(move |stage| {
            let gpu = gpus.open(stage)?;
            if edges.is_none() {
                let between = (1..parts.len()).map(|next| InProcessEdge::between(&*gpus.open(next - 1)?, &*gpus.open(next)?));
                edges = Some(between.collect::<Result<_, _>>()?);
            }
            let ends = Ends::of(edges.as_deref().unwrap_or_default(), stage);
            gpus.ready(CudaStage::load_with(&gpu, &model, &weights, &parts[stage], kv, room, ends, &progress)?)
        })
    }
}
