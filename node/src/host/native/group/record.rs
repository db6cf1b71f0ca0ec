//! The groups that run now, on disk, so that a node started after a crash can end what the dead one left (failure rule
//! F8). One small file a running command under `<CHAPPIE_HOME>/groups/`: made before the command starts, so that there
//! is no moment at which a process runs unrecorded, completed with its pid right after, removed at the end.
//!
//! Nothing is fsynced: a crash of the machine ends the processes too, and a killed node leaves the page cache behind.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{Ended, Marker, Target, members};

/// A running group's file. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    file: File,
}

/// A group that an earlier run of the node left and [`sweep`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptGroup {
    /// `<call id>/<member id>`, as the marker held it.
    pub call: String,
    /// How many processes were told to end.
    pub ended: usize,
    /// Processes that did not end in time (asleep in the kernel, or another user's).
    pub left: Vec<i32>,
}

impl Record {
    /// Notes that `marker`'s command is about to start.
    pub(super) fn create(home: &Path, marker: &Marker) -> io::Result<Self> {
        let folder = folder(home);
        let path = folder.join(file_name(&marker.value));
        let open = || OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
                open()?
            }
            opened => opened?,
        };
        let line = format!("{}={}\n", marker.key, marker.value);
        // From here on an early return removes the file.
        let mut record = Self { path, file };
        record.file.write_all(line.as_bytes())?;
        Ok(record)
    }

    /// Notes which process leads the group. A failure is harmless: the marker alone finds the processes too.
    pub(super) fn started(&mut self, leader: members::Identity) {
        let line = format!("{} {} {}\n", leader.pid, leader.start, members::boot());
        let _ = self.file.write_all(line.as_bytes());
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Left behind it only costs the next start one look through /proc.
        let _ = fs::remove_file(&self.path);
    }
}

fn folder(home: &Path) -> PathBuf {
    home.join("groups")
}

/// A file name of `value`: call and member ids are UUIDs, but nothing here relies on that.
#[must_use]
pub fn file_name(value: &str) -> String {
    value.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).take(NAME_CHARS_MAX).collect()
}

/// Two UUIDs with a prefix are 81 characters; a file name may have 255 bytes.
const NAME_CHARS_MAX: usize = 200;

/// Ends every group that an earlier run of this node left, before any session accepts work. Blocks for at most a few
/// seconds, and not at all when nothing was left. `process` entries have no record here and live on.
///
/// The caller must be the only node of `home`.
#[must_use]
pub fn sweep(home: &Path) -> Vec<SweptGroup> {
    let Ok(entries) = fs::read_dir(folder(home)) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let text = fs::read_to_string(&path).unwrap_or_default();
            let swept = parse(&text).map(|(call, target)| {
                let Ended { ended, left } = target.end(super::TERM_GRACE);
                SweptGroup { call, ended, left }
            });
            let _ = fs::remove_file(path);
            swept.filter(|s| s.ended > 0 || !s.left.is_empty())
        })
        .collect()
}

/// The call and its processes; `None` for a file cut short before its first line was whole: nothing had started then.
fn parse(text: &str) -> Option<(String, Target)> {
    let (marker, rest) = text.split_once('\n')?;
    let (_, call) = marker.split_once('=')?;
    let leader = rest.split_once('\n').and_then(|(line, _)| {
        let mut fields = line.split(' ');
        let pid = fields.next()?.parse().ok()?;
        let start = fields.next()?.parse().ok()?;
        // Start times count from the boot: after another boot they prove nothing.
        (fields.next()? == members::boot()).then_some(members::Identity { pid, start })
    });
    Some((call.to_owned(), Target { leader, marker: marker.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gives_back_its_marker_and_leader_and_is_gone_when_dropped() {
        let home = tempfile::tempdir().unwrap();
        let marker = Marker::call(&"018f/../x".into(), "chappie-1");
        let leader = members::Identity { pid: 7, start: 99 };
        let mut record = Record::create(home.path(), &marker).unwrap();
        let path = record.path.clone();
        assert_eq!(path.parent().unwrap(), home.path().join("groups"));
        record.started(leader);
        let (call, target) = parse(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(call, "018f/../x/chappie-1");
        assert_eq!(target, Target { leader: Some(leader), marker: "CHAPPIE_CALL=018f/../x/chappie-1".into() });
        drop(record);
        assert!(!path.exists());
    }

    #[test]
    fn a_record_cut_short_or_of_another_boot_names_no_leader() {
        let whole = format!("CHAPPIE_CALL=c/m\n7 99 {}\n", members::boot());
        assert!(parse(&whole).unwrap().1.leader.is_some());
        assert_eq!(parse("CHAPPIE_CALL=c/m\n7 9").unwrap().1.leader, None);
        assert_eq!(parse("CHAPPIE_CALL=c/m\n7 99 another-boot\n").unwrap().1.leader, None);
        assert_eq!(parse("CHAPPIE_CA"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn sweeping_a_home_without_records_does_nothing() {
        let home = tempfile::tempdir().unwrap();
        assert!(sweep(home.path()).is_empty());
    }
}
