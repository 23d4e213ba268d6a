//! Chat templates: how a question is put to a model that was trained on conversations.

use tokenizers::Tokenizer;

/// A template, known by its tokens. Templates in Jinja are not run: those of most models of the family come down to one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Template {
    /// `<|im_start|>user … <|im_end|>`: SmolLM2, Qwen.
    ChatMl,
    /// `<|start_header_id|>user<|end_header_id|> … <|eot_id|>`: Llama 3.
    Llama3,
}

impl Template {
    pub(super) const ALL: [Self; 2] = [Self::ChatMl, Self::Llama3];

    /// A prompt as the user's turn, and the beginning of the answer.
    #[must_use]
    pub fn apply(self, prompt: &str) -> String {
        match self {
            Self::ChatMl => format!("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"),
            Self::Llama3 => format!(
                "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{prompt}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            ),
        }
    }

    /// What ends a turn.
    #[must_use]
    pub const fn end(self) -> &'static str {
        match self {
            Self::ChatMl => "<|im_end|>",
            Self::Llama3 => "<|eot_id|>",
        }
    }

    pub(super) fn fits(self, tokenizer: &Tokenizer) -> bool {
        let begin = match self {
            Self::ChatMl => "<|im_start|>",
            Self::Llama3 => "<|start_header_id|>",
        };
        [begin, self.end()].iter().all(|token| tokenizer.token_to_id(token).is_some())
    }
}
