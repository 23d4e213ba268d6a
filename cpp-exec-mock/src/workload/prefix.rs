//! Who shares a prefix with whom, from hash ids or from sessions.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Prefix, WorkItem};

/// What a source says of a prompt's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing.
    Unknown,
    /// Ids of its blocks: `count` of them from `first` on in the list of all ids, each for `block` tokens. Blocks with equal ids are equal.
    Hashed { first: usize, count: u32, block: u32 },
    /// A turn of an agent in a session, the first `cached` tokens of which were seen before.
    Turn { session: u32, agent: u32, cached: u32 },
}

/// Fills in the prefixes of items that are sorted by arrival. `contents` holds one entry for each item, or fewer: the rest is unknown.
///
/// O(all ids + items) for hash ids; a turn usually continues the turn before it, which is looked at first.
pub(super) fn resolve(items: &mut [WorkItem], contents: &[Content], ids: &[u64]) {
    let mut trie = Trie::default();
    let mut sessions = HashMap::<u32, Vec<Turn>>::new();
    for (index, content) in contents.iter().enumerate().take(items.len()) {
        let input_tokens = items[index].input_tokens;
        items[index].prefix = match *content {
            Content::Unknown => Prefix::Unknown,
            Content::Hashed { first, count, block } => match trie.insert(index as u32, &ids[first..first + count as usize], block) {
                Some((item, blocks)) => Prefix::Continues { item, tokens: blocks.saturating_mul(block).min(input_tokens) },
                None => Prefix::New,
            },
            Content::Turn { session, agent, cached } => {
                let earlier = sessions.entry(session).or_default();
                let opens = earlier.iter().all(|turn| turn.agent != agent);
                let parent = if cached == 0 { None } else { continued(earlier, agent, opens, cached) };
                earlier.push(Turn { item: index as u32, agent, opens, input_tokens });
                parent.map_or(Prefix::New, |item| Prefix::Continues { item, tokens: cached })
            }
        };
    }
}

/// A tree of prompts by block ids; each node knows the first item that had it.
#[derive(Default)]
struct Trie {
    /// From a node and an id to the node of the longer prefix.
    next: HashMap<(usize, u64), usize>,
    /// Where prompts with blocks of so many tokens start.
    roots: HashMap<u32, usize>,
    owners: Vec<u32>,
}

impl Trie {
    /// Adds a prompt; answers with the item that first had its longest known beginning, and how many blocks that is.
    fn insert(&mut self, item: u32, ids: &[u64], block: u32) -> Option<(u32, u32)> {
        let owners = &mut self.owners;
        let mut new_node = || {
            owners.push(item);
            owners.len() - 1
        };
        let mut node = *self.roots.entry(block).or_insert_with(&mut new_node);
        let mut known = None;
        for (depth, &id) in (1..).zip(ids) {
            // Below a new node everything is new.
            node = match self.next.entry((node, id)) {
                Entry::Occupied(entry) => {
                    known = Some((*entry.get(), depth));
                    *entry.get()
                }
                Entry::Vacant(entry) => *entry.insert(new_node()),
            };
        }
        known.map(|(node, blocks)| (self.owners[node], blocks))
    }
}

/// A turn that was seen already.
struct Turn {
    item: u32,
    agent: u32,
    /// The first of its agent.
    opens: bool,
    input_tokens: u32,
}

/// The earlier turn of the session that a turn of `agent` with `cached` known tokens most likely continues: the agent's own last turn that is long
/// enough; for its very first turn that of the agent started last (agents of a session share tools and system prompt); else any turn that is long
/// enough, else the longest, whose output then is a part of what is shared.
fn continued(earlier: &[Turn], agent: u32, opens: bool, cached: u32) -> Option<u32> {
    let latest = |fits: &dyn Fn(&Turn) -> bool| earlier.iter().rev().find(|turn| turn.input_tokens >= cached && fits(turn));
    let related = if opens { latest(&|turn| turn.opens) } else { latest(&|turn| turn.agent == agent) };
    related.or_else(|| latest(&|_| true)).or_else(|| earlier.iter().max_by_key(|turn| turn.input_tokens)).map(|turn| turn.item)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(inputs: &[u32], contents: &[Content], ids: &[u64]) -> Vec<Prefix> {
        let item = |&input_tokens: &u32| WorkItem {
            arrival_ns: 0,
            priority: 0,
            input_tokens,
            output_tokens: 1,
            tenant: None,
            prefix: Prefix::Unknown,
        };
        let mut items: Vec<_> = inputs.iter().map(item).collect();
        resolve(&mut items, contents, ids);
        items.iter().map(|item| item.prefix).collect()
    }

    #[test]
    fn hash_ids_make_a_tree() {
        let hashed = |first, count, block| Content::Hashed { first, count, block };
        let ids = [7, 8, 9, 7, 8, 10, 8, 9, 7];
        let contents = [
            hashed(0, 3, 100),
            hashed(3, 3, 100),
            hashed(0, 3, 100),
            hashed(6, 2, 100),
            Content::Unknown,
            hashed(8, 1, 50),
            hashed(0, 0, 100),
        ];
        assert_eq!(
            resolved(&[250, 300, 270, 200, 5, 60, 9], &contents, &ids),
            [
                Prefix::New,
                Prefix::Continues { item: 0, tokens: 200 },
                Prefix::Continues { item: 0, tokens: 270 },
                // The same ids after another beginning are another content; those of another block size too.
                Prefix::New,
                Prefix::Unknown,
                Prefix::New,
                Prefix::New,
            ]
        );
    }

    #[test]
    fn turns_continue_the_turn_that_fits() {
        let turn = |session, agent, cached| Content::Turn { session, agent, cached };
        let continues = |item, tokens| Prefix::Continues { item, tokens };
        let rows = [
            (1000, turn(0, 0, 0), Prefix::New),
            (1500, turn(0, 0, 960), continues(0, 960)),
            // A side question, then on with the conversation.
            (100, turn(0, 0, 64), continues(1, 64)),
            (2000, turn(0, 0, 1472), continues(1, 1472)),
            // Another agent starts alike the first one, and a third one alike the second.
            (900, turn(0, 1, 512), continues(0, 512)),
            (3000, turn(0, 1, 896), continues(4, 896)),
            (800, turn(0, 2, 512), continues(4, 512)),
            // More than any prompt: the longest one and its output.
            (9000, turn(0, 0, 3200), continues(5, 3200)),
            // Sessions share nothing.
            (9000, turn(1, 0, 512), Prefix::New),
        ];
        let contents: Vec<_> = rows.iter().map(|row| row.1).collect();
        let expected: Vec<_> = rows.iter().map(|row| row.2).collect();
        assert_eq!(resolved(&rows.map(|row| row.0), &contents, &[]), expected);
    }
}
