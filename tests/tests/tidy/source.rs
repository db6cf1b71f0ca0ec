//! Rust as tokens with line numbers: comments gone, strings emptied, test code marked.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A word: identifier, keyword or number.
    Word,
    /// One character of punctuation.
    Mark,
    /// A string, character or lifetime; its text is not kept.
    Literal,
}

/// One token.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
    /// Whether it stands in an item under `#[cfg(test)]` or in a function under a test attribute.
    pub(crate) test: bool,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kind != Kind::Literal && self.text == text
    }
}

/// One file.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// From the root of the tree, with `/`.
    pub(crate) path: String,
    /// As it is on disk.
    pub(crate) text: String,
    /// In order.
    pub(crate) tokens: Vec<Token>,
}

impl Source {
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let mut tokens = tokens(text);
        mark_tests(&mut tokens, path.starts_with("tests/") || path.ends_with("/tests.rs") || path.contains("/tests/"));
        Self { path: path.to_owned(), text: text.to_owned(), tokens }
    }

    /// The `//!` lines at the top, as one text.
    pub(crate) fn header(&self) -> String {
        let lines = self.text.lines().take_while(|line| line.starts_with("//!"));
        lines.map(|line| line.trim_start_matches("//!").trim()).collect::<Vec<_>>().join(" ")
    }

    /// Whether `text`, a run of tokens written with blanks between them, stands at `at`.
    pub(crate) fn stands(&self, at: usize, text: &str) -> bool {
        text.split(' ').enumerate().all(|(n, word)| self.tokens.get(at + n).is_some_and(|token| token.is(word)))
    }

    /// Index of the bracket that closes the one at `open`; the last token when none does.
    pub(crate) fn closing(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for (at, token) in self.tokens.iter().enumerate().skip(open) {
            if ["{", "(", "["].iter().any(|mark| token.is(mark)) {
                depth += 1;
            } else if ["}", ")", "]"].iter().any(|mark| token.is(mark)) {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
        }
        self.tokens.len() - 1
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let (kind, end) = next(&chars, at);
        let piece = &chars[at..end];
        if let Some(kind) = kind {
            let text = if kind == Kind::Literal { String::new() } else { piece.iter().collect() };
            found.push(Token { kind, text, line, test: false });
        }
        line += piece.iter().filter(|c| **c == '\n').count();
        at = end;
    }
    found
}

/// What stands at `at`, and where it ends. Blanks and comments are nothing.
fn next(chars: &[char], at: usize) -> (Option<Kind>, usize) {
    let rest = &chars[at..];
    let word = |c: &char| c.is_alphanumeric() || *c == '_';
    match rest {
        ['/', '/', ..] => (None, at + rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())),
        ['/', '*', ..] => (None, at + block_comment(rest)),
        ['r', '#', c, ..] if word(c) => (Some(Kind::Word), at + 2 + rest[2..].iter().take_while(|c| word(c)).count()),
        ['r', '"' | '#', ..] => (Some(Kind::Literal), at + raw_string(rest, 1)),
        ['b' | 'c', 'r', '"' | '#', ..] => (Some(Kind::Literal), at + raw_string(rest, 2)),
        ['"', ..] => (Some(Kind::Literal), at + quoted(rest, 1, '"')),
        ['b' | 'c', '"', ..] => (Some(Kind::Literal), at + quoted(rest, 2, '"')),
        ['b', '\'', ..] => (Some(Kind::Literal), at + quoted(rest, 2, '\'')),
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => (Some(Kind::Literal), at + quoted(rest, 1, '\'')),
        ['\'', ..] => (Some(Kind::Literal), at + 1 + rest[1..].iter().take_while(|c| word(c)).count()),
        [c, ..] if c.is_whitespace() => (None, at + 1),
        [c, ..] if word(c) => (Some(Kind::Word), at + rest.iter().take_while(|c| word(c)).count()),
        _ => (Some(Kind::Mark), at + 1),
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at + 1 < rest.len() {
        match (rest[at], rest[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length of a raw string whose hashes begin at `start`.
fn raw_string(rest: &[char], start: usize) -> usize {
    let hashes = rest[start..].iter().take_while(|c| **c == '#').count();
    let mut at = start + hashes + 1;
    while at < rest.len() {
        if rest[at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    rest.len()
}

/// Length of a literal whose inside begins at `start` and ends at `quote`.
fn quoted(rest: &[char], start: usize, quote: char) -> usize {
    let mut at = start;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Marks what is test code: everything when `all`, else the items under `#[cfg(test)]`.
fn mark_tests(tokens: &mut [Token], all: bool) {
    if all {
        tokens.iter_mut().for_each(|token| token.test = true);
        return;
    }
    let shape = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut at = 0;
    while at + shape.len() < tokens.len() {
        if !shape.iter().enumerate().all(|(n, text)| tokens[at + n].is(text)) {
            at += 1;
            continue;
        }
        let end = item_end(tokens, at + shape.len());
        tokens[at..end].iter_mut().for_each(|token| token.test = true);
        at = end;
    }
}

/// Where the item that begins at `at` ends: after its `;`, or after the bracket that closes its first brace.
fn item_end(tokens: &[Token], at: usize) -> usize {
    let (mut depth, mut at) = (0_usize, at);
    while at < tokens.len() {
        if ["{", "(", "["].iter().any(|mark| tokens[at].is(mark)) {
            depth += 1;
        } else if ["}", ")", "]"].iter().any(|mark| tokens[at].is(mark)) {
            depth = depth.saturating_sub(1);
            if depth == 0 && tokens[at].is("}") {
                return at + 1;
            }
        } else if depth == 0 && tokens[at].is(";") {
            return at + 1;
        }
        at += 1;
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(String, usize)> {
        let source = Source::parse("node/src/x.rs", text);
        source.tokens.into_iter().filter(|t| t.kind == Kind::Word).map(|t| (t.text, t.line)).collect()
    }

    #[test]
    fn comments_and_strings_hide_what_is_in_them_and_lines_stay_right() {
        let text =
            "a // b\n/* c /* d */ e */ f \"g \\\" h\n\" i 'j' k\n'\\'' l r#\"m \" n\"# o b\"p\" q br##\"r\"# \"## s";
        let expected = [("a", 1), ("f", 2), ("i", 3), ("k", 3), ("l", 4), ("o", 4), ("q", 4), ("s", 4)]
            .map(|(w, n)| (w.to_owned(), n));
        assert_eq!(words(text), expected);
    }

    #[test]
    fn a_lifetime_is_no_open_quote_and_a_raw_word_is_a_word() {
        let found: Vec<String> =
            words("fn f<'a>(x: &'a str) -> &'static str { r#type }").into_iter().map(|w| w.0).collect();
        assert_eq!(found, ["fn", "f", "x", "str", "str", "r#type"]);
    }

    #[test]
    fn test_items_are_marked_to_their_end_and_no_further() {
        let text =
            "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { if x { y } } }\nfn c() {}\n#[cfg(test)]\nuse d;\nfn e() {}";
        let source = Source::parse("node/src/x.rs", text);
        let test = |word: &str| source.tokens.iter().find(|token| token.is(word)).is_some_and(|token| token.test);
        assert_eq!(["a", "b", "y", "c", "d", "e"].map(test), [false, true, true, false, true, false]);
        assert!(Source::parse("tests/tests/x.rs", "fn a() {}").tokens.iter().all(|token| token.test));
    }
}
