//! How much text an answer may hold (design section 10): at most 9,000 tokens by a pessimistic estimate and 24 KiB,
//! counting `content` and `structuredContent` together, so that ChatGPT's cut at 10,000 tokens never bites. Pure.
//!
//! Not a tokenizer: [`tokens`] never looks a word up, it bounds what one would count from above.

/// An allowance of text for one copy. An answer carries its text twice, so one copy gets half of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextBudget {
    /// UTF-8 bytes.
    pub bytes: usize,
    /// Estimated tokens, see [`tokens`].
    pub tokens: usize,
}

impl TextBudget {
    /// One copy of an answer's whole text: half of 24 KiB and half of 9,000 tokens, because `content` and
    /// `structuredContent.text` both carry it.
    pub const WHOLE: Self = Self { bytes: 24 * 1024 / 2, tokens: 9_000 / 2 };

    /// Whether `text` stays inside both limits.
    #[must_use]
    pub fn fits(&self, text: &str) -> bool {
        text.len() <= self.bytes && tokens(text) <= self.tokens
    }

    /// The longest beginning of `text` that fits: cut after a line end when the last quarter has one, else between
    /// two characters.
    #[must_use]
    pub fn head<'a>(&self, text: &'a str) -> &'a str {
        let limit = text.floor_char_boundary(self.bytes);
        let mut meter = Meter::default();
        let mut end = limit;
        for (at, c) in text[..limit].char_indices() {
            meter.push(c);
            if meter.total() > self.tokens {
                end = at;
                break;
            }
        }
        if end == text.len() {
            return text;
        }
        match text[..end].rfind('\n') {
            Some(newline) if newline >= end - end / LINE_END_SHARE => &text[..=newline],
            _ => &text[..end],
        }
    }

    /// The longest end of `text` that fits: begun after a line end when its first quarter has one, else between two
    /// characters.
    #[must_use]
    pub fn tail<'a>(&self, text: &'a str) -> &'a str {
        let begin = text.ceil_char_boundary(text.len().saturating_sub(self.bytes));
        let start = begin + self.excess(&text[begin..]);
        if start == 0 {
            return text;
        }
        let kept = &text[start..];
        match kept.find('\n') {
            _ if text[..start].ends_with('\n') => kept,
            Some(newline) if newline < kept.len() / LINE_END_SHARE => &kept[newline + 1..],
            _ => kept,
        }
    }

    /// What is left after `text` was spent; never below zero.
    #[must_use]
    pub fn minus(self, text: &str) -> Self {
        Self { bytes: self.bytes.saturating_sub(text.len()), tokens: self.tokens.saturating_sub(tokens(text)) }
    }

    /// An equal part for each of `members`; the whole for none or one.
    #[must_use]
    pub fn share(self, members: usize) -> Self {
        let parts = members.max(1);
        Self { bytes: self.bytes / parts, tokens: self.tokens / parts }
    }

    /// Whether nothing more can be said.
    #[must_use]
    pub const fn is_spent(&self) -> bool {
        self.bytes == 0 || self.tokens == 0
    }

    /// How many leading bytes of `text` must go so that the rest keeps to the token limit.
    fn excess(&self, text: &str) -> usize {
        let total = tokens(text);
        if total <= self.tokens {
            return 0;
        }
        let surplus = total - self.tokens + SPLIT_COST;
        let mut meter = Meter::default();
        for (at, c) in text.char_indices() {
            if meter.total() >= surplus {
                return at;
            }
            meter.push(c);
        }
        text.len()
    }
}

/// A cut looks for a line end in this part (one over it) of the text it keeps.
const LINE_END_SHARE: usize = 4;

/// Cutting a run of one class in two can cost this many tokens more than the whole run did.
const SPLIT_COST: usize = 2;

/// A count of tokens that the tokenizer of today's ChatGPT models (`o200k_base`) does not exceed on real text, found by
/// looking at runs of characters of one class. `tests` compares it with the tokenizer itself.
#[must_use]
pub fn tokens(text: &str) -> usize {
    let mut meter = Meter::default();
    for c in text.chars() {
        meter.push(c);
    }
    meter.total()
}

/// The estimate of what was pushed so far. It never falls as more is pushed.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// Cost of finished runs, in tokens.
    done: usize,
    /// Cost of the run that may still grow, in units of [`UNIT`] per token.
    run: usize,
    class: Class,
}

/// Fractions of a token that a run counts in.
const UNIT: usize = 6;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Class {
    #[default]
    None,
    Lower,
    Upper,
    Digit,
    Space,
    Repeat(char),
}

impl Meter {
    fn push(&mut self, c: char) {
        let (class, cost) = match c {
            'a'..='z' => (Class::Lower, 3),
            'A'..='Z' => (Class::Upper, 4),
            '0'..='9' => (Class::Digit, 2),
            ' ' | '\t' => (Class::Space, 2),
            c if c.is_ascii() => (Class::Repeat(c), UNIT),
            c => (Class::Repeat(c), UNIT * c.len_utf8()),
        };
        if class == self.class {
            self.run += cost;
        } else {
            self.done += self.run.div_ceil(UNIT);
            self.run = cost;
            self.class = class;
        }
    }

    const fn total(&self) -> usize {
        self.done + self.run.div_ceil(UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_inside_the_budget_is_kept_whole() {
        let text = "one\ntwo\n";
        assert!(TextBudget::WHOLE.fits(text));
        assert_eq!(TextBudget::WHOLE.head(text), text);
        assert_eq!(TextBudget::WHOLE.tail(text), text);
        assert_eq!(TextBudget::WHOLE.head(""), "");
        assert_eq!(TextBudget::WHOLE.tail(""), "");
    }
}
