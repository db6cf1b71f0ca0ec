//! Carrying a file's owner, permissions and extended attributes over to its replacement.

use std::{
    ffi::OsStr,
    fs::{File, Metadata},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

use rustix::{
    fs::{Gid, Mode, Uid, XattrFlags, fchmod, fchown, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr},
    io::Errno,
};

/// Gives `file` what `before`, the state of the file at `real`, had. Returns what the caller should know.
pub(super) fn keep(real: &Path, before: &Metadata, file: &File) -> io::Result<Vec<String>> {
    let mut notes = Vec::new();
    let mut mode = before.mode() & 0o7777;
    let now = file.metadata()?;
    if (now.uid(), now.gid()) != (before.uid(), before.gid()) {
        let owner = (now.uid() != before.uid()).then(|| Uid::from_raw(before.uid()));
        let group = (now.gid() != before.gid()).then(|| Gid::from_raw(before.gid()));
        if fchown(file, owner, group).is_err() {
            // Rights lent to everybody as the old owner must not be lent as the new one.
            mode &= 0o1777;
            let (uid, gid) = (before.uid(), before.gid());
            notes.push(format!("owner {uid}:{gid} could not be kept: it is now {}:{}", now.uid(), now.gid()));
        }
    }
    fchmod(file, Mode::from_raw_mode(mode))?;
    copy_extended(real, file, &mut notes);
    if before.nlink() > 1 {
        let others = before.nlink() - 1;
        notes.push(format!("the file had {others} more hard link(s), which keep the old content"));
    }
    Ok(notes)
}

/// Names of at most this many bytes together, values of at most as many each: the limits of Linux itself.
const LARGEST: usize = 64 * 1024;

/// The access list. Folders hand a default one to every file made in them, so a replacement can have one unasked.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

fn copy_extended(real: &Path, file: &File, notes: &mut Vec<String>) {
    let mut buffer = vec![0; LARGEST];
    let wanted = listxattr(real, &mut buffer[..]).map(|length| names(&buffer[..length]));
    let wanted = match wanted {
        Ok(names) => names,
        Err(Errno::NOTSUP) => return,
        Err(error) => {
            notes.push(format!("extended attributes could not be kept: {error}"));
            return;
        }
    };
    let present = flistxattr(file, &mut buffer[..]).map(|length| names(&buffer[..length])).unwrap_or_default();
    if present.iter().any(|name| name == ACCESS_LIST) && !wanted.iter().any(|name| name == ACCESS_LIST) {
        let _ = fremovexattr(file, OsStr::from_bytes(ACCESS_LIST));
    }
    for name in wanted {
        let shown = OsStr::from_bytes(&name);
        let copied = getxattr(real, shown, &mut buffer[..])
            .and_then(|length| fsetxattr(file, shown, &buffer[..length], XattrFlags::empty()));
        // Labels of a security module are given by the system, not by users.
        if let Err(error) = copied
            && !name.starts_with(b"security.")
        {
            notes.push(format!("extended attribute {} could not be kept: {error}", shown.display()));
        }
    }
}

/// The names in a list of names that each end in NUL.
fn names(list: &[u8]) -> Vec<Vec<u8>> {
    list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}
