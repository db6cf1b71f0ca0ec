//! A tool's answer taken apart the way the protocol document lays it out: an operation block, then tool results, inputs
//! from people and late results, each opened by a JSON block of its own. Reads only; judges nothing.

use base64::Engine;
use serde_json::Value;

/// One answer to `tools/call`.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The blocks.
    pub content: Vec<Value>,
    /// `structuredContent`, null when absent.
    pub structured: Value,
    /// `isError`.
    pub is_error: bool,
    /// The whole result object.
    pub raw: Value,
}

/// A run of blocks behind the JSON block that opened it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// The opening block, e.g. `{toolCallId, toolName, isError}` or `{piInput, sessionId}`.
    pub head: Value,
    /// The text blocks behind it, joined by newlines; image references left out.
    pub text: String,
    /// The images behind it.
    pub images: Vec<Image>,
    /// The `chappie://` references that follow its images.
    pub references: Vec<String>,
}

/// An image block, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its type.
    pub mime: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Keys that open a section, in the order in which they are looked for.
const OPENERS: [&str; 6] = ["deferredResult", "toolCallId", "piInput", "modelRequest", "webAnswer", "id"];

impl Answer {
    /// Reads a `tools/call` result object.
    ///
    /// # Panics
    /// When it has no `content` array.
    #[must_use]
    pub fn of(result: &Value) -> Self {
        let content = result["content"].as_array().unwrap_or_else(|| panic!("no content in {result}")).clone();
        Self {
            content,
            structured: result["structuredContent"].clone(),
            is_error: result["isError"].as_bool().unwrap_or(false),
            raw: result.clone(),
        }
    }

    /// Every text block.
    #[must_use]
    pub fn texts(&self) -> Vec<&str> {
        self.content.iter().filter_map(|block| block["text"].as_str()).collect()
    }

    /// All text, joined by newlines.
    #[must_use]
    pub fn text(&self) -> String {
        self.texts().join("\n")
    }

    /// Every image block.
    #[must_use]
    pub fn images(&self) -> Vec<Image> {
        self.content.iter().filter_map(image).collect()
    }

    /// The operation block.
    ///
    /// # Panics
    /// When the first block is not a JSON object.
    #[must_use]
    pub fn header(&self) -> Value {
        let first = self.texts().first().copied().unwrap_or_default();
        match serde_json::from_str::<Value>(first) {
            Ok(value) if value.is_object() => value,
            _ => panic!("the first block is not a JSON object: {}", excerpt(&self.text())),
        }
    }

    /// The sections behind the operation block.
    #[must_use]
    pub fn sections(&self) -> Vec<Section> {
        let mut sections: Vec<Section> = Vec::new();
        for block in self.content.iter().skip(1) {
            if let Some(head) = opener(block) {
                sections.push(Section { head, ..Section::default() });
                continue;
            }
            let Some(section) = sections.last_mut() else { continue };
            if let Some(image) = image(block) {
                section.images.push(image);
            } else if let Some(reference) = reference(block) {
                section.references.push(reference);
            } else if let Some(text) = block["text"].as_str() {
                if !section.text.is_empty() {
                    section.text.push('\n');
                }
                section.text.push_str(text);
            }
        }
        sections
    }

    /// This call's own tool results, in order (not those inside late results).
    #[must_use]
    pub fn results(&self) -> Vec<Section> {
        self.sections()
            .into_iter()
            .take_while(|section| section.head.get("deferredResult").is_none())
            .filter(|section| section.head.get("toolCallId").is_some())
            .collect()
    }

    /// The text of this call's own tool results; all text when there is none, as in an error that came before.
    #[must_use]
    pub fn output(&self) -> String {
        let results = self.results();
        if results.is_empty() {
            return self.text();
        }
        results.into_iter().map(|section| section.text).collect::<Vec<_>>().join("\n")
    }

    /// What people typed.
    #[must_use]
    pub fn inputs(&self) -> Vec<Section> {
        self.sections().into_iter().filter(|section| section.head.get("piInput").is_some()).collect()
    }

    /// The late results that came along: each opening section with the sections of its tool results.
    #[must_use]
    pub fn late_results(&self) -> Vec<(Value, Vec<Section>)> {
        let mut late: Vec<(Value, Vec<Section>)> = Vec::new();
        for section in self.sections() {
            if section.head.get("deferredResult").is_some() {
                late.push((section.head.clone(), Vec::new()));
            } else if section.head.get("toolCallId").is_some()
                && let Some((_, results)) = late.last_mut()
            {
                results.push(section);
            }
        }
        late
    }

    /// The answer itself, once it is sure that it is a success.
    ///
    /// # Panics
    /// When the tool failed.
    pub fn ok(self) -> Self {
        assert!(!self.is_error, "expected a success, got an error: {}", excerpt(&self.text()));
        self
    }

    /// The answer itself, once it is sure that it is a tool error with some text.
    ///
    /// # Panics
    /// When the tool succeeded or said nothing.
    pub fn refused(self) -> Self {
        assert!(self.is_error, "expected an error, got a success: {}", excerpt(&self.text()));
        assert!(!self.text().trim().is_empty(), "an error without a word");
        self
    }
}

/// The start and the end of `text`, together at most 1,200 characters, for messages.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= 1_200 {
        return text.to_owned();
    }
    let (start, end): (String, String) = (all[..600].iter().collect(), all[all.len() - 600..].iter().collect());
    format!("{start} … {end}")
}

fn opener(block: &Value) -> Option<Value> {
    let head: Value = serde_json::from_str(block["text"].as_str()?).ok()?;
    let fields = head.as_object()?;
    let opens = OPENERS.iter().any(|key| match *key {
        // History entries open with their record; a plain JSON object that a tool printed has no such pair.
        "id" => fields.contains_key("id") && fields.contains_key("timestamp"),
        key => fields.contains_key(key),
    });
    opens.then_some(head)
}

fn reference(block: &Value) -> Option<String> {
    let head: Value = serde_json::from_str(block["text"].as_str()?).ok()?;
    Some(head.as_object()?.get("piImage")?.as_str()?.to_owned())
}

fn image(block: &Value) -> Option<Image> {
    if block["type"] != "image" {
        return None;
    }
    let data = block["data"].as_str()?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(data).ok()?;
    Some(Image { mime: block["mimeType"].as_str()?.to_owned(), bytes })
}
