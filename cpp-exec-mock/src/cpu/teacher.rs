//! Another device's tokens against this one's logits.
//!
//! Two devices that round differently need not say the same: where two tokens are nearly as likely, either may come first, and everything after it
//! is another text. So the text of the other device is given to the processor, place by place, and what counts is how much less likely than
//! the best each of its tokens is there, and by how much its logits differ.

use cpp_sched::{BatchId, BlockId, RequestId, TokenId};

use super::stage::{CpuError, CpuStage};
use crate::runtime::{Device, Work};

/// What the other device has said after the text so far.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(clippy::exhaustive_structs, reason = "a token and its logits")]
pub struct Said {
    /// The token that it took as the most likely.
    pub token: TokenId,
    /// Its logits, if they are known.
    pub logits: Option<Vec<f32>>,
}

impl From<TokenId> for Said {
    fn from(token: TokenId) -> Self {
        Self { token, logits: None }
    }
}

/// How far another device is from the processor. In standard deviations of a place's logits, so that one tolerance fits all models.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TeacherForced {
    /// Tokens that were looked at.
    pub tokens: usize,
    /// Those that are the most likely here as well.
    pub equal: usize,
    /// The most by which a token's logit is behind the best.
    pub worst_token: f32,
    /// The most by which a logit differs, of those that are known.
    pub worst_logit: f32,
    /// Places whose logits were known.
    pub logits: usize,
}

impl TeacherForced {
    /// Looks at the answer to a prompt. `stages` is a whole model, first to last, whose memory is overwritten from its first block on.
    /// O(text² · layers · hidden).
    ///
    /// # Errors
    /// The text does not fit the model's memory or vocabulary.
    pub fn look(&mut self, stages: &mut [CpuStage], block_size: u32, prompt: &[TokenId], answer: &[Said]) -> Result<(), CpuError> {
        let text: Vec<TokenId> = prompt.iter().copied().chain(answer.iter().map(|said| said.token)).collect();
        if prompt.is_empty() || answer.is_empty() {
            return Ok(());
        }
        let blocks: Vec<BlockId> = (0..(text.len() as u32).div_ceil(block_size.max(1))).map(BlockId).collect();
        let mut work = Work::new(BatchId(0));
        work.push(RequestId(0), 0, &text, 0, &blocks, None);
        let (mut input, mut output) = (Vec::new(), Vec::new());
        for stage in &mut *stages {
            stage.run(&work, &input, &mut output, &mut Vec::new())?;
            std::mem::swap(&mut input, &mut output);
        }
        let hidden = input.len() / text.len();
        for (place, said) in (prompt.len() - 1..).zip(answer) {
            let own = stages.last().and_then(|last| last.logits(&input[place * hidden..(place + 1) * hidden]));
            self.compare(&own.unwrap_or_default(), said);
        }
        Ok(())
    }

    fn compare(&mut self, own: &[f32], said: &Said) {
        let size = own.len().max(1) as f32;
        let mean = own.iter().sum::<f32>() / size;
        let spread = (own.iter().map(|logit| (logit - mean).powi(2)).sum::<f32>() / size).sqrt().max(f32::MIN_POSITIVE);
        let best = own.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // A token that the model does not have is as far off as can be, and so is everything where one of its own logits is no number.
        let sound = own.iter().all(|logit| logit.is_finite());
        let behind = own.get(said.token as usize).filter(|_| sound).map_or(f32::INFINITY, |logit| (best - logit) / spread);
        self.tokens += 1;
        self.equal += usize::from(behind == 0.0);
        self.worst_token = worse(self.worst_token, behind);
        if let Some(logits) = &said.logits {
            self.logits += 1;
            let off = own.iter().zip(logits).fold(0.0, |worst, (a, b)| worse(worst, (a - b).abs() / spread));
            self.worst_logit = worse(self.worst_logit, if sound && logits.len() == own.len() { off } else { f32::INFINITY });
        }
    }

    /// Whether every token is within `tolerance` of the best, and every logit within it of this device's.
    #[must_use]
    pub fn is_within(&self, tolerance: f32) -> bool {
        self.tokens > 0 && self.worst_token <= tolerance && self.worst_logit <= tolerance
    }
}

/// The greater; what is no number is greater than all.
fn worse(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::INFINITY } else { a.max(b) }
}

#[cfg(test)]
mod tests {
    use super::{Said, TeacherForced};

    fn of(own: &[f32], said: &Said) -> TeacherForced {
        let mut teacher = TeacherForced::default();
        teacher.compare(own, said);
        teacher
    }

    #[test]
    fn distances_are_in_standard_deviations() {
        // Mean 0, standard deviation 2.
        let own = [2.0, -2.0, 2.0, -2.0];
        let equal = of(&own, &Said { token: 2, logits: Some(vec![2.0, -2.0, 2.0, -2.0]) });
        assert_eq!((equal.equal, equal.worst_token, equal.worst_logit), (1, 0.0, 0.0));
        let other = of(&own, &Said { token: 1, logits: Some(vec![2.0, -2.0, 1.0, -2.5]) });
        assert_eq!((other.equal, other.worst_token, other.worst_logit), (0, 2.0, 0.5));
        assert!(other.is_within(2.0) && !other.is_within(1.9));
    }

    #[test]
    fn nothing_and_nonsense_are_within_no_tolerance() {
        assert!(!TeacherForced::default().is_within(f32::MAX));
        assert!(!of(&[1.0, 2.0], &Said::from(7)).is_within(f32::MAX));
        assert!(!of(&[1.0, 2.0], &Said { token: 1, logits: Some(vec![1.0, f32::NAN]) }).is_within(f32::MAX));
        assert!(!of(&[1.0, 2.0], &Said { token: 1, logits: Some(vec![1.0]) }).is_within(f32::MAX));
        assert!(!of(&[1.0, f32::NAN], &Said::from(0)).is_within(f32::MAX));
    }
}
