//! The tool `read`: a page of a text file, or a picture. What a file is comes from its bytes (`kind`), a page is taken in
//! one pass (`gather`) and laid out inside the answer's budget (`layout`); what is left out is named with the call that
//! reads on (`notice`).
//!
//! Nothing is read whole but pictures, and nothing that is no file is opened. An answer that shows nothing of a file
//! (binary data, a picture that cannot be decoded, a page beyond the end) is an error; an empty file is not.

mod gather;
mod kind;
mod layout;
mod notice;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File, Metadata},
    io::{self, BufReader, Cursor, Read},
    path::{Path, PathBuf},
};

use image::ImageFormat;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use self::{
    gather::{GatherError, Wanted, gather},
    kind::{Kind, format_name, kind, promised, text_in_disguise},
    layout::{Place, lay_out},
    notice::Notices,
};
use super::{
    Part, ToolContext, ToolEnv, ToolOutput,
    arguments::{self, Positive},
    image_part::{self, Picture},
    paths::{self, OpenError},
    seen::Fingerprint,
    text,
};
use crate::{content::JsonObject, host::ToolDefinition};

/// Files up to this size are read on the async thread: from the page cache that takes less time than handing the work to
/// another thread, and even from a disk only moments. Larger ones, and those of unknown size as in `/proc`, are not.
const INLINE: u64 = 256 * 1024;

/// Bytes read at a time from larger files.
const CHUNK: usize = 256 * 1024;

/// Pictures decoded at a time on the node: each can take half a GiB for a moment.
static DECODING: Semaphore = Semaphore::const_new(2);

/// The definition that `tools` shows.
#[must_use]
pub fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "read".to_owned(),
        description: "Read a text file, or see an image (png, jpeg, gif, webp, bmp).\n\
            Long files come in pages; a notice in brackets at the end says which call reads on, and without one the end \
            of the file was reached. Line ends are shown as \\n. Folders: use ls. Binary files: use bash."
            .to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "path": { "type": "string", "description": "File, absolute, from ~ or from the working folder" },
                "offset": { "type": "integer", "minimum": 1, "description": "First line, counted from 1" },
                "limit": { "type": "integer", "minimum": 1, "description": "Most lines" },
                "column": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "First byte in the first line, counted from 1; a notice gives it for very long lines"
                }
            },
            "required": ["path"],
            "additionalProperties": false
        }),
    }
}

/// Runs it.
pub async fn run(arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    let done = match arguments::parse::<Request>("read", arguments) {
        Ok(request) => request.run(env, context).await,
        Err(message) => Err(message),
    };
    done.unwrap_or_else(|message| ToolOutput::error(context.budget.head(&message)))
}

#[derive(Clone, Deserialize)]
struct Request {
    path: String,
    offset: Option<Positive>,
    limit: Option<Positive>,
    column: Option<Positive>,
}

/// An opened file.
struct Opened {
    path: PathBuf,
    file: File,
    found: Metadata,
}

/// What was found at the first look.
enum Looked {
    Shown(ToolOutput),
    /// It begins as a picture; these bytes are already taken from the file.
    Picture(Opened, Vec<u8>, ImageFormat),
}

impl Request {
    async fn run(self, env: &ToolEnv, context: &ToolContext) -> Result<ToolOutput, String> {
        let path = paths::resolve(&self.path, &env.cwd, &env.home).map_err(|error| error.to_string())?;
        let (file, found) = paths::open(&path).map_err(|error| self.unopened(&path, &env.cwd, &error))?;
        if let Some(reader) = context.reader.as_deref()
            && let Ok(real) = fs::canonicalize(&path)
        {
            env.seen.note(Some(reader), &real, Fingerprint::of(&found));
        }
        let opened = Opened { path, file, found };
        let looked = if (1..=INLINE).contains(&opened.found.len()) {
            self.look(opened, context)?
        } else {
            let (request, context) = (self.clone(), context.clone());
            let work = tokio::task::spawn_blocking(move || request.look(opened, &context));
            work.await.unwrap_or_else(|panic| Err(format!("read: internal error: {panic}")))?
        };
        match looked {
            Looked::Shown(output) => Ok(output),
            Looked::Picture(opened, head, format) => self.show_picture(opened, head, format, context).await,
        }
    }

    /// Reads the beginning and, unless it is a picture, the page.
    fn look(&self, mut opened: Opened, context: &ToolContext) -> Result<Looked, String> {
        let size = opened.found.len();
        let most = if (1..=INLINE).contains(&size) { INLINE } else { text::HEAD as u64 };
        let mut head = Vec::with_capacity(usize::try_from(size.min(most)).unwrap_or_default() + 1);
        (&mut opened.file).take(most).read_to_end(&mut head).map_err(|error| self.failed(&error))?;
        let first = self.offset.map_or(1, |offset| offset.0);
        match kind(&head) {
            _ if head.is_empty() && first == 1 => Ok(Looked::Shown(self.empty(&opened, context))),
            Kind::Image(format) => Ok(Looked::Picture(opened, head, format)),
            Kind::Text => self.show_page(opened, head, context).map(Looked::Shown),
            Kind::Other(what) => Err(self.other(&opened, what)),
        }
    }

    fn show_page(&self, opened: Opened, head: Vec<u8>, context: &ToolContext) -> Result<ToolOutput, String> {
        let start =
            Place { line: self.offset.map_or(1, |offset| offset.0), column: self.column.map_or(1, |column| column.0) };
        let disguise = promised(&opened.path).map(|format| {
            format!("Named as a {} image, but it holds {}", format_name(format), text_in_disguise(&head))
        });
        let mut notices = Notices::new(&self.path, self.limit.map(|limit| limit.0), context.budget);
        notices.add(disguise);
        let lines = self.limit.map(|limit| limit.0);
        // Line ends of two bytes are shown as one, so twice the budget can be needed to fill it.
        let wanted = Wanted { line: start.line, column: start.column, lines, room: 2 * context.budget.bytes + 8 };
        let size = opened.found.len();
        let mut source = Cursor::new(head).chain(BufReader::with_capacity(CHUNK, opened.file));
        let gathered = gather(&mut source, wanted, &context.cancel).map_err(|error| self.no_page(&error, start))?;
        notices.add_form(&gathered.bytes, start);
        let bytes = match start {
            Place { line: 1, column: 1 } => text::without_bom(&gathered.bytes),
            Place { column: 2.., .. } => without_cut_character(&gathered.bytes),
            _ => &gathered.bytes,
        };
        let hidden = (gathered.bytes.len() - bytes.len()) as u64;
        if bytes.is_empty() && !gathered.more && start.column > 1 {
            return Err(self.no_page(&GatherError::Bytes(start.column - 1 + hidden), start));
        }
        let from = Place { column: start.column + hidden, ..start };
        let whole = lay_out(bytes, from, gathered.more, notices.room(context.budget, None));
        let page = match whole.next {
            None => whole,
            Some(_) => lay_out(bytes, from, gathered.more, notices.room(context.budget, Some(size))),
        };
        if page.text.is_empty() && page.next.is_some() {
            return Err(format!("{}: no room is left in this answer; call read by itself", self.path));
        }
        notices.add_cut(&page, start, bytes, gathered.rest, size);
        let details = json!({
            "path": opened.path.to_string_lossy(),
            "size": size,
            "firstLine": start.line,
            "lastLine": page.last,
            "totalLines": gathered.rest.map(|rest| rest.lines),
            "next": page.next.map(|next| json!({"offset": next.line, "column": next.column})),
        });
        Ok(ToolOutput::text(notices.close(page.text)).with_details(details))
    }

    async fn show_picture(
        &self,
        opened: Opened,
        head: Vec<u8>,
        format: ImageFormat,
        context: &ToolContext,
    ) -> Result<ToolOutput, String> {
        let Opened { path, file, found } = opened;
        let (name, size) = (format_name(format), found.len());
        if size > image_part::FILE {
            let most = image_part::FILE;
            return Err(format!(
                "{}: is a {name} image of {size} bytes; at most {most} are shown. Make it smaller with `bash` first",
                self.path
            ));
        }
        let _permit = tokio::select! {
            () = context.cancel.cancelled() => return Err(format!("{}: cancelled", self.path)),
            permit = DECODING.acquire() => permit,
        };
        let work = tokio::task::spawn_blocking(move || {
            let mut bytes = head;
            file.take(image_part::FILE).read_to_end(&mut bytes)?;
            Ok(image_part::picture(bytes, format))
        });
        let picture = match work.await {
            Ok(picture) => picture.map_err(|error: io::Error| self.failed(&error))?.map_err(|error| error.to_string()),
            // A decoder that panics says that the bytes are not sound.
            Err(_) => Err("it cannot be decoded".to_owned()),
        };
        let named = match promised(&path) {
            Some(promise) if promise != format => format!(" It is named as a {} image.", format_name(promise)),
            _ => String::new(),
        };
        let picture = picture.map_err(|error| {
            format!("{}: begins as a {name} image of {size} bytes, but {error}.{named} No image is shown", self.path)
        })?;
        let said = format!("{}: {name} image, {}{named}", self.path, described(&picture, size));
        let details = json!({
            "path": path.to_string_lossy(),
            "size": size,
            "mime": picture.mime,
            "width": picture.size.0,
            "height": picture.size.1,
            "shown": picture.shown.map(|(width, height)| json!({"width": width, "height": height})),
        });
        let parts = vec![
            Part::Text(context.budget.head(&said).to_owned()),
            Part::Image { mime: picture.mime, bytes: picture.bytes },
        ];
        Ok(ToolOutput { parts, is_error: false, details: Some(details) })
    }

    fn empty(&self, opened: &Opened, context: &ToolContext) -> ToolOutput {
        let promise = promised(&opened.path)
            .map_or_else(String::new, |format| format!(", so it is no {} image", format_name(format)));
        let said = format!("[{} is empty: 0 bytes{promise}]", self.path);
        let details = json!({"path": opened.path.to_string_lossy(), "size": 0, "totalLines": 0});
        ToolOutput::text(context.budget.head(&said)).with_details(details)
    }

    fn other(&self, opened: &Opened, what: &str) -> String {
        let size = opened.found.len();
        let named = promised(&opened.path)
            .map_or_else(String::new, |format| format!(" although it is named as a {} image", format_name(format)));
        let advice = if what.starts_with("text in") {
            "Convert it with `bash`, for example iconv -f UTF-16 -t UTF-8"
        } else {
            "Look into it with `bash` and a program made for it (file, xxd, strings, unzip -l)"
        };
        format!("{}: is {what}{named}, {size} bytes; read does not show it. {advice}", self.path)
    }

    fn no_page(&self, error: &GatherError, start: Place) -> String {
        let Place { line, column } = start;
        match error {
            GatherError::Lines(lines) => {
                format!("{}: offset {line} is beyond the end: the file has {lines} lines", self.path)
            }
            GatherError::Bytes(bytes) => {
                format!("{}: column {column} is beyond the end of line {line}, which has {bytes} bytes", self.path)
            }
            GatherError::Cancelled => format!("{}: cancelled", self.path),
            GatherError::Io(error) => self.failed(error),
        }
    }

    fn unopened(&self, path: &Path, cwd: &Path, error: &OpenError) -> String {
        match error {
            OpenError::System(error) => paths::complaint(&self.path, path, cwd, error),
            OpenError::Kind(kind) => {
                let advice = match kind {
                    paths::Kind::Folder => "List it with `ls`",
                    paths::Kind::Pipe => "Reading it waits for a writer; use `bash` with a timeout",
                    _ => "Use `bash` with a timeout to talk to it",
                };
                format!("{}: {error}. {advice}", self.path)
            }
        }
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("{}: {}", self.path, paths::cause(error))
    }
}

/// `bytes` without the rest of a character that was cut before them.
fn without_cut_character(bytes: &[u8]) -> &[u8] {
    let rest = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    &bytes[rest..]
}

fn described(picture: &Picture, size: u64) -> String {
    let (width, height) = picture.size;
    let mut said = format!("{width}x{height} pixels, {size} bytes.");
    if let Some((width, height)) = picture.shown {
        let name = picture.mime.trim_start_matches("image/").to_uppercase();
        said.push_str(&format!(" Shown as {name} at {width}x{height}."));
    }
    if picture.is_animated {
        said.push_str(" It is animated; only its first picture is shown.");
    }
    said
}
