//! Tiny worlds in which every order of calls is tried: a model for [`stateright`].
//!
//! Two or three requests, a handful of blocks, and at every point whatever a caller may do: submit the next request, schedule, complete the
//! oldest batch, abort, lose one batch or all of them. Each state is judged ([`World::fault`]): invariants, what every KV slot holds, tokens
//! delivered once and in order. And from each state the run is played to its end: if somebody never ends, that is a deadlock or a livelock.
//!
//! Two states are one if their snapshots are, counters of the statistics apart, and the caller knows the same. Faults are bounded in number,
//! else numbers of batches would grow for ever.

mod world;
mod worlds;

use stateright::{Checker, Expectation, Model, Property};

pub use world::{Setup, World};
pub use worlds::worlds;

/// What a caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The next request comes.
    Submit,
    /// A batch is asked for.
    Schedule,
    /// The oldest batch is back.
    Complete,
    /// The request of this number is given up.
    Abort(u8),
    /// Of the batches in flight, this one is lost.
    Lose(u8),
    /// All batches in flight are lost.
    Fail,
}

/// All worlds that a setup can get into.
#[derive(Clone, Debug)]
pub struct Tiny(pub Setup);

impl Model for Tiny {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.fault().is_some() {
            return;
        }
        if world.may_submit(&self.0) {
            actions.push(Action::Submit);
        }
        actions.push(Action::Schedule);
        let in_flight = world.in_flight();
        if in_flight > 0 {
            actions.push(Action::Complete);
        }
        if world.faults_left() > 0 {
            actions.extend(world.alive().map(Action::Abort));
        }
        if world.faults_left() > 0 && in_flight > 0 {
            actions.push(Action::Fail);
            actions.extend(world.losable().map(Action::Lose));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.apply(&self.0, action);
        // What changes nothing leads nowhere.
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no call is wrong, no slot of memory, no token", |_, world: &World| world.fault().is_none()),
            Property::always("from everywhere every request comes to its end", |model: &Self, world: &World| world.ends(&model.0).is_ok()),
            Property::sometimes("all requests end", |model: &Self, world: &World| world.is_over(&model.0)),
        ]
    }
}

/// What exploring a setup came to.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Calls that led to them.
    pub calls: usize,
    /// Calls of the longest way.
    pub depth: usize,
    /// What does not hold, with the calls that lead there; or what should happen and never does.
    pub wrong: Option<String>,
}

/// Tries everything that can happen in a setup, on so many threads.
#[must_use]
pub fn explore(setup: Setup, threads: usize) -> Explored {
    let model = Tiny(setup);
    let checker = model.clone().checker().threads(threads).spawn_bfs().join();
    let found = checker.discoveries();
    let wrong = model.properties().into_iter().find_map(|property| match (&property.expectation, found.get(property.name)) {
        (Expectation::Sometimes, None) => Some(format!("never: {}", property.name)),
        (Expectation::Sometimes, Some(_)) | (_, None) => None,
        (_, Some(path)) => {
            let world = path.last_state();
            let detail = world.ends(&model.0).err();
            Some(format!("not so: {}: {:?} {detail:?}\n{:#?}", property.name, world.fault(), path.clone().into_actions()))
        }
    });
    Explored { states: checker.unique_state_count(), calls: checker.state_count(), depth: checker.max_depth(), wrong }
}
