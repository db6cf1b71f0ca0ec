//! Strict reading of a native tool's arguments. Pure.
//!
//! Not a schema checker: the type to read into is the schema. What this adds over plain serde is an error that names
//! the tool, the key and everything the tool takes, so that the caller can mend the call at once.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, Visitor},
};
use serde_json::Value;

use crate::content::JsonObject;

/// Reads `arguments` into a struct of named fields. Unknown keys are refused even where `T` would ignore them.
///
/// # Errors
/// A sentence that names the tool, the key at fault and the keys that it takes.
pub fn parse<T: DeserializeOwned>(tool: &str, arguments: JsonObject) -> Result<T, String> {
    T::deserialize(Arguments(arguments)).map_err(|fault| {
        let Fault { place, problem, takes } = fault;
        let place = if place.is_empty() { String::new() } else { format!("`{place}`: ") };
        let takes = match takes {
            [] => "no arguments".to_owned(),
            keys => keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "),
        };
        format!("{tool}: {place}{problem}; nothing was done. {tool} takes {takes}")
    })
}

/// A whole number of at least 1: a line, a column, a count, a number of seconds. `3` and `3.0` are the same in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Positive(pub u64);

impl<'de> Deserialize<'de> for Positive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        positive(&value).map(Self).ok_or_else(|| {
            de::Error::custom(format_args!("expected a whole number of at least 1, found {}", short(&value)))
        })
    }
}

/// Whole floats above this are not exact, so they are refused rather than rounded.
const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;

fn positive(value: &Value) -> Option<u64> {
    if let Some(whole) = value.as_u64() {
        return (whole >= 1).then_some(whole);
    }
    let float = value.as_f64()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole and in range")]
    (float.fract() == 0.0 && (1.0..=LARGEST_EXACT).contains(&float)).then_some(float as u64)
}

/// The value as JSON, cut to what an error message has room for.
fn short(value: &Value) -> String {
    const CHARS: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What is wrong, where, and the keys that would have been right.
#[derive(Debug)]
struct Fault {
    place: String,
    problem: String,
    takes: &'static [&'static str],
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { place: String::new(), problem: message.to_string(), takes: &[] }
    }

    fn missing_field(field: &'static str) -> Self {
        Self { place: field.to_owned(), problem: "is required and was not given".to_owned(), takes: &[] }
    }
}

/// Turns what serde_json says into a [`Fault`] without a place. It quotes a wrong value whole, however long.
fn fault(error: &serde_json::Error) -> Fault {
    const CHARS: usize = 200;
    let mut text = error.to_string();
    if let Some((end, _)) = text.char_indices().nth(CHARS) {
        text.truncate(end);
        text.push('…');
    }
    de::Error::custom(text)
}

struct Arguments(JsonObject);

impl<'de> Deserializer<'de> for Arguments {
    type Error = Fault;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        takes: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let unknown: Vec<_> =
            self.0.keys().filter(|key| !takes.contains(&key.as_str())).map(|k| short_key(k)).collect();
        if !unknown.is_empty() {
            let problem = if unknown.len() == 1 { "unknown argument" } else { "unknown arguments" };
            let problem = format!("{problem} {}", unknown.join(", "));
            return Err(Fault { place: String::new(), problem, takes });
        }
        let mut place = String::new();
        let pairs = Pairs { rest: self.0.into_iter(), value: None, place: &mut place };
        visitor.visit_map(pairs).map_err(|fault| Fault {
            place: if fault.place.is_empty() { place } else { fault.place },
            takes,
            ..fault
        })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        Value::Object(self.0).deserialize_any(visitor).map_err(|error| fault(&error))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn short_key(key: &str) -> String {
    short(&Value::from(key)).replace('"', "`")
}

/// Walks the object and remembers which key the value being read belongs to.
struct Pairs<'a> {
    rest: serde_json::map::IntoIter,
    value: Option<Value>,
    place: &'a mut String,
}

impl<'de> MapAccess<'de> for Pairs<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((key, value)) = self.rest.next() else {
            self.place.clear();
            return Ok(None);
        };
        self.value = Some(value);
        self.place.clone_from(&key);
        let key: de::value::StringDeserializer<Fault> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let value = self.value.take().unwrap_or_default();
        seed.deserialize(value).map_err(|error| fault(&error))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Sample {
        path: String,
        max_lines: Option<Positive>,
    }

    fn sample(value: Value) -> Result<Sample, String> {
        let Value::Object(object) = value else { panic!("not an object") };
        parse("read", object)
    }

    #[test]
    fn whole_numbers_are_taken_in_either_spelling() {
        for number in [json!(3), json!(3.0), json!(3e0)] {
            let read = sample(json!({"path": "a", "maxLines": number}));
            assert_eq!(read, Ok(Sample { path: "a".into(), max_lines: Some(Positive(3)) }));
        }
        assert_eq!(sample(json!({"path": "a", "maxLines": null})), Ok(Sample { path: "a".into(), max_lines: None }));
    }

    #[test]
    fn other_numbers_are_refused_by_key_and_value() {
        for (number, shown) in
            [(json!(0), "0"), (json!(-1), "-1"), (json!(2.5), "2.5"), (json!("3"), "\"3\""), (json!(1e300), "1e+300")]
        {
            let error = sample(json!({"path": "a", "maxLines": number})).unwrap_err();
            assert!(error.starts_with("read: `maxLines`: expected a whole number of at least 1"), "{error}");
            assert!(error.contains(&format!("found {shown};")), "{error}");
        }
    }

    #[test]
    fn every_unknown_key_is_named_with_what_the_tool_takes() {
        let error = sample(json!({"path": "a", "file": 1, "lines": 2})).unwrap_err();
        assert_eq!(error, "read: unknown arguments `file`, `lines`; nothing was done. read takes `path`, `maxLines`");
    }

    #[test]
    fn a_missing_key_and_a_wrong_type_are_named() {
        let error = sample(json!({})).unwrap_err();
        assert_eq!(
            error,
            "read: `path`: is required and was not given; nothing was done. read takes `path`, `maxLines`"
        );
        let error = sample(json!({"maxLines": 1, "path": ["x"]})).unwrap_err();
        assert!(error.starts_with("read: `path`: invalid type: sequence, expected a string"), "{error}");
    }

    #[test]
    fn a_huge_value_or_key_is_cut_in_the_message() {
        let error = sample(json!({"path": "a", "maxLines": "9".repeat(100_000)})).unwrap_err();
        assert!(error.len() < 300, "{} bytes", error.len());
        let error = sample(json!({"path": {"k".repeat(100_000): "v".repeat(100_000)}})).unwrap_err();
        assert!(error.len() < 500, "{} bytes", error.len());
        let error = sample(json!({"path": "a", "k".repeat(100_000): 1})).unwrap_err();
        assert!(error.len() < 300, "{} bytes", error.len());
    }

    #[test]
    fn a_tool_without_arguments_says_so() {
        #[derive(Debug, Deserialize)]
        struct Nothing {}
        let Value::Object(object) = json!({"a": 1}) else { panic!("not an object") };
        let error = parse::<Nothing>("list", object).unwrap_err();
        assert_eq!(error, "list: unknown argument `a`; nothing was done. list takes no arguments");
    }
}
