//! Selection and bindings (behaviour 6).

use super::*;

#[tokio::test]
async fn s6_1_simultaneous_new_conversations_get_distinct_sessions() {
    let home = tempfile::tempdir().unwrap();
    let broker = Broker::open(home.path(), patient()).unwrap();
    let names: Vec<String> = (0..32).map(|n| format!("s{n:02}")).collect();
    broker.announce(online(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let broker = broker.clone();
        tasks.spawn(async move { broker.select(operate(&chat(&format!("c{n}")))).await.unwrap().session });
    }
    let mut chosen = tasks.join_all().await;
    chosen.sort();
    chosen.dedup();
    assert_eq!(chosen.len(), 32);
    broker.close().await;
}
