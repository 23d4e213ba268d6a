//! Rules about the events of a line.

use std::collections::BTreeMap;

use super::Checker;
use super::entry::{Entry, EventEntry};
use super::request::Wanted;

impl Checker {
    /// Plays the events. `due`: the tokens that this line must deliver; `actor`: whom the call is about, and by which reason it may end.
    pub(super) fn events(&mut self, entry: &Entry, due: &[(usize, u64)], actor: Option<(usize, Option<&str>)>) {
        let mut got: BTreeMap<usize, u64> = BTreeMap::new();
        // Blocks that a finish in the same line gives back may be offered at once.
        let (wanted, others): (Vec<&EventEntry>, Vec<&EventEntry>) = entry.events.iter().partition(|event| event.kind == "kv_wanted");
        for event in others.into_iter().chain(wanted) {
            let Some(r) = self.place(&event.id) else { continue };
            let track = &self.tracks[r];
            if track.terminal.is_some() || track.submitted.is_none() {
                self.bad(format!("{}: {} after its end or before its start", event.id, event.kind));
                continue;
            }
            match event.kind.as_str() {
                "token" => {
                    *got.entry(r).or_default() += 1;
                    self.token(r, event);
                }
                "finished" => self.finished(r, event, actor),
                "kv_ready" => self.kv_ready(r, event),
                "kv_wanted" => self.kv_wanted(r, event),
                other => self.bad(format!("an unknown event {other:?}")),
            }
        }
        let due: BTreeMap<usize, u64> = due.iter().copied().filter(|(_, n)| *n > 0).collect();
        if got != due {
            let named = |counts: &BTreeMap<usize, u64>| -> BTreeMap<String, u64> {
                counts.iter().map(|(&r, &n)| (self.tracks[r].spec.id.clone(), n)).collect()
            };
            let text = format!("tokens delivered {:?}, must be {:?}", named(&got), named(&due));
            self.bad(text);
        }
    }

    fn token(&mut self, r: usize, event: &EventEntry) {
        let track = &self.tracks[r];
        let must = track.token(track.known());
        if event.index != Some(track.delivered) || event.token != must {
            let text = format!("{}: token {:?} is {:?}, must be token {}: {must:?}", event.id, event.index, event.token, track.delivered);
            self.bad(text);
        }
        self.tracks[r].delivered += 1;
    }

    fn finished(&mut self, r: usize, event: &EventEntry, actor: Option<(usize, Option<&str>)>) {
        let reason = event.reason.as_deref().unwrap_or_default();
        let track = &mut self.tracks[r];
        track.terminal = Some(reason.to_owned());
        let ended = reason == track.natural && track.delivered == track.outputs() && self.config.role != "prefill";
        let right = if track.aborting { reason == "aborted" } else { ended || actor == Some((r, Some(reason))) };
        if !right {
            let text = format!("{}: finished by {reason} after {} of {} tokens", event.id, track.delivered, track.outputs());
            self.bad(text);
        }
    }

    fn kv_ready(&mut self, r: usize, event: &EventEntry) {
        let track = &self.tracks[r];
        let (start, end) = (event.start.unwrap_or(u64::MAX), event.end.unwrap_or_default());
        let whole = end == track.prompt || end % self.config.block_size == 0;
        if start != track.ready_to || end <= start || end > track.done || !whole || track.aborting || self.config.role != "prefill" {
            let text = format!("{}: kv_ready [{start},{end}) after {}, with {} final", event.id, track.ready_to, track.done);
            return self.bad(text);
        }
        let (first, blocks) = (start / self.config.block_size, self.config.blocks(end));
        let range = usize::try_from(first).unwrap_or_default()..usize::try_from(blocks).unwrap_or_default();
        let track = &mut self.tracks[r];
        track.ready_to = end;
        track.pins.extend(track.table.get(range).unwrap_or_default());
    }

    /// From now on the peer writes positions `start..end` into these blocks.
    fn kv_wanted(&mut self, r: usize, event: &EventEntry) {
        let track = &self.tracks[r];
        let (start, end) = (event.start.unwrap_or(u64::MAX), event.end.unwrap_or_default());
        let blocks = event.blocks.clone().unwrap_or_default();
        let distinct: std::collections::BTreeSet<u32> = blocks.iter().copied().collect();
        let covers = distinct.len() == blocks.len() && blocks.len() as u64 == self.config.blocks(end);
        let valid = distinct.iter().all(|&block| u64::from(block) < self.config.num_blocks);
        if !track.waits_kv || track.wanted.is_some() || start >= end || end != track.prompt || !covers || !valid {
            return self.bad(format!("{}: kv_wanted [{start},{end}) into {blocks:?}", event.id));
        }
        let longest = if self.config.prefix_caching { self.memory.longest_hit(track, self.config.block_size) } else { 0 };
        if start < longest {
            self.bad(format!("{}: kv_wanted from {start}, but a prefix of {longest} can be hit", event.id));
        }
        if start > 0 {
            self.hit(r, start, &blocks);
            self.reads(r, start, &blocks);
        }
        let used = self.in_use();
        let first = usize::try_from(start / self.config.block_size).unwrap_or_default();
        let busy: Vec<u32> = blocks[first..].iter().copied().filter(|block| used.contains(block)).collect();
        if !busy.is_empty() {
            self.bad(format!("{}: kv_wanted into blocks {busy:?} that are in use", event.id));
        }
        blocks[first..].iter().for_each(|&block| self.memory.evict(block));
        self.tracks[r].pins = distinct;
        self.tracks[r].wanted = Some(Wanted { start, end, blocks });
    }
}
