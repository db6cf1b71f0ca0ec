//! `chappie://` references (behaviour 7.6). Today they name images that a native session showed: by content, from the
//! blob store, for as long as the session's history holds them. Files come with `transfer`.

use std::sync::Arc;

use super::{
    surface::{Caller, ResourceError, ResourceRead},
    toolbox::Toolbox,
};
use crate::ids::{Conversation, SessionId};

/// What `resources/templates/list` shows.
pub(super) const TEMPLATE: &str = "chappie://session/{sessionId}/{kind}/{id}/{name}{?chatId}";
/// The longest URI looked at. Ours have about 200 bytes.
const URI_MAX: usize = 8_192;

/// A reference in its four parts.
#[derive(Debug, PartialEq, Eq)]
struct Reference {
    session: SessionId,
    kind: String,
    id: String,
    chat: Option<String>,
}

/// Reads the bytes behind `uri`.
pub(super) async fn read(toolbox: &Arc<Toolbox>, uri: &str, caller: &Caller) -> Result<ResourceRead, ResourceError> {
    let reference = parse(uri).ok_or_else(|| {
        ResourceError::NotFound(format!("{} is no chappie resource; references look like {TEMPLATE}", shorten(uri)))
    })?;
    if reference.kind != "image" {
        return Err(ResourceError::NotFound(format!(
            "no {} resource {} is registered; ask the session for the image again",
            reference.kind, reference.id
        )));
    }
    let Some(placed) = toolbox.directory.find(&reference.session) else {
        return Err(ResourceError::NotFound(format!("session {} is not connected", reference.session)));
    };
    let picture = placed.node.image(reference.session.clone(), reference.id.clone()).await;
    let picture = picture.map_err(ResourceError::Unreadable)?.ok_or_else(|| {
        ResourceError::NotFound(format!("session {} showed no image {}", reference.session, shorten(&reference.id)))
    })?;
    let receiver = reference.chat.map(Conversation::Chat).or_else(|| caller.conversation.clone());
    if let Some(conversation) = receiver {
        toolbox.broker.open_window(&conversation, &reference.session);
    }
    Ok(ResourceRead { mime: picture.mime, bytes: picture.bytes })
}

/// Four non-empty percent-encoded segments; query and fragment are no part of the identity. Pure.
fn parse(uri: &str) -> Option<Reference> {
    if uri.len() > URI_MAX {
        return None;
    }
    let rest = uri.strip_prefix("chappie://session/")?;
    let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let segments: Vec<String> = path.split('/').map(decode).collect::<Option<_>>()?;
    let [session, kind, id, name] = <[String; 4]>::try_from(segments).ok()?;
    if [&session, &id, &name].iter().any(|part| part.is_empty()) || !matches!(kind.as_str(), "image" | "file") {
        return None;
    }
    let chat =
        query.split('&').find_map(|pair| pair.strip_prefix("chatId=")).and_then(decode).filter(|id| !id.is_empty());
    Some(Reference { session: SessionId(session), kind, id, chat })
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn shorten(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decorated_reference_names_the_same_thing() {
        let plain = parse("chappie://session/s/image/ab/image.png").unwrap();
        let decorated = parse("chappie://session/%73/image/ab/image.png?x=1&chatId=v1%2Fc#top").unwrap();
        assert_eq!(decorated.chat.as_deref(), Some("v1/c"));
        assert_eq!(Reference { chat: None, ..decorated }, plain);
    }

    #[test]
    fn what_is_no_reference_is_none() {
        for uri in [
            "",
            "file:///etc/passwd",
            "chappie://session/s/image/ab",
            "chappie://session/s/image//image.png",
            "chappie://session/s/socket/ab/image.png",
            "chappie://session/s/image/ab/image.png/more",
            "chappie://session/s/image/%f/image.png",
            "chappie://session/%ff/image/ab/image.png",
        ] {
            assert_eq!(parse(uri), None, "{uri}");
        }
        assert_eq!(parse(&format!("chappie://session/s/image/{}/i", "a".repeat(URI_MAX))), None);
    }
}
