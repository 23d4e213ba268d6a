//! `cpp-run generate --processes`: stages as processes, started here or by a launcher.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::process::Command;
use std::time::Duration;

use cpp_exec_mock::cpu::Part;
use cpp_exec_mock::model::{LlamaConfig, Weights};
use cpp_exec_mock::runtime::process::{Launch, Notice, ProcessOptions, ProcessPatience, Processes, Rendezvous, Secret};
use cpp_sched::Config;
use indicatif::ProgressBar;

use crate::args::{GenerateArgs, Launcher, Links};
use crate::failure::{Failure, note};

/// A variable of this process's environment.
pub(crate) fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

pub(crate) fn patience(join: Duration) -> ProcessPatience {
    ProcessPatience { join, ..ProcessPatience::default() }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::Usage(error.to_string())
}

/// This process's place, if a launcher has given it one other than the leader's.
pub(crate) fn place_of_worker(args: &GenerateArgs) -> Result<Option<Rendezvous>, Failure> {
    if args.processes != Some(Launcher::Launched) || !Rendezvous::is_launched(env) {
        return Ok(None);
    }
    let place = Rendezvous::from_env(env).map_err(usage)?;
    Ok((place.rank > 0).then_some(place))
}

/// How many stages there are: what was asked for, and what the launcher has started.
pub(crate) fn stages(args: &GenerateArgs) -> Result<u32, Failure> {
    let launched = match args.processes {
        Some(Launcher::Launched) => Rendezvous::world_size_from_env(env).map_err(usage)?,
        _ => None,
    };
    match (args.stages, launched) {
        (Some(asked), Some(launched)) if asked as usize != launched => {
            Err(Failure::Usage(format!("--stages {asked}, but the launcher has started {launched} processes: one a stage")))
        }
        (_, Some(0)) => Err(Failure::Usage("the launcher has started 0 processes: one a stage".to_owned())),
        (_, Some(launched)) => u32::try_from(launched).map_err(usage),
        (asked, None) => Ok(asked.unwrap_or(1)),
    }
}

/// Waits for the workers, having started those that are not started by others.
pub(crate) fn start(
    args: &GenerateArgs,
    launcher: Launcher,
    (model, weights): (&LlamaConfig, &Weights),
    config: &Config,
    parts: &[Part],
    (bar, device): (ProgressBar, &'static str),
) -> Result<Processes, Failure> {
    let launched = launcher == Launcher::Launched;
    let secret = if launched { Secret::from_env(env) } else { Secret::random() }.map_err(usage)?;
    let listen = match args.listen {
        Some(listen) => listen,
        None if launched => {
            let (host, port) = Rendezvous::leader_from_env(env).map_err(usage)?;
            let mut addresses = (host.as_str(), port).to_socket_addrs().map_err(|error| usage(format!("MASTER_ADDR={host}: {error}")))?;
            addresses.next().ok_or_else(|| usage(format!("MASTER_ADDR={host}: the host has no address")))?
        }
        None => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    };
    let own = std::env::current_exe().map_err(|error| Failure::Failed(format!("this program's own file: {error}")))?;
    // The process of rank 0 leads, and the worker of that rank stands beside it; without ranks all workers are others.
    let leads = Rendezvous::is_launched(env);
    let (rounding, link) = (args.rounding.name(), args.link.unwrap_or(Links::Socket).name());
    let no_graphs = args.graphs.no_graphs;
    let link_timeout = args.link_timeout.to_string();
    let (folder, join, libraries) = (args.model.clone(), args.join_timeout.to_string(), args.cuda.cuda_lib_dir.clone());
    let launch: Launch = Box::new(move |stage| {
        (!launched || leads && stage == 0).then(|| {
            let mut command = Command::new(&own);
            command
                .args([
                    "worker",
                    "--device",
                    device,
                    "--rounding",
                    rounding,
                    "--link",
                    link,
                    "--link-timeout",
                    &link_timeout,
                    "--join-timeout",
                    &join,
                    "--model",
                ])
                .arg(&folder);
            if no_graphs {
                command.arg("--no-graphs");
            }
            for folder in &libraries {
                command.arg("--cuda-lib-dir").arg(folder);
            }
            command
        })
    });
    let options = ProcessOptions {
        listen,
        secret,
        layers: parts.iter().map(|part| part.layers.clone()).collect(),
        max_numbers: config.max_batch_tokens as usize * model.hidden_size,
        model: weights.fingerprint(model),
        patience: patience(Duration::from_secs(args.join_timeout)),
    };
    let mut refusals = 0;
    let notice = move |notice| match notice {
        Notice::Loaded(bytes) => bar.inc(bytes),
        Notice::Refused(refused) => {
            refusals += 1;
            if is_told(refusals) {
                let so_far = if refusals > 20 { format!(" ({refusals} so far)") } else { String::new() };
                note(&format!("{refused}{so_far}"));
            }
        }
        _ => {}
    };
    Ok(Processes::start(config, options, launch, notice)?)
}

/// Whether there is a line for the refusal of this number: strangers make as many as they like, and a log has an end.
const fn is_told(number: u64) -> bool {
    number <= 20 || number.is_power_of_two()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_flood_of_strangers_fills_no_log() {
        let told: Vec<u64> = (1..=1_000_000).filter(|number| super::is_told(*number)).collect();
        assert_eq!((told.len(), &told[18..22]), (20 + 15, &[19, 20, 32, 64][..]));
    }
}
