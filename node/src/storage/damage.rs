//! Tells a damaged store from one that cannot be opened just now, and what to do about it. Opens nothing.

use std::{fs, io, path::Path};

/// A file of this name in the home folder says that a lost store is accepted; the next start removes it.
pub(super) const ACCEPT: &str = "accept-lost-store";
/// Backups that a message names; there is one for each format, so more are not ours.
const BACKUPS_MAX: usize = 4;

/// What goes with `consensus.redb`.
pub(super) const LOST_CONSENSUS: &str = "all bindings and receipts are lost, and with them the devices that joined this one; an operation repeated with its \
     old operationId runs again";
/// What goes with `node.redb`.
pub(super) const LOST_NODE: &str = "all sessions, histories, typed inputs and results that were not delivered are lost, \
     and which mesh this device has joined";

/// Whether `error` is about what the file holds, and not about the file system or another process.
pub(super) fn is_damage(error: &redb::Error) -> bool {
    match error {
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) | redb::Error::RepairAborted => true,
        redb::Error::Io(cause) => matches!(cause.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
        _ => false,
    }
}

/// What to do about a damaged store at `path`; `lost` is what goes with it.
pub(super) fn advice(path: &Path, lost: &str) -> String {
    let backups = backups(path);
    let beside = if backups.is_empty() { String::new() } else { format!(" ({})", backups.join(", ")) };
    let accept = path.with_file_name(ACCEPT);
    format!(
        "stop the node and put a backup of the file in its place{beside}; or move it away and make the empty file {} \
         to start without it: {lost}",
        accept.display()
    )
}

/// The backups beside `path`, in the order of their names.
fn backups(path: &Path) -> Vec<String> {
    let Some((folder, name)) = path.parent().zip(path.file_name()) else { return Vec::new() };
    let start = format!("{}.", name.to_string_lossy());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> = names.filter(|name| name.starts_with(&start) && name.ends_with(".bak")).collect();
    found.sort();
    found.truncate(BACKUPS_MAX);
    found.iter().map(|name| folder.join(name).display().to_string()).collect()
}
