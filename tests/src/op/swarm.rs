//! Which kinds of operations a run knows.

use arbitrary::Unstructured;

use super::pick;

/// Kinds of operations that a run may do without; see [`Swarm`].
pub(super) const OPTIONAL: usize = 12;

/// The kinds among them that [`Swarm::decode_more`] switches.
pub(super) const MORE: usize = 15;

/// Which kinds of operations a run knows, and how often each comes.
///
/// A run in which everything happens seldom gets anywhere: an abort here, a failure there, and no state ever grows old. Switching kinds off,
/// run by run, reaches states that no even mixture reaches (swarm testing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swarm {
    pub(super) weights: [u8; OPTIONAL],
    pub(super) more: [u8; MORE],
    /// Bits: which [`Extras`](super::Extras) requests may have.
    pub(super) traits: u8,
    /// How long prompts are at most.
    pub max_prompt: u32,
    /// How many outputs are asked for at most.
    pub max_tokens: u32,
    /// How many ids there are.
    pub ids: u64,
}

/// Where among them the extension of a session stands.
const EXTEND: usize = 7;

impl Swarm {
    /// Reads a mixture.
    ///
    /// # Errors
    /// Never with zero or more bytes left: missing bytes read as zero.
    pub fn decode(u: &mut Unstructured<'_>, pool_tokens: u32) -> arbitrary::Result<Self> {
        let mut weights = [0; OPTIONAL];
        for weight in &mut weights {
            *weight = *pick(u, &[0, 1, 0, 4])?;
        }
        let eighths = *pick(u, &[4, 1, 2, 8, 9])?;
        Ok(Self {
            weights,
            more: [0; MORE],
            traits: 0,
            max_prompt: (pool_tokens * eighths / 8).clamp(1, 240),
            max_tokens: *pick(u, &[4, 1, 12, 60])?,
            ids: *pick(u, &[12, 4, 40])?,
        })
    }

    /// Reads the rest of a mixture.
    ///
    /// # Errors
    /// Never with zero or more bytes left: missing bytes read as zero.
    pub fn decode_more(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let all = u.arbitrary::<u8>()?;
        self.traits = if all >= 160 { 0xff } else { all & u.arbitrary::<u8>()? };
        for weight in &mut self.more {
            *weight = *pick(u, &[0, 1, 0, 3])?;
        }
        // Sessions are there to go on.
        if self.traits & (1 << 4) != 0 {
            self.more[EXTEND] += 4;
        }
        Ok(())
    }
}
