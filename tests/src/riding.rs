//! What rides along with answers - late results and what people type - and the rule on how often it may come (failure rule
//! F7): once, or again only with the word that it is a repetition. The one owner of that rule for all tests.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Answer, Client, answer::excerpt, wait::within};

/// How long a late result may take: a device that was away comes back, an unsettled delivery lapses (20 s).
const LATE: Duration = Duration::from_secs(40);

/// The texts of all late results of an answer.
#[must_use]
pub fn late_texts(answer: &Answer) -> Vec<String> {
    let text = |results: Vec<crate::answer::Section>| {
        results.into_iter().map(|result| result.text).collect::<Vec<_>>().join("\n")
    };
    answer.late_results().into_iter().map(|(_, results)| text(results)).collect()
}

/// What people typed, as an answer brings it for the first time.
#[must_use]
pub fn typed(answer: &Answer) -> Vec<String> {
    let first = answer.inputs().into_iter().filter(|input| input.head["redelivered"] != true);
    first.map(|input| input.text).collect()
}

/// Makes sure that an answer, no error, says that its work goes on beyond the call budget (failure rule F5): it runs, or a
/// busy machine has not begun it yet.
///
/// # Panics
/// When it does not.
pub fn goes_on(answer: &Answer) {
    let status = answer.header()["operation"]["status"].clone();
    assert!(status == "running" || status == "queued", "{status}: {}", excerpt(&answer.text()));
}

/// Calls until a late result comes, and makes sure that it has `word` and comes once.
///
/// # Panics
/// When it does not come or comes once more.
pub async fn late_once(chat: &Client, word: &str) {
    let late = within(LATE, "the late result", async || {
        let late = late_texts(&chat.call("bash", json!({"command": "true"})).await);
        (!late.is_empty()).then_some(late)
    })
    .await;
    assert!(late.len() == 1 && late[0].contains(word), "{late:?}");
    for _ in 0..2 {
        nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
    }
}

/// Makes sure that an answer brings no late result and no input but those that it says were brought before.
///
/// # Panics
/// When it does.
pub fn nothing_again(answer: &Answer) {
    let late: Vec<Value> = answer.late_results().into_iter().map(|(head, _)| head).collect();
    let inputs: Vec<Value> = answer.inputs().into_iter().map(|input| input.head).collect();
    let fresh: Vec<&Value> = late.iter().chain(&inputs).filter(|head| head["redelivered"] != true).collect();
    assert!(fresh.is_empty(), "brought once more: {fresh:?}");
}
