//! The skills a native session offers: folders with a `SKILL.md` whose front matter names and describes them. Their text
//! is read by the model itself, when it wants it.

use std::{fs, io::Read, path::Path};

use crate::host::{Skill, native::paths};

/// Most skills shown: the list is part of the answer to `init`.
const SKILLS_MAX: usize = 64;

/// Where the front matter must be; the rest of the file is for the model.
const FRONT_BYTES: u64 = 8 * 1024;

/// One line of a catalogue.
const DESCRIPTION_CHARS_MAX: usize = 300;

/// The skills in `folders`, by name; of two with one name the first folder's counts.
#[must_use]
pub(super) fn find(folders: &[&Path]) -> Vec<Skill> {
    let mut skills: Vec<Skill> = Vec::new();
    for folder in folders {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let mut found: Vec<Skill> = entries.flatten().filter_map(|entry| skill(&entry.path())).collect();
        found.retain(|skill| skills.iter().all(|known| known.name != skill.name));
        skills.extend(found);
    }
    skills.sort_by(|a, b| (&a.name, &a.source).cmp(&(&b.name, &b.source)));
    skills.truncate(SKILLS_MAX);
    skills
}

fn skill(folder: &Path) -> Option<Skill> {
    let source = folder.join("SKILL.md");
    let (file, _) = paths::open(&source).ok()?;
    let mut text = Vec::new();
    file.take(FRONT_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let front = front_matter(&text);
    let name = value(front, "name").or_else(|| folder.file_name().map(|name| name.to_string_lossy().into_owned()))?;
    Some(Skill { name, description: value(front, "description"), source })
}

/// The lines between the two `---`; none without both.
fn front_matter(text: &str) -> &str {
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(body) = body.strip_prefix("---").and_then(|rest| rest.trim_start_matches([' ', '\r']).strip_prefix('\n'))
    else {
        return "";
    };
    body.find("\n---").map_or("", |end| &body[..end])
}

/// The first line of the value of `key`: plain, quoted, or a block (`>` or `|`). Nested keys do not count.
fn value(front: &str, key: &str) -> Option<String> {
    let mut lines = front.lines();
    let first = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim();
    let text = if first.is_empty() || first.starts_with(['>', '|']) {
        lines.next().filter(|line| line.starts_with([' ', '\t']))?.trim()
    } else {
        first
    };
    let quoted = ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    let text: String = quoted.unwrap_or(text).chars().filter(|c| !c.is_control()).take(DESCRIPTION_CHARS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        fs::create_dir_all(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("SKILL.md"), text).unwrap();
    }

    #[test]
    fn skills_are_named_and_described_by_their_front_matter() {
        let (own, node) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(own.path(), "b", "---\nname: deploy\ndescription: \"Ship it: safely\"\n---\n# Deploy\n");
        write(own.path(), "plain", "# No front matter\n");
        write(own.path(), "block", "---\r\ndescription: >\r\n  Folded text\r\n  goes on\r\n---\r\n");
        write(node.path(), "deploy", "---\ndescription: hidden by the other\n---\n");
        write(node.path(), "node", "---\nmetadata:\n  description: nested\ndescription: Real\n---\n");
        fs::create_dir(own.path().join("empty")).unwrap();
        rustix::fs::mkdir(own.path().join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, own.path().join("pipe/SKILL.md"), rustix::fs::Mode::RWXU).unwrap();
        let found = find(&[own.path(), node.path(), Path::new("/no/such/folder")]);
        let found: Vec<_> = found.iter().map(|s| (s.name.as_str(), s.description.as_deref())).collect();
        let wanted = [
            ("block", Some("Folded text")),
            ("deploy", Some("Ship it: safely")),
            ("node", Some("Real")),
            ("plain", None),
        ];
        assert_eq!(found, wanted);
    }
}
