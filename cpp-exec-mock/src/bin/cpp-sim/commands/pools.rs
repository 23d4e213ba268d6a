//! `cpp-sim pools`: a pool for prompts and one for outputs against the same devices for both.

use clap::Args;
use cpp_exec_mock::profile::{Profile, list_profiles};
use cpp_exec_mock::report::{Best, Colocated, PoolsPoint, PoolsReport, PoolsRun, pools_table};
use cpp_exec_mock::sim::{
    Extras, Handover, KvLink, KvTransfers, Machine, Mode, RequestDone, Samples, Slo, Watch, simulate_pools, simulate_with,
};
use cpp_exec_mock::workload::{Synthetic, Workload};
use cpp_sched::{Config, CostTerms};

use crate::args::{SharedArgs, duration};
use crate::failure::{Failure, note, print};
use crate::output::JsonTarget;
use crate::setup::Setup;

/// Arguments of `pools`.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct PoolsArgs {
    /// serial, request, chunk or cpp: the defaults of all schedulers.
    #[arg(long, value_name = "MODE", default_value_t = Mode::Chunk)]
    mode: Mode,
    /// Stages of the pool for prompts.
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    prefill_stages: u32,
    /// Stages of the pool for outputs.
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    decode_stages: u32,
    /// Devices that share each layer of the pool for outputs, see --tp; colocated stages are as many as all devices.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    decode_tp: u32,
    /// Bytes per second of the link of each prefill stage; 0 = a transfer takes its latency alone.
    #[arg(long, value_name = "N", default_value_t = 12_500_000_000)]
    link_bytes_per_s: u64,
    /// Latency of the links.
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = duration)]
    link_latency: u64,
    /// Bytes of KV per token, of all layers; default: from the profile.
    #[arg(long, value_name = "N")]
    kv_bytes_per_token: Option<u64>,
    /// A transfer of KV that never ends: the first one that would be complete at this time or later. May be repeated.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    kv_hang: Vec<u64>,
    /// How long until such a transfer is given up.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    kv_timeout: u64,
    #[command(flatten)]
    shared: SharedArgs,
}

/// A prompt and an output that loads are made of, where no workload is given.
const GRID: [(f64, f64); 6] = [(2048.0, 64.0), (2048.0, 512.0), (8192.0, 64.0), (8192.0, 512.0), (32768.0, 64.0), (32768.0, 512.0)];

/// Requests of each of them.
const REQUESTS: u32 = 300;

/// How busy prompts alone keep the pool for them, in the built-in loads.
const LOAD: f64 = 0.6;

/// Runs every arrangement under every load, and writes the results.
pub(crate) fn run(mut args: PoolsArgs) -> Result<(), Failure> {
    if args.shared.system.list_profiles {
        return print(&list_profiles());
    }
    if args.shared.system.stages.is_some() || args.shared.pipeline.layers.is_some() {
        return Err(Failure::Usage("pools have --prefill-stages and --decode-stages, not --stages or --layers".to_owned()));
    }
    if !args.shared.faults.fault.is_empty() || args.shared.faults.faults.is_some() {
        return Err(Failure::Usage("pools have --kv-hang, not --fault or --faults".to_owned()));
    }
    let target = JsonTarget::new(args.shared.json.as_deref())?;
    let own = args.shared.workload.trace.is_some() || args.shared.workload.synthetic;
    if !own {
        args.shared.workload.synthetic = true;
    }
    let setup = Setup::new(&args.shared)?;
    let systems = Systems::new(&setup, &mut args)?;
    let mut points = Vec::new();
    if own {
        points.push(systems.point(&setup.workload, &args)?);
    } else {
        for (input_mean, output_mean) in GRID {
            let rate = LOAD / systems.prompt_s(input_mean);
            let (input_sigma, output_sigma, seed) = (0.5, 0.5, args.shared.workload.seed);
            let p =
                Synthetic { requests: REQUESTS, rate, input_mean, input_sigma, output_mean, output_sigma, seed, ..Synthetic::default() };
            let workload = Workload::synthetic(&p).map_err(|error| Failure::Usage(error.to_string()))?;
            points.push(systems.point(&workload, &args)?);
        }
    }
    let report = PoolsReport { system: systems.text(&setup.profile, &args), points };
    target.write(&report, || pools_table(&report))
}

/// The pools, and pipelines on as many devices.
struct Systems {
    prefill: (Config, Machine),
    decode: (Config, Machine),
    colocated: (Config, Machine),
    replicas: usize,
    link: KvLink,
    layers: u32,
}

impl Systems {
    fn new(setup: &Setup, args: &mut PoolsArgs) -> Result<Self, Failure> {
        if args.shared.pipeline.tp.is_some() {
            return Err(Failure::Usage("pools have --decode-tp, not --tp".to_owned()));
        }
        let (prefills, decodes) = (args.prefill_stages, args.decode_stages);
        let mut system = |stages, tp| {
            args.shared.system.stages = Some(stages);
            args.shared.pipeline.tp = Some(tp).filter(|&tp| tp > 1);
            setup.system(args.mode, &args.shared)
        };
        let (prefill, decode) = (system(prefills, 1)?, system(decodes, args.decode_tp)?);
        let devices = decodes.saturating_mul(args.decode_tp);
        let replicas = if devices.is_multiple_of(prefills) { 1 + devices / prefills } else { 1 };
        let colocated = system(prefills.saturating_add(devices) / replicas, 1)?;
        let bytes_per_token = match (args.kv_bytes_per_token, kv_bytes(&setup.profile)) {
            (Some(bytes), _) | (None, Some(bytes)) => bytes,
            (None, None) => {
                return Err(Failure::Usage(format!("profile {} does not say: give --kv-bytes-per-token", setup.profile.name)));
            }
        };
        let layers = setup.profile.model.map_or(1, |model| (model.layers / prefills).max(1));
        let link = KvLink { latency_ns: args.link_latency, bytes_per_s: args.link_bytes_per_s, bytes_per_token };
        Ok(Self { prefill, decode, colocated, replicas: replicas as usize, link, layers })
    }

    fn text(&self, profile: &Profile, args: &PoolsArgs) -> String {
        format!(
            "{}, mode {}: prefill pool of {} stages, decode pool of {}{}; colocated: {} of {} stages\n\
             links: one for each prefill stage, {} bytes/s, latency {} ns; {} bytes of KV a token",
            profile.name,
            args.mode,
            self.prefill.0.stages,
            self.decode.0.stages,
            if args.decode_tp > 1 { format!(" of {} devices each", args.decode_tp) } else { String::new() },
            self.replicas,
            self.colocated.0.stages,
            self.link.bytes_per_s,
            self.link.latency_ns,
            self.link.bytes_per_token
        )
    }

    /// How long a stage of the pool for prompts needs for one prompt, in seconds.
    fn prompt_s(&self, prompt: f64) -> f64 {
        let (config, machine) = &self.prefill;
        let (mut at, prompt) = (0u32, prompt as u32);
        let mut ns = 0u64;
        while at < prompt {
            let chunk = config.max_batch_tokens.min(prompt - at);
            ns += machine.stage_costs[0].cost(&CostTerms::prefill(at, chunk)).to_ns();
            at += chunk;
        }
        #[expect(clippy::cast_precision_loss, reason = "a load, not a decision")]
        let seconds = ns as f64 / 1e9;
        seconds
    }

    fn point(&self, workload: &Workload, args: &PoolsArgs) -> Result<PoolsPoint, Failure> {
        let mut runs = vec![PoolsRun::colocated(&self.run_colocated(workload)?)];
        for handover in Handover::ALL {
            let (hangs_ns, timeout_ns) = (args.kv_hang.clone(), args.kv_timeout);
            let transfers = KvTransfers { handover, link: self.link, layers: self.layers, hangs_ns, timeout_ns };
            let (prefill, decode) = ((&self.prefill.1, self.prefill.0), (&self.decode.1, self.decode.0));
            let outcome = simulate_pools(workload, prefill, decode, &transfers)?;
            if outcome.requests.rejected > 0 {
                note(&format!("{}: {} requests rejected", handover.name(), outcome.requests.rejected));
            }
            runs.push(PoolsRun::of_pools(handover.name(), &outcome));
        }
        let items = workload.items();
        #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
        let mean = |sum: u64| sum as f64 / items.len().max(1) as f64;
        #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
        let long_s = items.last().zip(items.first()).map_or(0.0, |(last, first)| (last.arrival_ns - first.arrival_ns) as f64 / 1e9);
        #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
        let rate = if long_s > 0.0 { (items.len() - 1) as f64 / long_s } else { 0.0 };
        Ok(PoolsPoint {
            workload: workload.source().to_owned(),
            prompt_mean: mean(items.iter().map(|item| u64::from(item.input_tokens)).sum()),
            output_mean: mean(items.iter().map(|item| u64::from(item.output_tokens)).sum()),
            rate,
            best: Best::of(&runs),
            runs,
        })
    }

    /// Each pipeline has every so manyth request.
    fn run_colocated(&self, workload: &Workload) -> Result<Colocated, Failure> {
        let mut all = Colocated::default();
        let mut sums = Sums::default();
        for replica in 0..self.replicas {
            let part = workload.every(self.replicas, replica);
            if part.items().is_empty() {
                continue;
            }
            let (mut config, machine) = (self.colocated.0, &self.colocated.1);
            config.prefix_caching = false;
            let extras = Extras { watch: vec![&mut sums], ..Extras::default() };
            let outcome = simulate_with(&part, machine, config, Slo::default(), &mut |_| {}, extras)?;
            all.finished += outcome.requests.finished;
            all.rejected += outcome.requests.rejected;
            all.duration_ns = all.duration_ns.max(outcome.duration_ns);
            all.stages.extend(outcome.stages);
            all.decision_digests.push(outcome.decision_digest.to_string());
        }
        (all.ttft, all.tpot, all.e2e) = (sums.ttft.distribution(), sums.tpot.distribution(), sums.e2e.distribution());
        Ok(all)
    }
}

/// Requests of several runs together.
#[derive(Default)]
struct Sums {
    ttft: Samples,
    tpot: Samples,
    e2e: Samples,
}

impl Watch for Sums {
    fn request(&mut self, done: &RequestDone) {
        self.ttft.push(done.ttft_ns);
        self.e2e.push(done.e2e_ns);
        let gaps = u64::from(done.output_tokens.saturating_sub(1));
        if let Some(tpot_ns) = (done.e2e_ns - done.ttft_ns + gaps / 2).checked_div(gaps) {
            self.tpot.push(tpot_ns);
        }
    }
}

/// Bytes of KV per token of all layers, where the profile knows its device and model.
fn kv_bytes(profile: &Profile) -> Option<u64> {
    let (device, model) = (profile.device.as_ref()?, profile.model.as_ref()?);
    u64::try_from(device.kv_bytes_per_token(model)).ok()
}
