//! Cuts what is too long for an answer, and keeps the whole in a file of the session's device that the cut names.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{budget::TextBudget, content::Block};

/// Cuts `blocks` to `budget`. Text that does not fit is kept whole in `<outputs>/<name>.txt` on the session's device,
/// and the notice says which call reads it.
pub(super) fn cut(blocks: &[Block], budget: TextBudget, outputs: &Path, name: &str) -> Vec<Block> {
    let whole: String = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            Block::Image(_) => None,
        })
        .collect::<Vec<_>>()
        .join("\n");
    if budget.fits(&whole) {
        return blocks.to_vec();
    }
    let notice = match keep(&whole, outputs, name) {
        Ok(path) => {
            let call = json!({ "path": path });
            format!("\n[cut: {} bytes in all; read {call} shows the rest]", whole.len())
        }
        Err(error) => format!("\n[cut: {} bytes in all; the rest could not be kept: {error}]", whole.len()),
    };
    let shown = budget.minus(&notice).head(&whole).to_owned();
    let mut kept = vec![Block::Text { text: shown + &notice }];
    kept.extend(blocks.iter().filter(|block| matches!(block, Block::Image(_))).cloned());
    kept
}

fn keep(text: &str, outputs: &Path, name: &str) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(outputs)?;
    let path = outputs.join(format!("{name}.txt"));
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() == text.len() as u64) {
        return Ok(path);
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}
