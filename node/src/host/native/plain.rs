//! What a program wrote, as text for the model: colour and cursor sequences gone, bytes outside UTF-8 and control
//! characters made visible. Pure. The full output on disk keeps the raw bytes.
//!
//! Not a terminal: nothing is moved and nothing is overwritten, so every state of a progress line is there. A carriage
//! return on its own breaks the line for the reader, but line numbers stay those of the raw file, where only `\n`
//! counts: [`plain`] keeps such a return until all that counts or cuts lines is done, then [`broken`] makes it a line
//! break.

/// `raw` as text with as many `\n` as it has. A `\r` left in it was on its own: see [`broken`].
#[must_use]
pub(super) fn plain(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    let mut page = Page { out: String::with_capacity(text.len()), returns: 0 };
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            ESCAPE => rest = after_escape(rest),
            '\u{9b}' => rest = after_control_sequence(rest),
            c => page.put(c),
        }
    }
    page.put_returns();
    page.out
}

/// What the model sees of a text that [`plain`] made, no longer than it: each carriage return is a line break.
#[must_use]
pub(super) fn broken(plain: String) -> String {
    if plain.contains('\r') { plain.replace('\r', "\n") } else { plain }
}

/// What ends a line on the reader's page.
pub(super) const LINE_BREAKS: [char; 2] = ['\n', '\r'];

/// One line of a file: nothing is dropped, every control character is visible.
#[must_use]
pub(super) fn visible_line(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw).chars().map(visible).collect()
}

const ESCAPE: char = '\u{1b}';
const BELL: char = '\u{7}';
const BACKSPACE: char = '\u{8}';

struct Page {
    out: String,
    /// Carriage returns since the last text; a `\n` next makes them part of its line end.
    returns: usize,
}

impl Page {
    fn put(&mut self, c: char) {
        match c {
            '\n' => {
                self.returns = 0;
                self.out.push('\n');
            }
            '\r' => self.returns += 1,
            BELL | BACKSPACE => {}
            c => {
                self.put_returns();
                self.out.push(visible(c));
            }
        }
    }

    fn put_returns(&mut self) {
        self.out.extend(std::iter::repeat_n('\r', std::mem::take(&mut self.returns)));
    }
}

/// Control characters as their pictures (U+2400 and on), so that they neither vanish nor break a client's JSON.
fn visible(c: char) -> char {
    match u32::from(c) {
        0x09 => c,
        code @ 0..0x20 => char::from_u32(0x2400 + code).unwrap_or(char::REPLACEMENT_CHARACTER),
        0x7f => '\u{2421}',
        0x80..0xa0 => char::REPLACEMENT_CHARACTER,
        _ => c,
    }
}

/// What follows an escape sequence whose ESC was just taken (ECMA-48).
fn after_escape(mut rest: std::str::Chars<'_>) -> std::str::Chars<'_> {
    let sequence = rest.clone();
    match rest.next() {
        Some('[') => after_control_sequence(rest),
        Some(']' | 'P' | 'X' | '^' | '_') => after_string(rest),
        // Intermediates, then one final character: character sets and the like.
        Some('\u{20}'..='\u{2f}') => {
            let intermediates = rest.as_str().trim_start_matches(|c| matches!(c, '\u{20}'..='\u{2f}'));
            after_final(intermediates, '\u{30}')
        }
        Some('\u{30}'..='\u{7e}') => rest,
        _ => sequence,
    }
}

/// Parameters and intermediates up to the final character. Anything else ends a malformed sequence and is kept.
fn after_control_sequence(rest: std::str::Chars<'_>) -> std::str::Chars<'_> {
    let parameters = rest.as_str().trim_start_matches(|c| matches!(c, '\u{20}'..='\u{3f}'));
    after_final(parameters, '\u{40}')
}

/// Without the final character, `from` to `~`, when it is one.
fn after_final(text: &str, from: char) -> std::str::Chars<'_> {
    let mut rest = text.chars();
    match rest.next() {
        Some(last) if (from..='\u{7e}').contains(&last) => rest,
        _ => text.chars(),
    }
}

/// Up to BEL or `ESC \`. One that is not closed on its line was no such string: only its introducer goes.
fn after_string(rest: std::str::Chars<'_>) -> std::str::Chars<'_> {
    let text = rest.as_str();
    match text.find([BELL, ESCAPE, '\n']) {
        Some(at) if text[at..].starts_with(BELL) => text[at + 1..].chars(),
        Some(at) if text[at..].starts_with("\u{1b}\\") => text[at + 2..].chars(),
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_titles_and_character_sets_are_gone() {
        assert_eq!(
            plain(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b(B\x1b=!"),
            "red xlink!"
        );
        assert_eq!(plain("\u{9b}31mred".as_bytes()), "red");
    }

    #[test]
    fn a_lone_carriage_return_breaks_the_line_and_nothing_vanishes() {
        let seen = |raw: &[u8]| broken(plain(raw));
        assert_eq!(seen(b"name=alice\rrole\n"), "name=alice\nrole\n");
        assert_eq!(seen(b"one\r\rtwo\rthree\n"), "one\n\ntwo\nthree\n");
        assert_eq!(seen(b"10%\r50%\r\x1b[K100%\r\ndone\r\n"), "10%\n50%\n100%\ndone\n");
        assert_eq!(seen(b"99%\r"), "99%\n");
        assert_eq!(seen(b"a\r\r\nb\r\x1b[0m\nc"), "a\nb\nc");
        assert_eq!(seen(b"a\x08b\n\x08x"), "ab\nx");
        assert_eq!(plain(b"a\rb\r\nc"), "a\rb\nc", "numbers are those of the raw file");
    }

    #[test]
    fn bytes_outside_utf8_and_control_characters_are_visible() {
        assert_eq!(plain(b"a\0b\xffc\x7f\td\x07"), "a\u{2400}b\u{fffd}c\u{2421}\td");
    }

    #[test]
    fn malformed_sequences_swallow_nothing_but_themselves() {
        assert_eq!(plain(b"a\x1b"), "a");
        assert_eq!(plain(b"a\x1b\nb"), "a\nb");
        assert_eq!(plain(b"a\x1b[31\nb"), "a\nb");
        assert_eq!(plain(b"a\x1b]0;never closed\nb\x07"), "a0;never closed\nb");
        assert_eq!(plain("\u{1b}[é".as_bytes()), "é");
    }

    #[test]
    fn no_byte_string_changes_the_number_of_line_ends() {
        const ALPHABET: &[u8] = b"\x1b[]()PX0;m\r\n\x08\x07 a\\\xc3\xa9\x9b\xff";
        let mut state = 0x2545_f491_u32;
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ALPHABET[(state >> 16) as usize % ALPHABET.len()]
                })
                .collect();
            let lines = bytes.iter().filter(|b| **b == b'\n').count();
            assert_eq!(plain(&bytes).matches('\n').count(), lines, "{bytes:?}");
        }
    }
}
