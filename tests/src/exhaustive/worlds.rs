//! The tiny worlds, each with what it is about.

use cpp_sched::{Admission, Config, PolicyKind};

use super::Setup;

/// Blocks of two tokens, batches of three, two stages.
fn config(num_blocks: u32) -> Config {
    let mut config = Config::default();
    (config.block_size, config.num_blocks) = (2, num_blocks);
    (config.max_batch_tokens, config.max_batch_requests) = (3, 3);
    (config.stages, config.max_requests) = (2, 3);
    config
}

fn setup(config: Config, requests: &[(u32, u32)], faults: u8) -> Setup {
    Setup { config, requests: requests.to_vec(), shared: 2, faults }
}

/// All worlds by name, the small ones first.
#[must_use]
pub fn worlds() -> Vec<(&'static str, Setup)> {
    let two = &[(4, 2), (3, 3)];
    let three = &[(4, 2), (3, 2), (2, 2)];
    let mut worlds = Vec::new();

    worlds.push(("roomy", setup(config(6), two, 1)));
    // Both together need more than there is: somebody gives way.
    let mut tight = config(4);
    tight.admission = Admission::Lazy;
    worlds.push(("tight", setup(tight, two, 1)));
    tight.prefix_caching = true;
    worlds.push(("tight, cached", setup(tight, two, 1)));
    let mut urgent = tight;
    urgent.policy = PolicyKind::Priority;
    worlds.push(("tight, cached, priority", setup(urgent, two, 1)));
    let mut ahead = urgent;
    ahead.async_scheduling = true;
    ahead.max_in_flight = Some(3);
    worlds.push(("tight, asynchronous", setup(ahead, two, 1)));
    let mut dropping = ahead;
    dropping.preempted_output = cpp_sched::PreemptedOutput::Drop;
    worlds.push(("tight, outputs dropped", setup(dropping, two, 1)));
    let mut kept = config(4);
    (kept.admission, kept.prefix_caching) = (Admission::NoEvict, true);
    worlds.push(("no_evict", setup(kept, two, 1)));
    let mut shortest = config(4);
    (shortest.policy, shortest.prefix_caching) = (PolicyKind::Srpf, true);
    worlds.push(("srpf, three", setup(shortest, three, 1)));
    let mut stages = tight;
    (stages.stages, stages.chunks_per_batch) = (3, 2);
    worlds.push(("three stages, two chunks", setup(stages, two, 1)));
    let mut passing = config(5);
    (passing.policy, passing.max_bypass, passing.prefix_caching) = (PolicyKind::Priority, 1, true);
    worlds.push(("three, passing", setup(passing, three, 1)));
    worlds.push(("tight, two faults", setup(urgent, two, 2)));
    worlds.push(("three, asynchronous", setup(ahead, three, 1)));
    worlds
}
