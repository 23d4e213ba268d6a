//! Tokens to text as they come: a character may take several tokens.

use cpp_sched::TokenId;

use super::{Text, TextError};

/// Turns the tokens of one output into text, piece by piece.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    tokens: Vec<TokenId>,
    /// Where the last few words begin: a decoder may put a space before a token because of the one before it.
    window: usize,
    /// Tokens whose text was given out.
    given: usize,
}

impl TextStream {
    /// The text that a token adds; empty while a character is not complete. O(tokens since the last space or so).
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn push(&mut self, text: &Text, token: TokenId) -> Result<String, TextError> {
        self.tokens.push(token);
        let before = text.decode(&self.tokens[self.window..self.given])?;
        let now = text.decode(&self.tokens[self.window..])?;
        // Half a character decodes to the replacement character.
        if now.ends_with('\u{fffd}') || now.len() <= before.len() {
            return Ok(String::new());
        }
        let piece = now.get(before.len()..).unwrap_or_default().to_owned();
        (self.window, self.given) = (self.given, self.tokens.len());
        Ok(piece)
    }

    /// What is left: bytes that never became a character.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn finish(&mut self, text: &Text) -> Result<String, TextError> {
        let before = text.decode(&self.tokens[self.window..self.given])?;
        let now = text.decode(&self.tokens[self.window..])?;
        self.given = self.tokens.len();
        Ok(now.get(before.len()..).unwrap_or_default().to_owned())
    }
}
