//! Checks arguments against a tool's own flat schema, so that what `tools/list` promises is what is enforced. Pure.

use serde_json::Value;

use crate::content::JsonObject;

/// Characters of an unknown key that an error repeats.
const KEY_SHOWN_MAX: usize = 100;

/// Checks `arguments` against `schema`: unknown keys, missing keys, types, lengths, ranges.
///
/// # Errors
/// A sentence for the model: what was expected, what was found, what the tool takes.
pub(super) fn check(tool: &str, schema: &Value, arguments: &JsonObject) -> Result<(), String> {
    let empty = JsonObject::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    for key in arguments.keys() {
        if !properties.contains_key(key) {
            let known = properties.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let key = shorten(key);
            return Err(format!("{tool} has no argument {key:?}; it takes: {known}. Nothing was done"));
        }
    }
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !arguments.contains_key(key) {
            return Err(format!("{tool} needs the argument {key:?}. Nothing was done"));
        }
    }
    for (key, value) in arguments {
        value_fits(&properties[key], value)
            .map_err(|cause| format!("{tool}: the argument {key:?} {cause}. Nothing was done"))?;
    }
    Ok(())
}

fn value_fits(schema: &Value, value: &Value) -> Result<(), String> {
    let expected = schema["type"].as_str().unwrap_or("any value");
    let right = match expected {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    if !right {
        return Err(format!("must be {}, found {}", article(expected), kind(value)));
    }
    match value {
        Value::String(text) => length(schema, "minLength", "maxLength", text.chars().count(), "characters"),
        Value::Array(items) => {
            length(schema, "minItems", "maxItems", items.len(), "items")?;
            let Some(item_schema) = schema.get("items") else { return Ok(()) };
            items.iter().enumerate().try_for_each(|(index, item)| {
                value_fits(item_schema, item).map_err(|cause| format!("at [{index}] {cause}"))
            })
        }
        Value::Number(number) => range(schema, number.as_f64().unwrap_or(f64::NAN)),
        Value::Object(object) => members(schema, object),
        _ => Ok(()),
    }
}

fn members(schema: &Value, object: &JsonObject) -> Result<(), String> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Ok(()) };
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(key) {
            return Err(format!("lacks {key:?}"));
        }
    }
    for (key, value) in object {
        match properties.get(key) {
            Some(schema) => value_fits(schema, value).map_err(|cause| format!("in {key:?} {cause}"))?,
            None => {
                let known = properties.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let key = shorten(key);
                return Err(format!("has an unknown key {key:?}; it takes: {known}"));
            }
        }
    }
    Ok(())
}

/// A key of any length may come; the answer has a budget.
fn shorten(key: &str) -> String {
    key.chars().take(KEY_SHOWN_MAX).collect()
}

fn length(schema: &Value, least: &str, most: &str, found: usize, unit: &str) -> Result<(), String> {
    let found = found as u64;
    if let Some(least) = schema[least].as_u64().filter(|least| found < *least) {
        return Err(format!("must have at least {least} {unit}, found {found}"));
    }
    if let Some(most) = schema[most].as_u64().filter(|most| found > *most) {
        return Err(format!("must have at most {most} {unit}, found {found}"));
    }
    Ok(())
}

fn range(schema: &Value, found: f64) -> Result<(), String> {
    if let Some(least) = schema["minimum"].as_f64().filter(|least| found < *least) {
        return Err(format!("must be at least {least}, found {found}"));
    }
    if let Some(most) = schema["maximum"].as_f64().filter(|most| found > *most) {
        return Err(format!("must be at most {most}, found {found}"));
    }
    Ok(())
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn article(expected: &str) -> String {
    let vowel = expected.starts_with(['a', 'i', 'o']);
    format!("{} {expected}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1},
                "limit": {"type": "integer", "minimum": 1, "maximum": 9},
                "names": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                "edits": {"type": "array", "items": {
                    "type": "object", "properties": {"oldText": {"type": "string"}}, "required": ["oldText"]
                }}
            },
            "required": ["path"],
            "additionalProperties": false
        })
    }

    fn verdict(arguments: Value) -> Result<(), String> {
        check("t", &schema(), arguments.as_object().unwrap())
    }

    #[test]
    fn what_fits_passes() {
        verdict(json!({"path": "a", "limit": 3.0, "names": ["x"], "edits": [{"oldText": ""}]})).unwrap();
    }

    #[test]
    fn every_misfit_is_named() {
        for (arguments, word) in [
            (json!({}), "needs the argument \"path\""),
            (json!({"path": "a", "pth": 1}), "no argument \"pth\"; it takes: path, limit"),
            (json!({"path": 7}), "must be a string, found a number"),
            (json!({"path": null}), "found null"),
            (json!({"path": ""}), "at least 1 characters"),
            (json!({"path": "a", "limit": 0}), "at least 1, found 0"),
            (json!({"path": "a", "limit": 1.5}), "must be an integer"),
            (json!({"path": "a", "limit": 10}), "at most 9"),
            (json!({"path": "a", "names": []}), "at least 1 items"),
            (json!({"path": "a", "names": ["x", 1]}), "at [1] must be a string"),
            (json!({"path": "a", "edits": [{}]}), "at [0] lacks \"oldText\""),
            (json!({"path": "a", "edits": [{"oldText": "", "x": 1}]}), "unknown key \"x\""),
        ] {
            let error = verdict(arguments).unwrap_err();
            assert!(error.contains(word) && error.contains("Nothing was done"), "{error}");
        }
    }
}
