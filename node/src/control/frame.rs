//! The frames of the control socket: one JSON object on one line each way (docs/PROTOCOL.md section 1). Pure.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::protocol::{CommandError, LogEntry, LogQuery, Resolution, SessionNew};
use crate::config::JoinCode;

/// One frame with its line end, either way. A request is a few paths and a typed text; rows that may be many are sent
/// one frame each, so that 1 MiB is room enough and a broken peer cannot make us hold more.
pub const FRAME_BYTES_MAX: usize = 1024 * 1024;
/// People and programs hold a few connections each (`log -f`, `attach`, `mcp`); more is a leak.
pub const CONNECTIONS_MAX: usize = 128;
/// What is kept of an entry that does not fit one frame.
const ENTRY_TEXT_KEPT: usize = 64 * 1024;

/// What is asked, by its `method` and `params`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", content = "params", rename_all = "snake_case", deny_unknown_fields)]
pub enum Method {
    /// The node at a glance; gives a `StatusReport`.
    Status {},
    /// Gives an array of `SessionRow`.
    Sessions {},
    /// Gives a `SessionRow`.
    SessionNew(SessionNew),
    /// Gives `null`.
    SessionEnd {
        /// Id, unique prefix or name.
        session: String,
    },
    /// Gives the entry's id.
    Say {
        /// Id, unique prefix or name; `null` is the only session there is.
        #[serde(default)]
        session: Option<String>,
        /// What to say.
        text: String,
        /// Pictures, absolute paths.
        #[serde(default)]
        images: Vec<PathBuf>,
    },
    /// Each entry is an item; gives `{session, hasMore}`.
    Log(LogQuery),
    /// Each `ReceiptRow` is an item; gives `null`.
    Receipts {},
    /// Gives a `ReceiptReport`.
    Receipt {
        /// Id or a unique prefix.
        id: String,
    },
    /// Gives `null`.
    Resolve {
        /// Id or a unique prefix.
        id: String,
        /// What the person found out.
        how: Resolution,
    },
    /// Gives an `ImportRow`.
    ImportState {
        /// The file, absolute.
        path: PathBuf,
    },
    /// Gives an array of `Finding`.
    Doctor {},
    /// Gives an `InviteRow`.
    Invite {
        /// How many devices may use it.
        uses: u32,
        /// How long it is good, milliseconds.
        #[serde(rename = "ttlMs")]
        ttl_ms: u64,
    },
    /// Gives a `JoinRow`.
    Join {
        /// What `invite` gave on another device.
        code: JoinCode,
    },
    /// Gives an array of `PeerRow`.
    Peers {},
    /// Gives a `ForgetRow`.
    Forget {
        /// Id, unique prefix or name.
        device: String,
    },
    /// Gives a `RecoverRow`.
    Recover {
        /// Whether operations that only missing devices know may run again.
        #[serde(rename = "acceptLoss")]
        accept_loss: bool,
    },
    /// Gives a `FollowRow`.
    Follow {
        /// Id, unique prefix or name.
        device: String,
    },
    /// Gives `null`; after that line the connection carries MCP and nothing else.
    Mcp {
        /// The session that a connection without a chat works in until it selects another.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
    },
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Chosen by the client, repeated in every answer.
    pub id: u64,
    /// What is asked.
    pub method: Method,
}

/// A request as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: u64,
    method: String,
    #[serde(default)]
    params: Option<Value>,
}

/// Why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The request's id, when that much could be read.
    pub id: Option<u64>,
    /// What is wrong.
    pub error: CommandError,
}

impl Request {
    /// Reads one line, without its line end.
    ///
    /// # Errors
    /// When it is not JSON, or not a request of this protocol; unknown methods and parameters are named.
    pub fn decode(line: &[u8]) -> Result<Self, Malformed> {
        let malformed = |id| {
            move |cause: serde_json::Error| Malformed {
                id,
                error: CommandError::new(format!("not a request of this protocol: {cause}")),
            }
        };
        let written: Written = serde_json::from_slice(line).map_err(malformed(None))?;
        let params = written.params.unwrap_or_else(|| json!({}));
        if !params.is_object() {
            let error = CommandError::new("not a request of this protocol: `params` is no object");
            return Err(Malformed { id: Some(written.id), error });
        }
        let tagged = json!({"method": written.method, "params": params});
        let method = serde_json::from_value(tagged).map_err(malformed(Some(written.id)))?;
        Ok(Self { id: written.id, method })
    }

    /// The request as a line.
    ///
    /// # Errors
    /// When a path is not UTF-8, or the line is longer than [`FRAME_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        let mut tagged = serde_json::to_value(&self.method).map_err(|cause| CommandError::new(cause.to_string()))?;
        tagged["id"] = self.id.into();
        line(&tagged)
    }
}

/// An answer, or a part of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The request's id; `null` when the request was not readable.
    pub id: Option<u64>,
    /// What it says.
    #[serde(flatten)]
    pub body: Body,
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// One row of several; the result or an error comes after the last.
    Item(Value),
    /// Done.
    Result(Value),
    /// Not done.
    Error(CommandError),
}

impl Response {
    /// The answer as a line.
    ///
    /// # Errors
    /// When the line is longer than [`FRAME_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        line(self)
    }

    /// Reads one line, without its line end.
    ///
    /// # Errors
    /// When it is not an answer of this protocol.
    pub fn decode(line: &[u8]) -> Result<Self, CommandError> {
        serde_json::from_slice(line)
            .map_err(|cause| CommandError::new(format!("the node's answer is garbled: {cause}")))
    }
}

fn line(value: &impl Serialize) -> Result<Vec<u8>, CommandError> {
    let mut bytes = serde_json::to_vec(value).map_err(|cause| CommandError::new(cause.to_string()))?;
    bytes.push(b'\n');
    if bytes.len() > FRAME_BYTES_MAX {
        let found = bytes.len();
        return Err(CommandError::new(format!("{found} bytes do not fit the control socket's {FRAME_BYTES_MAX}")));
    }
    Ok(bytes)
}

/// The entry, cut when it would not fit a frame: JSON may need six bytes for one of the text.
#[must_use]
pub fn fitting(mut entry: LogEntry) -> LogEntry {
    let size = serde_json::to_vec(&entry).map_or(usize::MAX, |bytes| bytes.len());
    if size > FRAME_BYTES_MAX - 64 {
        let kept = (0..=ENTRY_TEXT_KEPT.min(entry.text.len())).rev().find(|at| entry.text.is_char_boundary(*at));
        entry.text.truncate(kept.unwrap_or_default());
        entry.text.push_str("\n[cut: this entry is too large to show here; the history tool has all of it]");
        entry.raw = Value::Null;
    }
    entry
}

/// Gathers bytes until a line is whole.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: Vec<u8>,
    scanned: usize,
}

/// More bytes came without a line end than a frame may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line on the control socket is longer than {FRAME_BYTES_MAX} bytes")]
pub struct TooLong;

impl Lines {
    /// Takes what was read.
    ///
    /// # Errors
    /// When there is no line end in more than [`FRAME_BYTES_MAX`] bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.buffer.extend_from_slice(bytes);
        let line_end = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n');
        let longest = line_end.map_or(self.buffer.len(), |at| self.scanned + at);
        if longest >= FRAME_BYTES_MAX { Err(TooLong) } else { Ok(()) }
    }

    /// The next whole line, without its line end.
    pub fn take_line(&mut self) -> Option<Vec<u8>> {
        let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.buffer.len();
            return None;
        };
        let rest = self.buffer.split_off(self.scanned + at + 1);
        let mut taken = std::mem::replace(&mut self.buffer, rest);
        self.scanned = 0;
        taken.pop();
        Some(taken)
    }

    /// Whether nothing is left over.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use chappie_mesh::{InviteCode, fresh_invite};

    use super::*;
    use crate::host::HostKind;

    fn code() -> JoinCode {
        let (id, secret) = fresh_invite([5; 24]);
        InviteCode { mesh: [7; 16].into(), inviter: [8; 32].into(), addresses: Vec::new(), id, secret }.into()
    }

    fn decoded(text: &str) -> Result<Method, Malformed> {
        Request::decode(text.as_bytes()).map(|request| request.method)
    }

    #[test]
    fn requests_read_as_the_protocol_document_writes_them() {
        assert_eq!(decoded(r#"{"id":1,"method":"status","params":{}}"#), Ok(Method::Status {}));
        assert_eq!(decoded(r#"{"id":1,"method":"mcp"}"#), Ok(Method::Mcp { session: None }));
        let new = SessionNew { dir: "/a".into(), name: None, host: HostKind::Native };
        assert_eq!(
            decoded(r#"{"id":1,"method":"session_new","params":{"dir":"/a","host":"native"}}"#),
            Ok(Method::SessionNew(new))
        );
        assert_eq!(decoded(r#"{"id":1,"method":"log","params":{}}"#), Ok(Method::Log(LogQuery::default())));
        assert_eq!(
            decoded(r#"{"id":1,"method":"invite","params":{"uses":1,"ttlMs":600000}}"#),
            Ok(Method::Invite { uses: 1, ttl_ms: 600_000 })
        );
        let join = format!(r#"{{"id":1,"method":"join","params":{{"code":"{}"}}}}"#, String::from(code()));
        assert_eq!(decoded(&join), Ok(Method::Join { code: code() }));
    }

    #[test]
    fn a_code_is_in_no_error_and_no_debug_print() {
        let secret = String::from(code());
        for params in [
            format!(r#"{{"code":"{secret}{secret}"}}"#),
            format!(r#"{{"code":["{secret}"]}}"#),
            format!(r#"{{"code":"{secret}","uses":1}}"#),
            format!(r#"{{"code":"{secret}"#),
            format!(r#""{secret}""#),
        ] {
            let malformed = decoded(&format!(r#"{{"id":1,"method":"join","params":{params}}}"#)).unwrap_err();
            assert!(!format!("{malformed:?}").contains(&secret), "{malformed:?}");
        }
        let method = Method::Join { code: code() };
        assert!(!format!("{method:?}").contains(&secret[secret.len() - 12..]), "{method:?}");
    }

    #[test]
    fn every_method_survives_the_way_there() {
        let methods = [
            Method::SessionEnd { session: "s".into() },
            Method::Say { session: None, text: "hi\n".into(), images: vec!["/p.png".into()] },
            Method::Log(LogQuery { session: Some("s".into()), after: Some("e".into()), limit: Some(3), wait: true }),
            Method::Receipts {},
            Method::Receipt { id: "r".into() },
            Method::Resolve { id: "r".into(), how: Resolution::NotRun },
            Method::ImportState { path: "/f".into() },
            Method::Doctor {},
            Method::Sessions {},
            Method::Invite { uses: 3, ttl_ms: 600_000 },
            Method::Join { code: code() },
            Method::Peers {},
            Method::Forget { device: "laptop".into() },
            Method::Recover { accept_loss: true },
            Method::Follow { device: "laptop".into() },
        ];
        for method in methods {
            let request = Request { id: 7, method };
            let line = request.encode().unwrap();
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(Request::decode(&line[..line.len() - 1]), Ok(request));
        }
    }

    #[test]
    fn what_is_no_request_is_answered_with_the_reason_and_the_id_where_there_is_one() {
        let cases = [
            ("", None, "EOF"),
            ("nonsense", None, "expected"),
            (r#"{"method":"status"}"#, None, "`id`"),
            (r#"{"id":-1,"method":"status"}"#, None, "-1"),
            (r#"{"id":1,"method":"status","extra":1}"#, None, "`extra`"),
            (r#"{"id":9,"method":"fly"}"#, Some(9), "`fly`"),
            (r#"{"id":9,"method":"status","params":{"x":1}}"#, Some(9), "`x`"),
            (r#"{"id":9,"method":"say","params":{}}"#, Some(9), "`text`"),
            (r#"{"id":9,"method":"invite","params":{"uses":1}}"#, Some(9), "`ttlMs`"),
            (r#"{"id":9,"method":"invite","params":{"uses":-1,"ttlMs":1}}"#, Some(9), "-1"),
            (r#"{"id":9,"method":"join","params":{"code":""}}"#, Some(9), "invite code"),
            (r#"{"id":9,"method":"say","params":[1]}"#, Some(9), ""),
            (r#"{"id":9,"method":"resolve","params":{"id":"r","how":"maybe"}}"#, Some(9), "`maybe`"),
        ];
        for (text, id, named) in cases {
            let malformed = decoded(text).unwrap_err();
            assert_eq!(malformed.id, id, "{text}");
            assert!(malformed.error.message.contains(named), "{text}: {}", malformed.error);
        }
    }

    #[test]
    fn answers_have_the_promised_shape() {
        let text = |body| String::from_utf8(Response { id: Some(1), body }.encode().unwrap()).unwrap();
        assert_eq!(text(Body::Result(json!({"a": 1}))), "{\"id\":1,\"result\":{\"a\":1}}\n");
        assert_eq!(text(Body::Item(json!(2))), "{\"id\":1,\"item\":2}\n");
        assert_eq!(text(Body::Error(CommandError::new("no"))), "{\"id\":1,\"error\":{\"message\":\"no\"}}\n");
        for body in [Body::Result(Value::Null), Body::Item(json!([])), Body::Error(CommandError::new("x"))] {
            let response = Response { id: None, body };
            let line = response.encode().unwrap();
            assert_eq!(Response::decode(&line[..line.len() - 1]), Ok(response));
        }
        assert!(Response::decode(b"{}").is_err());
    }

    #[test]
    fn lines_are_found_whatever_the_pieces() {
        let text = b"one\ntwo\n\nlast";
        for size in 1..=text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in text.chunks(size) {
                lines.push(piece).unwrap();
                found.extend(std::iter::from_fn(|| lines.take_line()));
            }
            assert_eq!(found, [b"one".to_vec(), b"two".to_vec(), b"".to_vec()], "pieces of {size}");
            assert!(!lines.is_empty());
        }
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_limit() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(&vec![b'x'; FRAME_BYTES_MAX - 1]), Ok(()));
        assert_eq!(lines.take_line(), None);
        assert_eq!(lines.push(b"x"), Err(TooLong));
        let mut whole = Lines::default();
        let mut line = vec![b'x'; FRAME_BYTES_MAX];
        line.push(b'\n');
        assert_eq!(whole.push(&line), Err(TooLong), "also when its end came along");
    }

    #[test]
    fn a_request_or_answer_over_the_limit_is_not_sent() {
        let text = "x".repeat(FRAME_BYTES_MAX);
        let request = Request { id: 1, method: Method::Say { session: None, text: text.clone(), images: Vec::new() } };
        assert!(request.encode().unwrap_err().message.contains("do not fit"));
        assert!(Response { id: Some(1), body: Body::Result(text.into()) }.encode().is_err());
    }

    #[test]
    fn an_entry_over_the_limit_is_cut_to_fit_and_says_so() {
        let entry = |text: String| LogEntry {
            id: "e".into(),
            timestamp: "2026-01-01T00:00:00.000Z".into(),
            kind: "user".into(),
            text,
            raw: json!({"k": "v"}),
        };
        let small = entry("hello".into());
        assert_eq!(fitting(small.clone()), small);
        for text in ["\u{1}".repeat(FRAME_BYTES_MAX), "é".repeat(FRAME_BYTES_MAX)] {
            let cut = fitting(entry(text));
            assert!(cut.text.ends_with("has all of it]"), "{}", &cut.text[cut.text.len() - 20..]);
            let body = Body::Item(serde_json::to_value(cut).unwrap());
            assert!(Response { id: Some(u64::MAX), body }.encode().is_ok());
        }
    }
}
