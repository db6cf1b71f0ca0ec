//! How much text an answer may hold (design section 10): at most 9,000 tokens by a pessimistic estimate and 24 KiB,
//! counting `content` and `structuredContent` together, so that ChatGPT's cut at 10,000 tokens never bites. Pure.

/// An allowance of text for one copy. An answer carries its text twice, so one copy gets half of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextBudget {
    /// UTF-8 bytes.
    pub bytes: usize,
    /// Estimated tokens, see [`tokens`].
    pub tokens: usize,
}
