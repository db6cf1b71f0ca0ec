//! The estimate behind [`super::tokens`]: a running count over characters, by class and by the character before. Pure.
//!
//! Not a tokenizer: it knows no word. Costs are what `o200k_base` (ChatGPT's models of today) gives on text of one
//! class, measured on single characters, on runs of one character and on random strings, and rounded up; where a real
//! word is one token and looks no different from a random one, the random one decides.

/// Parts of a token that costs are counted in.
const TOKEN: usize = 20;

/// The estimate of what was pushed so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    /// Cost of all but a space that may still belong to the next word, in parts of a [`TOKEN`].
    spent: usize,
    last: char,
    /// How often `last` stands at the end, saturating.
    repeats: u8,
    /// Digits since the last other character.
    digits: usize,
}

impl Meter {
    pub(super) fn push(&mut self, c: char) {
        if c == self.last && self.repeats > 0 {
            self.repeats = self.repeats.saturating_add(1);
        } else {
            self.repeats = 1;
        }
        self.spent += self.cost(c);
        self.digits = if c.is_ascii_digit() { self.digits + 1 } else { 0 };
        self.last = c;
    }

    /// The estimate in whole tokens.
    pub(super) const fn total(&self) -> usize {
        // A single space is part of the word that follows it; at the end of a text it is a token of its own.
        let open = if self.last == ' ' && self.repeats == 1 { TOKEN } else { 0 };
        (self.spent + open).div_ceil(TOKEN)
    }

    /// What `c` adds; `self.repeats` already counts it, the other fields stand before it.
    fn cost(&self, c: char) -> usize {
        self.space_before(c)
            + match c {
                ' ' => match self.repeats {
                    1 => 0,
                    2 => TOKEN,
                    _ => 1,
                },
                '\t' => [TOKEN, TOKEN, 2][usize::from(self.repeats.min(3)) - 1],
                '\n' if self.repeats > 1 || self.last == '\r' => TOKEN / 2,
                'a'..='z' | 'A'..='Z' => self.letter(c),
                // Three digits are one token, whatever they are.
                '0'..='9' if self.digits.is_multiple_of(3) => TOKEN,
                '0'..='9' => 0,
                '!'..='~' => self.punctuation(c),
                c if c.is_ascii() => TOKEN,
                // Lines of tables, dashes, ellipses, wide blanks.
                '─' | '━' | '═' | '—' | '…' | '\u{3000}' if self.repeats > 4 => TOKEN / 2,
                c => non_ascii(c),
            }
    }

    /// What a single space before `c` costs now that it is known not to start a word.
    fn space_before(&self, c: char) -> usize {
        if self.last != ' ' || c == ' ' {
            return 0;
        }
        match c {
            // Of several spaces the last stands alone before a digit, the others are one token.
            '0'..='9' => TOKEN,
            '!'..='~' => 0,
            c if !c.is_ascii() && non_ascii(c) == COMMON_LETTER => 0,
            _ if self.repeats == 1 => TOKEN,
            _ => 0,
        }
    }

    fn letter(&self, c: char) -> usize {
        let before = self.last;
        if self.repeats > 4 {
            let is_cheap =
                matches!(c, 'a'..='f' | 'h' | 'i' | 'k'..='m' | 'o' | 'r' | 's' | 'v' | 'x' | 'y' | 'A' | 'F' | 'X');
            return if is_cheap { 6 } else { 11 };
        }
        match (before, c) {
            ('a'..='z', 'a'..='z') if seldom_split(before, c) => 5,
            ('a'..='z', 'a'..='z') => 17,
            ('A'..='Z', 'a'..='z') => 13,
            ('A'..='Z', 'A'..='Z') => 14,
            _ => TOKEN,
        }
    }

    fn punctuation(&self, c: char) -> usize {
        match self.repeats {
            5.. if matches!(c, '#' | '%' | '*' | '+' | '-' | '.' | '/' | '=' | '_' | '~') => 3,
            3.. => 11,
            _ if self.last.is_ascii_punctuation() => 17,
            _ => TOKEN,
        }
    }
}

/// Cost of a letter of a script whose common letters are one token each.
const COMMON_LETTER: usize = 24;

/// What a character outside ASCII costs on its own. One byte is never more than one token.
const fn non_ascii(c: char) -> usize {
    match c as u32 {
        // Western European, Greek, Russian, Hebrew, Arabic.
        0xC0..=0xFF | 0x3B1..=0x3CE | 0x410..=0x451 | 0x5D0..=0x5EA | 0x621..=0x64A => COMMON_LETTER,
        ..0x800 => 2 * TOKEN,
        // Dashes, quotes, bullets, ellipsis.
        0x2010..=0x2027 => 30,
        // Kana.
        0x3041..=0x30FF => 30,
        // Thai; arrows, mathematics, boxes, shapes, dingbats; CJK punctuation and Han; full-width forms.
        0xE00..=0xE7F | 0x2190..=0x22FF | 0x2500..=0x27BF | 0x3000..=0x303F | 0x4E00..=0x9FFF | 0xFF00..=0xFFEF => 44,
        // Hangul.
        0xAC00..=0xD7A3 => 50,
        // Emoji.
        ..0x10000 | 0x1F300..=0x1FAFF => 3 * TOKEN,
        _ => 4 * TOKEN,
    }
}

/// For each letter, which letters may follow it with less than 45 in 100 chances that the tokenizer splits the two,
/// measured on 30,000 random words: bit 0 is `a`. Such pairs make up five in six of the pairs of English and of code.
const SELDOM_SPLIT: [u32; 26] = [
    0x3febeee, 0x102489b, 0x30e7c9e, 0x112413b, 0x3eebc6e, 0x8e6978, 0x10a68d2, 0x10a6811, 0x3aefeff, 0x142211,
    0x15e6e91, 0x1084919, 0x10cd95b, 0x10c41db, 0x1febeee, 0x18ec895, 0x110800, 0x1024111, 0x12cdcd4, 0x10e4090,
    0x3eebefe, 0x10e5111, 0x1c62099, 0x1880020, 0x6b818, 0x3482591,
];

/// Whether the lower-case letters `a` and `b`, one after the other, are mostly in one token.
fn seldom_split(a: char, b: char) -> bool {
    let index = |c: char| (c as usize).wrapping_sub('a' as usize);
    SELDOM_SPLIT.get(index(a)).is_some_and(|followers| followers >> index(b) & 1 == 1)
}
