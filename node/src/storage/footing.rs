//! Whether a home is the one that its stores were last written in, or a copy (failure rule F15): by the marks of the files,
//! and by a sign, an empty file that each start makes anew. A store that is overwritten in its place keeps its mark; the sign
//! that it speaks of is then gone, or was made again.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    medium::{Mark, Medium, is_copy, make_private},
    node,
};

/// What the name of a sign begins with.
const SIGN: &str = "start-";

/// In which files a start was written down; a row of `node.redb`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footing {
    store: Option<Mark>,
    sign: Option<(String, Mark)>,
}

impl Footing {
    /// That of a start that begins, with a new sign; `nonce` names it. To be kept in the store, and then to be settled with
    /// [`Footing::settle`]. On a file system without marks it says nothing, and on a full disk it has no sign.
    #[must_use]
    pub fn take(medium: &Medium, nonce: &[u8; 16]) -> Self {
        let store = medium.mark(node::FILE);
        let sign = medium.folder().filter(|_| store.is_some()).and_then(|home| {
            let name: String = nonce[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            let name = format!("{SIGN}{name}");
            let made = make_private(&home.join(&name));
            if let Err(error) = &made {
                tracing::debug!(%error, "this start has no sign in its home folder");
            }
            made.ok().and_then(|()| Some((medium.mark(&name)?, name))).map(|(mark, name)| (name, mark))
        });
        Self { store, sign }
    }

    /// Whether the home is another one now: its files are copies of those that this was written in.
    #[must_use]
    pub fn is_left(&self, medium: &Medium) -> bool {
        let sign = self.sign.as_ref().is_some_and(|(name, mark)| medium.mark(name) != Some(*mark));
        is_copy(self.store, medium.mark(node::FILE)) || sign
    }

    /// Removes the signs of earlier starts. One that stays does no harm.
    pub fn settle(&self, medium: &Medium) {
        let Some(home) = medium.folder() else { return };
        if let Err(error) = self.sweep(home) {
            tracing::debug!(%error, "signs of earlier starts stay");
        }
    }

    fn sweep(&self, home: &Path) -> io::Result<()> {
        let own = self.sign.as_ref().map(|(name, _)| name.as_str());
        for entry in fs::read_dir(home)? {
            let name = entry?.file_name();
            if let Some(name) = name.to_str()
                && name.starts_with(SIGN)
                && Some(name) != own
            {
                fs::remove_file(home.join(name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::faulty::FaultyDisks;

    fn home() -> (tempfile::TempDir, Medium) {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(node::FILE), "1").unwrap();
        let medium = Medium::Folder(home.path().to_owned());
        (home, medium)
    }

    fn signs(home: &Path) -> usize {
        let names = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(SIGN)).count()
    }

    #[test]
    fn a_home_stays_the_same_however_often_it_is_used_and_moved() {
        let (home, medium) = home();
        let first = Footing::take(&medium, &[1; 16]);
        fs::write(home.path().join(node::FILE), "2").unwrap();
        assert!(!first.is_left(&medium));
        let second = Footing::take(&medium, &[2; 16]);
        assert!(!first.is_left(&medium), "the second start was cut off before it was written down");
        second.settle(&medium);
        assert_eq!(signs(home.path()), 1);
        assert!(!second.is_left(&medium) && first.is_left(&medium));
        let moved = home.path().join("moved");
        fs::create_dir(&moved).unwrap();
        for name in [node::FILE, &second.sign.clone().unwrap().0] {
            fs::rename(home.path().join(name), moved.join(name)).unwrap();
        }
        assert!(!second.is_left(&Medium::Folder(moved)));
    }

    #[test]
    fn f15_a_store_that_was_overwritten_in_its_place_by_one_of_an_earlier_start_is_a_copy() {
        let (home, medium) = home();
        let first = Footing::take(&medium, &[1; 16]);
        let sign = home.path().join(&first.sign.as_ref().unwrap().0);
        let second = Footing::take(&medium, &[2; 16]);
        second.settle(&medium);
        fs::write(home.path().join(node::FILE), "1").unwrap();
        assert!(first.is_left(&medium), "its sign is gone");
        fs::write(sign, "").unwrap();
        assert!(first.is_left(&medium), "its sign was put back too");
    }

    #[test]
    fn where_files_have_no_marks_nothing_is_a_copy() {
        let medium = FaultyDisks::default().medium();
        let footing = Footing::take(&medium, &[1; 16]);
        assert_eq!(footing, Footing::default());
        assert!(!footing.is_left(&medium));
        footing.settle(&medium);
    }
}
