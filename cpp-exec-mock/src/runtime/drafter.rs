//! Who proposes tokens to be verified.

use cpp_sched::{RequestId, TokenId};

/// Proposes how a text goes on. A wrong proposal costs the work of its position and changes no token.
pub trait Drafter: Send {
    /// Appends `count` tokens to `drafts` that may follow `known`.
    fn propose(&mut self, request: RequestId, known: &[TokenId], count: usize, drafts: &mut Vec<TokenId>);
}

/// Looks up in the text itself how it went on after its last tokens (prompt lookup): the longest match of up to three, the latest of those.
/// O(known) for each token proposed.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::exhaustive_structs, reason = "nothing to set")]
pub struct PromptLookup;

impl Drafter for PromptLookup {
    fn propose(&mut self, _: RequestId, known: &[TokenId], count: usize, drafts: &mut Vec<TokenId>) {
        let mut text = known.to_vec();
        for _ in 0..count {
            let next = follow(&text);
            text.push(next);
            drafts.push(next);
        }
    }
}

fn follow(text: &[TokenId]) -> TokenId {
    for len in (1..=3.min(text.len())).rev() {
        let (before, last) = (&text[..text.len() - 1], &text[text.len() - len..]);
        if let Some(at) = before.windows(len).rposition(|window| window == last) {
            return text[at + len];
        }
    }
    text.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::follow;

    #[test]
    fn a_text_goes_on_as_it_did_before() {
        assert_eq!(follow(&[1, 2, 3, 4, 9, 2, 3]), 4);
        assert_eq!(follow(&[5, 7, 5, 8, 5]), 8, "the latest place");
        assert_eq!(follow(&[1, 2, 9, 3, 2, 8, 1, 2]), 9, "the longest match");
        assert_eq!((follow(&[4]), follow(&[])), (4, 0));
    }
}
