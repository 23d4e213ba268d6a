//! From arguments to a workload, a machine and a configuration.

use std::path::Path;

use cpp_exec_mock::calibrate::{Table, fit};
use cpp_exec_mock::pipeline::{Links, Transfer};
use cpp_exec_mock::profile::Profile;
use cpp_exec_mock::sim::{Collectives, CostTable, FaultSpec, Faults, Machine, Mode, Slo};
use cpp_exec_mock::workload::{Bursts, LoadOptions, Sessions, Synthetic, Workload, WorkloadError};
use cpp_sched::{Chunking, Config, CostModel};
use serde_json::Value;

use crate::args::{ChunkingKind, FaultArgs, PipelineArgs, SchedulerArgs, SharedArgs, WorkloadArgs};
use crate::failure::{Failure, note};

/// Stages where neither arguments nor a file say how many.
pub(crate) const DEFAULT_STAGES: u32 = 4;

/// The profile where none is named.
pub(crate) const DEFAULT_PROFILE: &str = "llama-70b-h100-tp8";

/// What a run needs, but for the mode.
pub(crate) struct Setup {
    pub(crate) workload: Workload,
    pub(crate) profile: Profile,
    pub(crate) slo: Slo,
    /// Fields of the scheduler's configuration from a file.
    file: Option<ConfigFile>,
}

/// The fields that a configuration file sets, and no others.
struct ConfigFile {
    name: String,
    fields: serde_json::Map<String, Value>,
}

impl Setup {
    /// Reads all files that the arguments name. Tells what was adjusted.
    pub(crate) fn new(args: &SharedArgs) -> Result<Self, Failure> {
        let profile = profile(&args.system.profile)?;
        let file = args.scheduler.config.as_deref().map(ConfigFile::read).transpose()?;
        let workload = workload(&args.workload)?;
        workload.warnings().iter().for_each(|warning| note(warning));
        let slo = Slo { ttft_ns: args.system.slo_ttft, tpot_ns: args.system.slo_tpot };
        Ok(Self { workload, profile, slo, file })
    }

    /// The configuration of a mode, and the machine: profile and mode, then the file, then single options.
    pub(crate) fn system(&self, mode: Mode, args: &SharedArgs) -> Result<(Config, Machine), Failure> {
        let (system, pipeline, scheduler) = (&args.system, &args.pipeline, &args.scheduler);
        let in_file = self.file.as_ref().and_then(|file| file.fields.get("stages")).and_then(Value::as_u64);
        let given = system.stages.or_else(|| in_file.and_then(|n| u32::try_from(n).ok()));
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
        let (stages, config, machine) = match &pipeline.layers {
            Some(layers) => {
                let stages = layers.len() as u32;
                if let Some(given) = given.filter(|&given| given != stages) {
                    return Err(Failure::Usage(format!("--layers has {stages} numbers for {given} stages")));
                }
                (stages, self.profile.split_config(layers), Machine::split(&self.profile, layers))
            }
            None => {
                let stages = given.unwrap_or(DEFAULT_STAGES);
                (stages, self.profile.config(stages), Machine::new(&self.profile, stages))
            }
        };
        let (mut config, mut machine) = (config.map_err(|error| usage(&error))?, machine.map_err(|error| usage(&error))?);
        pipeline.apply(&mut machine)?;
        if let Some(path) = &pipeline.stage_table {
            let (table, model) = stage_table(path)?;
            machine.table = Some(table);
            machine.stage_costs.fill(model);
            config.cost = Some(model);
        }
        if let Some(ranks) = pipeline.tp {
            let collectives = pipeline.collectives(ranks, stages, &self.profile)?;
            if let Some(cost) = &mut config.cost {
                *cost = collectives.add_to(&collectives.share(cost));
            }
            if self.profile.fixed_blocks.is_none() {
                config.num_blocks = config.num_blocks.saturating_mul(ranks).min(u32::MAX - 1);
            }
            machine = machine.tensor_parallel(collectives);
        }
        machine.faults = args.faults.of(stages, args.workload.seed, &self.workload)?;
        mode.apply(&mut config);
        if let Some(file) = &self.file {
            config = file.over(&config)?;
        }
        config.stages = stages;
        scheduler.apply(&mut config)?;
        config.validate().map_err(|error| Failure::Usage(format!("scheduler configuration: {error}")))?;
        Ok((config, machine))
    }

    /// Options of a mode that the configuration file sets: all modes have them in common.
    pub(crate) fn fixed_by_file(&self) -> Vec<&'static str> {
        let fields = self.file.as_ref().map(|file| &file.fields);
        let options = ["pipelining", "chunking", "balance", "async_scheduling"];
        options.into_iter().filter(|&option| fields.is_some_and(|fields| fields.contains_key(option))).collect()
    }
}

/// Times of a stage, and what a scheduler is to believe of them: the model that fits best.
fn stage_table(path: &Path) -> Result<(CostTable, CostModel), Failure> {
    let wrong = |problem: &dyn std::fmt::Display| Failure::Usage(format!("{}: {problem}", path.display()));
    let groups = Table::load(path).map_err(|error| wrong(&error))?.groups;
    let [group] = &groups[..] else {
        let names: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
        return Err(wrong(&format_args!("rows of {} groups, one stage has one: {}", names.len(), names.join("; "))));
    };
    let table = CostTable::new(group).map_err(|error| wrong(&error))?;
    let fit = fit(group).ok_or_else(|| wrong(&"too few rows to fit a cost model for the scheduler"))?;
    if !fit.all.is_trusted() {
        note(&format!("the scheduler believes a model that is off by {:.1} % in the median (see calibrate)", fit.all.median * 100.0));
    }
    Ok((table, fit.model))
}

fn profile(name: &str) -> Result<Profile, Failure> {
    Profile::find(name).map_err(|error| Failure::Usage(error.to_string()))
}

fn workload(args: &WorkloadArgs) -> Result<Workload, Failure> {
    let wrong = |error: WorkloadError| Failure::Usage(error.to_string());
    let mut workload = requests(args)?;
    if let Some(mean_ns) = args.patience {
        workload.lose_patience(mean_ns, args.impatient.unwrap_or(1.0), args.seed).map_err(wrong)?;
    }
    if let Some(most) = args.max_tokens {
        workload.hide_output_lengths(most).map_err(wrong)?;
    }
    Ok(workload)
}

/// Who arrives when.
fn requests(args: &WorkloadArgs) -> Result<Workload, Failure> {
    let wrong = |error: WorkloadError| Failure::Usage(error.to_string());
    let talk = args.turns.is_some() || args.users.is_some();
    if !talk && (args.think.is_some() || args.max_context.is_some()) {
        return Err(Failure::Usage("--think and --max-context need --turns or --users".to_owned()));
    }
    if let Some(path) = &args.trace {
        let (format, limit, time_scale, seed) = (args.format, args.limit, args.time_scale, args.seed);
        let options = LoadOptions { format, limit, time_scale, seed, tick_ns: args.spread_ticks, ..LoadOptions::default() };
        return Workload::load(path, &options).map_err(wrong);
    }
    if !args.synthetic {
        return Err(Failure::Usage("no workload: give --trace FILE or --synthetic".to_owned()));
    }
    let default = Synthetic::default();
    let mut workload = Workload::synthetic(&Synthetic {
        requests: args.requests.unwrap_or(default.requests),
        rate: args.rate.unwrap_or(default.rate),
        burstiness: args.burstiness.unwrap_or(default.burstiness),
        input_mean: args.input_mean.unwrap_or(default.input_mean),
        input_sigma: args.input_sigma.unwrap_or(default.input_sigma),
        output_mean: args.output_mean.unwrap_or(default.output_mean),
        output_sigma: args.output_sigma.unwrap_or(default.output_sigma),
        bursts: args.burst_on.zip(args.burst_off).map(|(on_ns, off_ns)| Bursts { on_ns, off_ns }),
        sessions: talk.then(|| sessions(args)),
        seed: args.seed,
    })
    .map_err(wrong)?;
    if let Some(limit) = args.limit {
        workload.truncate(limit);
    }
    workload.scale_time(args.time_scale).map_err(wrong)?;
    Ok(workload)
}

fn sessions(args: &WorkloadArgs) -> Sessions {
    let default = Sessions::default();
    Sessions {
        turns_mean: args.turns.unwrap_or(default.turns_mean),
        think_ns: args.think.unwrap_or(default.think_ns),
        users: args.users,
        max_context: args.max_context.unwrap_or(default.max_context),
    }
}

impl ConfigFile {
    /// Reads a file and checks each of its fields.
    fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
        let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("{name}: {error}"));
        // Twice: the first reading knows the fields and the lines, the second one which fields are there.
        toml::from_str::<Config>(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            wrong(&format_args!("line {line}: {}", error.message().trim_end()))
        })?;
        let fields = toml::from_str(&text).map_err(|error| wrong(&error.message()))?;
        Ok(Self { name, fields })
    }

    /// A configuration with the fields of the file in place of its own.
    fn over(&self, config: &Config) -> Result<Config, Failure> {
        let merged = serde_json::to_value(config).and_then(|mut value| {
            if let Value::Object(all) = &mut value {
                all.extend(self.fields.clone());
            }
            serde_json::from_value(value)
        });
        merged.map_err(|error| Failure::Usage(format!("{}: {error}", self.name)))
    }
}

impl PipelineArgs {
    /// The all-reduces of stages with `ranks` devices each.
    pub(crate) fn collectives(&self, ranks: u32, stages: u32, profile: &Profile) -> Result<Collectives, Failure> {
        let layers = match (&self.layers, &profile.model) {
            (Some(layers), _) => layers.clone(),
            // As costs are: every stage has as many as the one with most.
            (None, Some(model)) => vec![model.layers.div_ceil(stages); stages as usize],
            (None, None) => {
                let name = &profile.name;
                return Err(Failure::Usage(format!("profile {name} does not say how many layers there are: --tp needs --layers")));
            }
        };
        Ok(Collectives {
            ranks,
            latency_ns: self.tp_latency.unwrap_or(5_000),
            bytes_per_s: self.tp_bytes_per_s.unwrap_or(150_000_000_000),
            bytes_per_token: profile.hop.bytes_per_token,
            layers,
        })
    }

    /// Sets what was given.
    fn apply(&self, machine: &mut Machine) -> Result<(), Failure> {
        if self.stage_buffer.is_some() && self.receives == Transfer::Blocking {
            return Err(Failure::Usage("--stage-buffer needs --receives overlapped: else nothing waits in front of a stage".to_owned()));
        }
        machine.links = Links { sends: self.sends, receives: self.receives, buffer: self.stage_buffer };
        machine.hop.latency_ns = self.hop_latency_ns.unwrap_or(machine.hop.latency_ns);
        machine.hop.bytes_per_s = self.hop_bytes_per_s.unwrap_or(machine.hop.bytes_per_s);
        machine.scheduling = self.scheduling;
        machine.scheduler_ns = self.scheduler_ns.unwrap_or(machine.scheduler_ns);
        machine.granularity = self.granularity;
        machine.piece_ns = self.piece_ns.unwrap_or(machine.piece_ns);
        machine.sampling_ns = self.sampling_ns.unwrap_or(machine.sampling_ns);
        machine.return_ns = self.return_ns.unwrap_or(machine.return_ns);
        Ok(())
    }
}

impl FaultArgs {
    /// All faults on a pipeline of so many stages.
    fn of(&self, stages: u32, seed: u64, workload: &Workload) -> Result<Faults, Failure> {
        let mut specs = Vec::new();
        if let Some(path) = &self.faults {
            let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
            let wrong = |(line, error)| Failure::Usage(format!("{}, line {line}: {error}", path.display()));
            specs = FaultSpec::lines(&text).map_err(wrong)?;
        }
        specs.extend(self.fault.iter().cloned());
        let horizon_ns = workload.items().last().map_or(0, |item| item.arrival_ns);
        let timeout_ns = self.fault_timeout.unwrap_or(Faults::TIMEOUT_NS);
        Faults::new(&specs, stages, seed, horizon_ns, timeout_ns).map_err(|error| Failure::Usage(error.to_string()))
    }
}

impl SchedulerArgs {
    /// Sets what was given.
    fn apply(&self, config: &mut Config) -> Result<(), Failure> {
        fn set<T: Copy>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        set(&mut config.pipelining, self.pipelining);
        set(&mut config.balance, self.balance);
        set(&mut config.async_scheduling, self.async_scheduling);
        set(&mut config.policy, self.policy);
        set(&mut config.admission, self.admission);
        set(&mut config.prefix_caching, self.prefix_caching);
        set(&mut config.block_size, self.block_size);
        set(&mut config.num_blocks, self.num_blocks);
        set(&mut config.max_batch_tokens, self.max_batch_tokens);
        set(&mut config.max_batch_requests, self.max_batch_requests);
        set(&mut config.max_requests, self.max_requests);
        set(&mut config.max_in_flight, self.max_in_flight.map(Some));
        set(&mut config.chunks_per_batch, self.chunks_per_batch);
        self.chunking(config)
    }

    fn chunking(&self, config: &mut Config) -> Result<(), Failure> {
        let of_cost = self.chunk_target_ns.is_some() || self.chunk_align.is_some() || self.chunk_min.is_some();
        let kind = match (self.chunking, self.chunk_tokens.is_some(), of_cost) {
            (Some(kind), _, _) => kind,
            (None, true, false) => ChunkingKind::Tokens,
            (None, false, true) => ChunkingKind::Cost,
            (None, true, true) => {
                return Err(Failure::Usage("--chunk-tokens does not go with --chunk-target-ns, --chunk-align or --chunk-min".to_owned()));
            }
            (None, false, false) => return Ok(()),
        };
        if self.chunk_tokens.is_some() && kind != ChunkingKind::Tokens {
            return Err(Failure::Usage("--chunk-tokens needs --chunking tokens".to_owned()));
        }
        if of_cost && kind != ChunkingKind::Cost {
            return Err(Failure::Usage("--chunk-target-ns, --chunk-align and --chunk-min need --chunking cost".to_owned()));
        }
        config.chunking = match kind {
            ChunkingKind::Tokens => Chunking::Tokens { max: self.chunk_tokens },
            ChunkingKind::Adaptive => Chunking::Adaptive,
            ChunkingKind::Cost => {
                let Some(target_ns) = self.chunk_target_ns else {
                    return Err(Failure::Usage("--chunking cost needs --chunk-target-ns".to_owned()));
                };
                Chunking::Cost { target_ns, align: self.chunk_align.unwrap_or(1), min: self.chunk_min.unwrap_or(1) }
            }
        };
        Ok(())
    }
}
