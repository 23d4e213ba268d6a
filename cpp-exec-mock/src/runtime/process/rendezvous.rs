//! Which stage this process runs, and where the leader is: from the environment that launchers of distributed programs set.
//!
//! | what | variables, the first that is set | launchers |
//! |---|---|---|
//! | rank | `RANK`, `SLURM_PROCID`, `OMPI_COMM_WORLD_RANK`, `PMI_RANK` | torchrun and Ray; Slurm; Open MPI; MPICH |
//! | number of ranks | `WORLD_SIZE`, `SLURM_NTASKS`, `OMPI_COMM_WORLD_SIZE`, `PMI_SIZE` | the same |
//! | rank on this host | `LOCAL_RANK`, `SLURM_LOCALID`, `OMPI_COMM_WORLD_LOCAL_RANK`; else 0 | the same |
//! | the leader's host | `MASTER_ADDR`; else 127.0.0.1 | torchrun, Ray; set it yourself under Slurm and MPI |
//! | its port | `CPP_MASTER_PORT`, `MASTER_PORT` | the same |
//!
//! The names are those of [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables),
//! [Slurm](https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES) and Open MPI. Where torchrun's agent keeps its own store at
//! `MASTER_PORT` (`TORCHELASTIC_USE_AGENT_STORE=True`), the leader takes the port behind it.

use std::ffi::OsString;
use std::fmt;

const RANK: [&str; 4] = ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];
const WORLD_SIZE: [&str; 4] = ["WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
const LOCAL_RANK: [&str; 3] = ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"];
const PORT: [&str; 2] = ["CPP_MASTER_PORT", "MASTER_PORT"];

/// A process's place among those of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "what the variables say")]
pub struct Rendezvous {
    /// The stage, from 0 on.
    pub rank: usize,
    /// Stages that there are.
    pub world_size: usize,
    /// Which of the processes on this host it is: the number of its GPU.
    pub local_rank: usize,
    /// The leader's host.
    pub host: String,
    /// The leader's port.
    pub port: u16,
}

/// What is wrong with the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RendezvousError {
    /// No variable says it.
    Missing {
        /// What.
        what: &'static str,
        /// The variables that would.
        variables: &'static [&'static str],
    },
    /// A variable holds no number, or none that can be.
    Number {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What it must be.
        wanted: String,
    },
}

impl fmt::Display for RendezvousError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { what, variables } => {
                write!(f, "the {what} is not known: none of {} is set; start this process with a launcher, or set it", variables.join(", "))
            }
            Self::Number { variable, value, wanted } => write!(f, "{variable}={value}: must be {wanted}"),
        }
    }
}

impl std::error::Error for RendezvousError {}

impl Rendezvous {
    /// The place that the environment gives; `get` looks a variable up.
    ///
    /// ```
    /// use cpp_exec_mock::runtime::process::Rendezvous;
    ///
    /// let env = |name: &str| match name {
    ///     "RANK" => Some("1".into()),
    ///     "WORLD_SIZE" => Some("4".into()),
    ///     "MASTER_PORT" => Some("29500".into()),
    ///     _ => None,
    /// };
    /// let place = Rendezvous::from_env(env).unwrap();
    /// assert_eq!((place.rank, place.world_size, place.host.as_str(), place.port), (1, 4, "127.0.0.1", 29500));
    /// ```
    ///
    /// # Errors
    /// A variable is missing or wrong.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, RendezvousError> {
        let world_size = need(&get, "number of ranks", &WORLD_SIZE)?;
        let rank = need(&get, "rank", &RANK)?;
        let first = |variables: &[&'static str]| variables.iter().find(|name| get(name).is_some()).copied().unwrap_or_default();
        if rank >= world_size {
            let wanted = format!("below the number of ranks, {world_size}");
            return Err(RendezvousError::Number { variable: first(&RANK), value: rank.to_string(), wanted });
        }
        let local_rank = find(&get, &LOCAL_RANK)?.map_or(0, |(_, number)| number);
        let (host, port) = Self::leader_from_env(&get)?;
        Ok(Self { rank, world_size, local_rank, host, port })
    }

    /// Whether a launcher has given this process a rank.
    pub fn is_launched(get: impl Fn(&str) -> Option<OsString>) -> bool {
        RANK.iter().any(|name| get(name).is_some())
    }

    /// The number of ranks, if a variable says it.
    ///
    /// # Errors
    /// It holds no number.
    pub fn world_size_from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<usize>, RendezvousError> {
        Ok(find(&get, &WORLD_SIZE)?.map(|(_, number)| number))
    }

    /// Where the leader is: host and port.
    ///
    /// # Errors
    /// The port is missing or wrong.
    pub fn leader_from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<(String, u16), RendezvousError> {
        let (variable, number) = find(&get, &PORT)?.ok_or(RendezvousError::Missing { what: "leader's port", variables: &PORT })?;
        let behind = usize::from(variable == "MASTER_PORT" && get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True"));
        let port = u16::try_from(number + behind).ok().filter(|port| *port > 0);
        let wanted = || RendezvousError::Number { variable, value: number.to_string(), wanted: "a port from 1 to 65535".to_owned() };
        let host = get("MASTER_ADDR").map_or_else(|| "127.0.0.1".to_owned(), |host| host.to_string_lossy().into_owned());
        Ok((host, port.ok_or_else(wanted)?))
    }
}

fn find(
    get: &impl Fn(&str) -> Option<OsString>,
    variables: &'static [&'static str],
) -> Result<Option<(&'static str, usize)>, RendezvousError> {
    let Some((variable, value)) = variables.iter().find_map(|name| Some((*name, get(name)?))) else { return Ok(None) };
    let value = value.to_string_lossy().into_owned();
    // Numbers of processes and ports: larger ones are mistakes.
    match value.trim().parse::<u32>() {
        Ok(number) if number <= 1 << 20 => Ok(Some((variable, number as usize))),
        _ => Err(RendezvousError::Number { variable, value, wanted: "a number from 0 to 1048576".to_owned() }),
    }
}

fn need(get: &impl Fn(&str) -> Option<OsString>, what: &'static str, variables: &'static [&'static str]) -> Result<usize, RendezvousError> {
    find(get, variables)?.map(|(_, number)| number).ok_or(RendezvousError::Missing { what, variables })
}

#[cfg(test)]
mod tests {
    use super::{Rendezvous, RendezvousError};
    use std::ffi::OsString;

    fn place(variables: &[(&str, &str)]) -> Result<Rendezvous, RendezvousError> {
        Rendezvous::from_env(|name| variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn every_launcher_is_understood() {
        let expected = |host: &str, port| Rendezvous { rank: 1, world_size: 4, local_rank: 1, host: host.to_owned(), port };
        let leader = [("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
        for (rank, size, local) in [
            ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ] {
            let variables = [&[(rank, "1"), (size, "4"), (local, "1")], &leader[..]].concat();
            assert_eq!(place(&variables), Ok(expected("node7", 29500)));
        }
        // Within a job of Slurm, torchrun's own variables count.
        let torchrun = [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        let agent = [("TORCHELASTIC_USE_AGENT_STORE", "True")];
        assert_eq!(place(&[&torchrun[..], &leader, &agent].concat()), Ok(expected("node7", 29501)), "the agent has that port");
        let own = [("CPP_MASTER_PORT", "4000")];
        assert_eq!(place(&[&torchrun[..], &leader, &agent, &own].concat()), Ok(expected("node7", 4000)));
    }

    #[test]
    fn each_missing_or_wrong_variable_is_named() {
        let whole = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")];
        assert_eq!(place(&whole).unwrap().host, "127.0.0.1");
        for (at, what) in ["rank", "number of ranks", "leader's port"].into_iter().enumerate() {
            let mut variables = whole.to_vec();
            let (name, _) = variables.remove(at);
            let error = place(&variables).unwrap_err();
            assert!(matches!(&error, RendezvousError::Missing { what: missing, .. } if *missing == what), "{error:?}");
            assert!(error.to_string().contains(name), "{error}");
            for value in ["-1", "one", "", "99999999999"] {
                let mut variables = whole.to_vec();
                variables[at].1 = value;
                assert!(matches!(place(&variables), Err(RendezvousError::Number { variable, .. }) if variable == name), "{name}={value}");
            }
        }
        assert!(matches!(place(&[("RANK", "2"), whole[1], whole[2]]), Err(RendezvousError::Number { variable: "RANK", .. })));
        assert!(matches!(place(&[whole[0], whole[1], ("MASTER_PORT", "65536")]), Err(RendezvousError::Number { .. })));
        assert!(matches!(place(&[whole[0], whole[1], ("MASTER_PORT", "0")]), Err(RendezvousError::Number { .. })));
    }
}
