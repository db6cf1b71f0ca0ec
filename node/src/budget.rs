//! How much text an answer may hold (design section 10): at most 9,000 tokens by a pessimistic estimate and 24 KiB,
//! counting `content` and `structuredContent` together, so that ChatGPT's cut at 10,000 tokens never bites. Pure.
//!
//! Not a tokenizer: [`tokens`] never looks a word up, it bounds what one would count from above.

mod meter;

use meter::Meter;

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
        let limit = floor_boundary(text, self.bytes);
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
        let begin = ceil_boundary(text, text.len().saturating_sub(self.bytes));
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

/// Cutting a run of one class in two can cost this many tokens more than the whole run did (a long repeat begun anew).
const SPLIT_COST: usize = 4;

/// The last character boundary at or before `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// The first character boundary at or after `at`.
fn ceil_boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: TextBudget = TextBudget { bytes: 40, tokens: 12 };

    /// Texts of every class that the estimate tells apart.
    fn samples() -> Vec<String> {
        let mixed = "fn main() {\r\n\tlet naïve = \"价格 – 12345\"; // 👍🏽 ok\n}\n\n".repeat(40);
        let mut samples = vec![String::new(), "x".repeat(30_000), "\u{0}é\n".repeat(500), mixed];
        for piece in ["word ", "0123456789", "    \n", "ABCdef_", "----", "汉字かな", "🦀", "\u{10ffff}", " ", "\t\tx"]
        {
            samples.push(piece.repeat(3_000));
        }
        samples
    }

    #[test]
    fn a_text_inside_the_budget_is_kept_whole() {
        for text in ["", "one\ntwo\n", " ", "a b c 1 2 3 "] {
            assert!(TextBudget::WHOLE.fits(text));
            assert_eq!(TextBudget::WHOLE.head(text), text);
            assert_eq!(TextBudget::WHOLE.tail(text), text);
        }
    }

    #[test]
    fn head_and_tail_fit_and_are_a_beginning_and_an_end() {
        let spent = TextBudget { bytes: 0, tokens: 0 };
        for text in samples() {
            for budget in [spent, SMALL, TextBudget::WHOLE, TextBudget { bytes: 5_000, tokens: 100 }] {
                let (head, tail) = (budget.head(&text), budget.tail(&text));
                assert!(budget.fits(head) && text.starts_with(head), "head of {:?}", text.get(..9));
                assert!(budget.fits(tail) && text.ends_with(tail), "tail of {:?}", text.get(..9));
            }
        }
    }

    #[test]
    fn a_cut_takes_most_of_the_allowance_and_prefers_line_ends() {
        let lines = "some words of a line\n".repeat(1_000);
        let (head, tail) = (TextBudget::WHOLE.head(&lines), TextBudget::WHOLE.tail(&lines));
        assert!(head.ends_with("line\n") && tail.starts_with("some"));
        assert!(head.len() > 6_000 && tail.len() > 6_000, "{} and {}", head.len(), tail.len());
        let one_line = format!("a\n{}", "b c ".repeat(9_000));
        assert!(TextBudget::WHOLE.head(&one_line).len() > 4_000, "a line end far from the cut is not used");
    }

    #[test]
    fn a_page_of_one_repeated_letter_holds_eleven_kib() {
        let text = "x".repeat(200_000);
        assert!(TextBudget::WHOLE.head(&text).len() >= 11 * 1024);
        assert!(TextBudget::WHOLE.tail(&text).len() >= 11 * 1024);
    }

    #[test]
    fn the_estimate_of_two_texts_bounds_that_of_both_together() {
        for text in samples() {
            let mut cut = text.len() / 3;
            while !text.is_char_boundary(cut) {
                cut += 1;
            }
            let (left, right) = text.split_at(cut);
            assert!(tokens(&text) <= tokens(left) + tokens(right) + 1);
            assert!(tokens(left) <= tokens(&text) + 1);
        }
    }

    #[test]
    fn allowances_are_spent_and_shared_without_going_below_zero() {
        let left = SMALL.minus("twelve bytes");
        assert_eq!(left.bytes, 28);
        assert!(left.tokens < SMALL.tokens);
        assert!(SMALL.minus(&"x ".repeat(100)).is_spent());
        assert_eq!(SMALL.share(0), SMALL);
        assert_eq!(SMALL.share(4), TextBudget { bytes: 10, tokens: 3 });
        assert!(SMALL.share(128).is_spent());
    }

    #[test]
    fn no_character_costs_nothing_for_ever_and_none_costs_more_than_its_bytes() {
        for c in ('\u{0}'..='\u{3ffff}').step_by(61) {
            let alone = tokens(c.encode_utf8(&mut [0; 4]));
            assert!(alone >= 1 && alone <= c.len_utf8().max(1), "{c:?} costs {alone}");
            assert!(tokens(&c.to_string().repeat(400)) >= 9, "400 of {c:?}");
        }
    }
}
