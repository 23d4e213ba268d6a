//! Text and tokens: `tokenizer.json` of a model folder, chat templates, and outputs as a stream.

mod chat;
mod stream;

use std::fmt;
use std::path::{Path, PathBuf};

use cpp_exec_mock::command::Failure;
use cpp_sched::TokenId;
use tokenizers::Tokenizer;

pub use chat::Template;
pub use stream::TextStream;

/// Why a folder's tokenizer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextError {
    /// There is none.
    Missing(PathBuf),
    /// The file is no tokenizer, or of a kind that is not known.
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It has tokens that the model does not have.
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its largest token.
        token: TokenId,
        /// Tokens that the model has.
        vocab_size: usize,
    },
    /// A text has no tokens, or cannot be taken apart.
    Text(String),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "{}: no such file; fetch the tokenizer of the model too", path.display()),
            Self::Broken { path, problem } => write!(f, "{}: no tokenizer: {problem}", path.display()),
            Self::TooLarge { path, token, vocab_size } => {
                write!(
                    f,
                    "{}: token {token} is beyond the model's vocabulary of {vocab_size}: the tokenizer is another model's",
                    path.display()
                )
            }
            Self::Text(problem) => write!(f, "prompt: {problem}"),
        }
    }
}

impl std::error::Error for TextError {}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// The tokenizer of a model, and how it wants to be spoken to.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    template: Option<Template>,
}

impl Text {
    /// Reads `tokenizer.json` of a folder. If the folder has a chat template, prompts are put into the template that its tokens speak of.
    ///
    /// # Errors
    /// It is missing, broken, or another model's.
    pub fn read(folder: &Path, vocab_size: usize) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            return Err(TextError::Missing(path));
        }
        let broken = |error: tokenizers::Error| TextError::Broken { path: path.clone(), problem: error.to_string() };
        let tokenizer = Tokenizer::from_file(&path).map_err(broken)?;
        let largest = tokenizer.get_vocab(true).into_values().max().unwrap_or_default();
        if largest as usize >= vocab_size {
            return Err(TextError::TooLarge { path, token: largest, vocab_size });
        }
        let config = std::fs::read_to_string(folder.join("tokenizer_config.json")).unwrap_or_default();
        let chat = config.contains("\"chat_template\"") || folder.join("chat_template.jinja").is_file();
        let template = Template::ALL.into_iter().find(|template| chat && template.fits(&tokenizer));
        Ok(Self { tokenizer, template })
    }

    /// The template that prompts are put into.
    #[must_use]
    pub const fn template(&self) -> Option<Template> {
        self.template
    }

    /// Sets it, or takes prompts as they are.
    pub const fn set_template(&mut self, template: Option<Template>) {
        self.template = template;
    }

    /// The tokens of a prompt, in the template if there is one.
    ///
    /// # Errors
    /// It has none.
    pub fn encode(&self, prompt: &str) -> Result<Vec<TokenId>, TextError> {
        let (text, special) = match self.template {
            // The template brings its own beginning.
            Some(template) => (template.apply(prompt), false),
            None => (prompt.to_owned(), true),
        };
        let encoding = self.tokenizer.encode(text, special).map_err(|error| TextError::Text(error.to_string()))?;
        if encoding.get_ids().is_empty() {
            return Err(TextError::Text("it has no tokens".to_owned()));
        }
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without those that only steer.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TextError> {
        self.tokenizer.decode(tokens, true).map_err(|error| TextError::Text(error.to_string()))
    }

    /// Tokens that end a turn in the template, beside the model's own.
    #[must_use]
    pub fn ends(&self) -> Vec<TokenId> {
        self.template.and_then(|template| self.tokenizer.token_to_id(template.end())).into_iter().collect()
    }
}
