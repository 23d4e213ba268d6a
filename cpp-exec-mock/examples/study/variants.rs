//! The schedulers that are compared.

use cpp_sched::{Balance, Chunking, Config, PolicyKind};

/// A scheduler that is compared.
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) config: Config,
}

/// Sizes of fixed chunks that are tried.
const FIXED: [u32; 5] = [256, 512, 768, 1024, 2048];

/// All of them, for a machine with this configuration and requests with or without token targets.
pub(crate) fn variants(base: Config, paced: bool) -> Vec<Variant> {
    let mut shaped = base;
    shaped.chunking = Chunking::Adaptive;
    // Who waits for a lighter batch is late by it.
    shaped.balance = if paced { Balance::Off } else { Balance::Cost };
    let mut all = Vec::new();
    for tokens in FIXED {
        for (name, policy) in [("fcfs", PolicyKind::Fcfs), ("edf", PolicyKind::Edf)] {
            let mut config = base;
            (config.max_batch_tokens, config.policy) = (tokens, policy);
            all.push(Variant { name: format!("{name}, fixed {tokens}"), config });
        }
    }
    let mut add = |name: &str, policy, options: &[Extra]| {
        let (mut name, mut config) = (name.to_owned(), shaped);
        config.policy = policy;
        for option in options {
            match option {
                Extra::Guard => config.feasibility_guard = true,
                Extra::Relegation => config.relegation = true,
                Extra::Sharing => config.latency.space_sharing = true,
            }
            name += option.name();
        }
        all.push(Variant { name, config });
    };
    use Extra::{Guard, Relegation, Sharing};
    add("fcfs", PolicyKind::Fcfs, &[]);
    for (name, policy) in [("srpf", PolicyKind::Srpf), ("edf", PolicyKind::Edf), ("hybrid", PolicyKind::Hybrid), ("lars", PolicyKind::Lars)]
    {
        add(name, policy, &[]);
        add(name, policy, &[Sharing]);
        if policy == PolicyKind::Lars {
            add(name, policy, &[Guard]);
            add(name, policy, &[Guard, Sharing]);
            add(name, policy, &[Guard, Relegation]);
            add(name, policy, &[Guard, Relegation, Sharing]);
        } else {
            add(name, policy, &[Relegation]);
            add(name, policy, &[Relegation, Sharing]);
        }
    }
    add("fair", PolicyKind::Fair, &[]);
    all
}

/// What a variant has on.
#[derive(Clone, Copy)]
enum Extra {
    Guard,
    Relegation,
    Sharing,
}

impl Extra {
    fn name(self) -> &'static str {
        match self {
            Self::Guard => "+guard",
            Self::Relegation => "+relegation",
            Self::Sharing => ", sharing",
        }
    }
}
