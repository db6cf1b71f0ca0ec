//! Asking a person before something that cannot be taken back. A script has decided already, so only a terminal is asked.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use super::{Failure, print};

/// A yes and its line end, with room for what is none.
const ANSWER_BYTES_MAX: u64 = 256;

/// Whether a person is there to be asked.
pub(super) fn is_needed(yes: bool) -> bool {
    !yes && io::stdin().is_terminal()
}

/// Asks; anything but a yes is a no, and a no is a failure in which nothing was changed.
pub(super) fn ask(question: &str) -> Result<(), Failure> {
    let _ = write!(io::stderr(), "{} [y/N] ", print::harmless(question));
    answered(io::stdin().lock())
}

/// Asks for a word to be typed whole; anything else is a no.
pub(super) fn ask_word(question: &str, word: &str) -> Result<(), Failure> {
    let _ = write!(io::stderr(), "{}\nType {word} to go on: ", print::harmless(question));
    typed(io::stdin().lock(), word)
}

fn typed(input: impl io::BufRead, word: &str) -> Result<(), Failure> {
    let mut answer = String::new();
    let read = input.take(ANSWER_BYTES_MAX).read_line(&mut answer);
    if read.is_ok() && answer.trim() == word { Ok(()) } else { Err(declined()) }
}

fn declined() -> Failure {
    Failure::Failed("not confirmed; nothing was changed".to_owned())
}

fn answered(input: impl io::BufRead) -> Result<(), Failure> {
    let mut answer = String::new();
    let read = input.take(ANSWER_BYTES_MAX).read_line(&mut answer);
    let yes = read.is_ok() && ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str());
    if yes { Ok(()) } else { Err(declined()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_word_is_the_word() {
        assert!(typed(&b" recover\r\n"[..], "recover").is_ok());
        for no in ["", "\n", "y\n", "yes\n", "Recover\n", "recover it\n"] {
            let error = typed(no.as_bytes(), "recover").unwrap_err().to_string();
            assert!(error.contains("nothing was changed"), "{error}");
        }
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        for yes in ["y\n", "Yes\n", " YES \r\n", "y"] {
            assert!(answered(yes.as_bytes()).is_ok(), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "yess\n", "no\nyes\n", "\u{ff}y\n"] {
            let error = answered(no.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("nothing was changed"), "{error}");
        }
        assert!(answered(&[0xff, b'\n'][..]).is_err());
        let endless = io::BufReader::new(io::repeat(b' '));
        assert!(answered(endless).is_err(), "and it does not read for ever");
    }
}
