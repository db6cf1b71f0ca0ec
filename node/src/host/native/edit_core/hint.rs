//! Why a text was not found in a file: what comes closest to it there. Pure.

use memchr::memmem;

use super::super::text::{self, line_at};

/// Larger files get no comparison, which keeps several copies of the file.
const COMPARED: usize = 4 * 1024 * 1024;

/// A folded text shorter than this is found by chance.
const TELLING: usize = 4;

/// Most characters of a quoted text.
const QUOTED: usize = 240;

/// Sentences on what stands in `raw` instead of `old`, ending in what to do.
pub(super) fn hint(raw: &[u8], old: &str) -> String {
    const AGAIN: &str = "Read the file again and copy the text exactly";
    if raw.is_empty() {
        return "The file is empty; use `write`".to_owned();
    }
    if old.contains('\u{fffd}') && !text::is_utf8_beginning(raw) {
        return "It holds \u{fffd}, which `read` shows for bytes that are not UTF-8; choose a text without it"
            .to_owned();
    }
    if raw.len() > COMPARED {
        return AGAIN.to_owned();
    }
    if old.contains('\r') && memmem::find(raw, old.replace("\r\n", "\n").as_bytes()).is_some() {
        return "It has CRLF line ends (\\r\\n) where the file has LF (\\n); write it with \\n".to_owned();
    }
    let folds: [(&str, Fold); 3] = [
        ("white space (blanks, tabs, line ends)", Fold { case: false, letters: false }),
        ("white space or upper and lower case", Fold { case: true, letters: false }),
        (
            "quotation marks, dashes, accents or other characters beyond ASCII (perhaps another Unicode normalization)",
            Fold { case: false, letters: true },
        ),
    ];
    for (difference, fold) in folds {
        if let Some((start, end)) = fold.find(raw, old.as_bytes()) {
            let (line, there) = (line_at(raw, start), quote(&raw[start..end]));
            return format!("Line {line} differs from it only in {difference}; there stands {there}. {AGAIN}");
        }
    }
    begun(raw, old).unwrap_or_else(|| AGAIN.to_owned())
}

/// For a text whose first lines are in the file but whose others are not.
fn begun(raw: &[u8], old: &str) -> Option<String> {
    let wanted: Vec<&str> = old.lines().map(str::trim).skip_while(|line| line.is_empty()).collect();
    let first = wanted.first().filter(|line| line.len() >= TELLING)?;
    let content = String::from_utf8_lossy(raw);
    let there: Vec<&str> = content.lines().map(str::trim).collect();
    let same = |at: usize| there[at..].iter().zip(&wanted).take_while(|(there, wanted)| there == wanted).count();
    // The earliest of the longest; each line is a start only where the first line is, so this stays near linear.
    let (at, length) = (0..there.len())
        .filter(|at| there[*at] == *first)
        .take(STARTS)
        .map(|at| (at, same(at)))
        .reduce(|best, next| if next.1 > best.1 { next } else { best })?;
    let (at, line) = (at + length, at + length + 1);
    let expected = quote(wanted.get(length)?.as_bytes());
    let found = there.get(at).map_or_else(|| "the end of the file".to_owned(), |line| quote(line.as_bytes()));
    Some(format!(
        "Its beginning stands at line {}, but at line {line} the file has {found} where oldText has {expected}. \
         Read the file again from there",
        line - length
    ))
}

/// Most places where a text may begin that are compared.
const STARTS: usize = 1_000;

fn quote(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// What is left out of both sides of a comparison. White space always is.
#[derive(Clone, Copy)]
struct Fold {
    /// Compare letters of either case as one.
    case: bool,
    /// Leave out quotation marks, dashes, all beyond ASCII, and a letter that carries a combining mark.
    letters: bool,
}

impl Fold {
    /// The first place of `old` in `raw` under this fold, as a range of `raw`.
    fn find(self, raw: &[u8], old: &[u8]) -> Option<(usize, usize)> {
        let (wanted, _) = self.of(old);
        if wanted.len() < TELLING {
            return None;
        }
        let (folded, places) = self.of(raw);
        let at = memmem::find(&folded, &wanted)?;
        Some((places[at], places[at + wanted.len() - 1] + 1))
    }

    /// What is left of `bytes`, and where each byte of it stood.
    fn of(self, bytes: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let (mut folded, mut places) = (Vec::new(), Vec::new());
        for (at, byte) in bytes.iter().copied().enumerate() {
            let next = bytes.get(at + 1).copied().unwrap_or_default();
            // U+00A0 is a blank to people.
            let blank = byte.is_ascii_whitespace()
                || (byte, next) == (0xc2, 0xa0)
                || (byte == 0xa0 && at > 0 && bytes[at - 1] == 0xc2);
            let dropped = match byte {
                0x80.. => true,
                b'"' | b'\'' | b'`' | b'-' => true,
                // The lead bytes of U+0300 to U+036F.
                _ => matches!(next, 0xcc | 0xcd),
            };
            let left_out = blank || (self.letters && dropped);
            if !left_out {
                folded.push(if self.case { byte.to_ascii_lowercase() } else { byte });
                places.push(at);
            }
        }
        (folded, places)
    }
}
