//! Both forms of the original's bindings, its receipts, and files that are something else.

use super::*;

fn binding(chat: &str, session: &str, last_used: Option<u64>) -> ImportedBinding {
    ImportedBinding { conversation: chat.into(), session: session.into(), last_used: last_used.map(Millis) }
}

fn refusal(file: &str) -> String {
    parse(file.as_bytes()).unwrap_err().to_string()
}

#[test]
fn s6_2_both_forms_of_bindings_are_read_even_mixed() {
    let file = r#"{"bindings":{
        "a":"S1",
        "b":{"sessionId":"S2","lastUsedAt":1790000000000},
        "c":{"sessionId":"S3","lastUsedAt":1790000000000.0},
        "d":{"sessionId":"S4","lastUsedAt":"2026-09-21T14:13:20Z"},
        "e":{"sessionId":"S5"}
    }}"#;
    let expected = vec![
        binding("a", "S1", None),
        binding("b", "S2", Some(1_790_000_000_000)),
        binding("c", "S3", Some(1_790_000_000_000)),
        binding("d", "S4", Some(1_790_000_000_000)),
        binding("e", "S5", None),
    ];
    assert_eq!(parse(file.as_bytes()).unwrap(), Imported { bindings: expected, ..Imported::default() });
}

#[test]
fn a_byte_order_mark_does_not_hurt() {
    assert_eq!(parse(b"\xef\xbb\xbf{\"bindings\":{\"a\":\"S\"}}").unwrap().bindings, vec![binding("a", "S", None)]);
}

#[test]
fn s8_2_a_running_operation_is_uncertain_and_a_completed_one_keeps_its_references() {
    let file = r#"{"operations":[
        {"key":"k1","signature":"s","chatId":"a","sessionId":"S1","cwd":"/w","status":"running","updatedAt":1000},
        {"key":"k2","signature":"s","chatId":"a","sessionId":"S1","cwd":"/w","status":"completed","updatedAt":2000,
         "resources":[{"uri":"chappie://session/S1/file/1/x","name":"x","mimeType":"text/plain","size":3,"sourceReadAt":2500}]},
        {"key":"k3","chatId":"a","sessionId":"S1","status":"failed","updatedAt":3000}
    ]}"#;
    let receipts = parse(file.as_bytes()).unwrap().receipts;
    let told: Vec<_> = receipts.iter().map(|r| (r.key.0.as_str(), r.status, r.reason.as_deref())).collect();
    assert_eq!(
        told,
        [
            ("k1", ReceiptStatus::Uncertain, Some("it was running when the original's state was saved")),
            ("k2", ReceiptStatus::Completed, None),
            ("k3", ReceiptStatus::Uncertain, Some("the original called it failed")),
        ]
    );
    assert_eq!(receipts[1].resources[0].source_read_at, Some(Millis(2_500)));
    assert!(receipts.iter().all(|receipt| receipt.imported));
}

#[test]
fn a_record_that_names_its_operation_gets_the_key_a_replay_looks_for() {
    let file = r#"{"operations":[{"key":"k","operationId":"op-1","chatId":"a","sessionId":"S","status":"completed","updatedAt":1}]}"#;
    let conversation = Conversation::Chat("a".into());
    let expected = receipt_key(ReceiptScope::Conversation(&conversation), ReceiptKind::Call, "op-1");
    assert_eq!(parse(file.as_bytes()).unwrap().receipts[0].key, expected);
}

#[test]
fn other_parts_are_skipped_by_name_and_count() {
    let file = r#"{"deliveries":[{},{}],"questions":[],"deliveredIds":["x"],"managedSessions":{"s":{}}}"#;
    let skipped = parse(file.as_bytes()).unwrap().skipped;
    let told: Vec<_> = skipped.iter().map(|part| (part.name.as_str(), part.count)).collect();
    assert_eq!(told, [("deliveries", 2), ("deliveredIds", 1), ("managedSessions", 1)]);
}

#[test]
fn a_file_of_another_kind_is_refused_naming_the_place() {
    for (file, told) in [
        ("", "not JSON"),
        ("{\"bindings\":", "not JSON"),
        ("[]", "the file: expected a JSON object, found an array"),
        (r#"{"bindings":[]}"#, "bindings: expected an object, found an array"),
        (
            r#"{"bindings":{"a":7}}"#,
            r#"bindings["a"]: expected a session id or {sessionId, lastUsedAt}, found the number 7"#,
        ),
        (r#"{"bindings":{"a":""}}"#, r#"bindings["a"]: expected a session id, found an empty one"#),
        (r#"{"bindings":{"":"S"}}"#, r#"bindings[""]: expected the key, found an empty one"#),
        (r#"{"bindings":{"a":{"lastUsedAt":1}}}"#, r#"bindings["a"].sessionId: expected a text, found nothing"#),
        (
            r#"{"bindings":{"a":{"sessionId":"S","lastUsedAt":-1}}}"#,
            r#"bindings["a"].lastUsedAt: expected a time stamp"#,
        ),
        (r#"{"bindings":{"a":{"sessionId":"S","lastUsedAt":"soon"}}}"#, r#"found the text "soon""#),
        (r#"{"operations":{}}"#, "operations: expected an array, found an object"),
        (r#"{"operations":[3]}"#, "operations[0]: expected an object, found the number 3"),
        (r#"{"operations":[{"chatId":"a"}]}"#, "operations[0].updatedAt: expected a time stamp"),
    ] {
        assert!(refusal(file).contains(told), "{file}: {}", refusal(file));
    }
}

#[test]
fn texts_that_would_not_fit_the_state_are_refused() {
    let long = "x".repeat(300);
    assert!(refusal(&format!(r#"{{"bindings":{{"{long}":"S"}}}}"#)).contains("one of 300 bytes"));
    assert!(refusal(&format!(r#"{{"bindings":{{"a":"{long}"}}}}"#)).contains("at most 96"));
}

#[test]
fn a_huge_file_is_refused_before_it_is_parsed() {
    let file = vec![b' '; IMPORT_BYTES_MAX + 1];
    assert_eq!(parse(&file), Err(ImportError::TooBig { found: IMPORT_BYTES_MAX as u64 + 1 }));
}
