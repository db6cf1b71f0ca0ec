//! Counting tokens as ChatGPT's models do: o200k. The product may only estimate; the tests count.

use std::sync::OnceLock;

use tiktoken_rs::CoreBPE;

/// Tokens of `text`.
///
/// # Panics
/// Never: the vocabulary is part of the crate.
#[must_use]
pub fn count(text: &str) -> usize {
    vocabulary().encode_ordinary(text).len()
}

/// The longest start of `text` that holds at most `limit` tokens, and whether anything was cut.
#[must_use]
pub fn truncate(text: &str, limit: usize) -> (String, bool) {
    let tokens = vocabulary().encode_ordinary(text);
    if tokens.len() <= limit {
        return (text.to_owned(), false);
    }
    // A token may end inside a character, so the cut may have to go back a little.
    let kept = (0..=limit).rev().find_map(|count| vocabulary().decode(tokens[..count].to_vec()).ok());
    (kept.unwrap_or_default(), true)
}

fn vocabulary() -> &'static CoreBPE {
    static VOCABULARY: OnceLock<CoreBPE> = OnceLock::new();
    VOCABULARY.get_or_init(|| tiktoken_rs::o200k_base().expect("the vocabulary is part of the crate"))
}
