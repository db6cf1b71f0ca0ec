//! Arguments too large for a history row (failure rule F24): kept in a file named by the call, which lives as long as the
//! session's history, and named in its entry. The host still gets them whole.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::content::{JsonObject, ToolCall};

/// The most bytes of arguments, as JSON, that stand in the entry itself (F24).
const INLINE_MAX: usize = 64 << 10;

/// The calls as history keeps them.
pub(super) async fn kept(calls: &[ToolCall], outputs: PathBuf) -> Vec<ToolCall> {
    if calls.iter().all(|call| size(call) <= INLINE_MAX) {
        return calls.to_vec();
    }
    let calls = calls.to_vec();
    let work = move || calls.into_iter().map(|call| keep(call, &outputs)).collect();
    // A panic there would be a fault of ours; the entry then goes without calls, and the work itself goes on.
    chappie_mesh::runtime::blocking(work).await.unwrap_or_default()
}

fn size(call: &ToolCall) -> usize {
    serde_json::to_vec(&call.arguments).map_or(0, |text| text.len())
}

fn keep(call: ToolCall, outputs: &Path) -> ToolCall {
    let text = serde_json::to_vec(&call.arguments).unwrap_or_default();
    if text.len() <= INLINE_MAX {
        return call;
    }
    let mut arguments = JsonObject::new();
    arguments.insert("bytes".into(), json!(text.len()));
    match write(&text, outputs, &format!("{}.arguments.json", call.id)) {
        Ok(path) => arguments.insert("keptIn".into(), json!(path)),
        Err(error) => arguments.insert("notKept".into(), json!(error.to_string())),
    };
    ToolCall { arguments, ..call }
}

fn write(text: &[u8], outputs: &Path, name: &str) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(outputs)?;
    let path = outputs.join(name);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    let written = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| File::open(outputs)?.sync_all());
    if let Err(error) = written {
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    Ok(path)
}
