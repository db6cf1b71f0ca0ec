//! Participation (behaviour 10) and rollback (behaviour 6.2).

use super::*;

async fn mode(rig: &Rig, ask: Ask<'_>) -> Option<Mode> {
    rig.broker.select(ask).await.unwrap().mode
}

#[tokio::test]
async fn s10_a_second_init_within_the_window_observes_and_does_not_renew_it() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let conversation = chat("c");
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Executor));
    rig.clock.advance(10_000);
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Observer));
    rig.clock.advance(9_999);
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Observer));
    rig.clock.advance(2);
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Executor));
    rig.clock.advance(19_999);
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Observer));
}

#[tokio::test]
async fn s10_a_cooldown_of_zero_turns_windows_off() {
    let rig = Rig::new(Settings { cooldown: Duration::ZERO, ..quick() }).await;
    rig.broker.announce(online(&["s1"]));
    let conversation = chat("c");
    rig.broker.open_window(&conversation, &session("s1"));
    for _ in 0..3 {
        assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Executor));
    }
}

#[tokio::test]
async fn s10_a_window_is_of_one_conversation_in_one_session() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1", "s2"]));
    let (a, b) = (chat("a"), chat("b"));
    assert_eq!(mode(&rig, init(&a, Some("s1"))).await, Some(Mode::Executor));
    assert_eq!(mode(&rig, init(&b, Some("s1"))).await, Some(Mode::Executor));
    assert_eq!(mode(&rig, init(&a, Some("s2"))).await, Some(Mode::Executor));
    assert_eq!(mode(&rig, init(&a, Some("s1"))).await, Some(Mode::Observer));
}

#[tokio::test]
async fn s10_reading_a_resource_opens_and_renews_the_window() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let conversation = chat("c");
    rig.broker.open_window(&conversation, &session("s1"));
    rig.clock.advance(15_000);
    rig.broker.open_window(&conversation, &session("s1"));
    rig.clock.advance(19_999);
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Observer));
}

#[tokio::test]
async fn s10_windows_end_with_the_broker() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let conversation = chat("c");
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Executor));
    let rig = rig.restart().await;
    rig.broker.announce(online(&["s1"]));
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Executor));
}

#[tokio::test]
async fn s6_2_a_failed_inits_binding_is_rolled_back_and_its_window_closed() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1", "s2"]));
    let conversation = chat("c");
    let first = rig.broker.select(init(&conversation, None)).await.unwrap();
    rig.broker.rollback(first.bound.unwrap()).await;
    assert_eq!((rig.broker.binding(&conversation), rig.broker.binding_counts().len()), (None, 0));

    let again = rig.broker.select(init(&conversation, None)).await.unwrap();
    assert_eq!(again.mode, Some(Mode::Executor));
    let moved = rig.broker.select(init(&conversation, Some("s2"))).await.unwrap();
    rig.broker.rollback(moved.bound.unwrap()).await;
    assert_eq!(rig.broker.binding(&conversation), Some(session("s1")));
    assert_eq!(rig.after_power_cut().await.broker.binding(&conversation), Some(session("s1")));
}

#[tokio::test]
async fn s6_2_an_init_of_the_existing_default_can_only_give_its_window_back() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1"]));
    let conversation = chat("c");
    rig.session_of(operate(&conversation)).await;
    rig.clock.advance(60_000);
    let failed = rig.broker.select(init(&conversation, None)).await.unwrap().bound.unwrap();
    assert_eq!(failed.left(), None);
    rig.broker.rollback(failed).await;
    assert_eq!(rig.broker.binding(&conversation), Some(session("s1")));
    assert_eq!(mode(&rig, init(&conversation, None)).await, Some(Mode::Executor));
    let observer = rig.broker.select(init(&conversation, None)).await.unwrap();
    assert_eq!((observer.mode, observer.bound), (Some(Mode::Observer), None));
}

#[tokio::test]
async fn s6_2_a_binding_that_was_used_or_changed_since_stays() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1", "s2", "s3"]));
    let used = chat("used");
    let bound = rig.broker.select(init(&used, None)).await.unwrap().bound.unwrap();
    rig.session_of(operate(&used)).await;
    rig.broker.rollback(bound).await;
    assert_eq!(rig.broker.binding(&used), Some(session("s1")));

    let changed = chat("changed");
    let bound = rig.broker.select(init(&changed, Some("s2"))).await.unwrap().bound.unwrap();
    rig.session_of(init(&changed, Some("s3"))).await;
    rig.broker.rollback(bound).await;
    assert_eq!(rig.broker.binding(&changed), Some(session("s3")));
}

#[tokio::test]
async fn d12_a_connections_default_is_rolled_back_in_memory() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1", "s2"]));
    let stdio = connection("1");
    let first = rig.broker.select(init(&stdio, None)).await.unwrap().bound.unwrap();
    rig.broker.rollback(first).await;
    assert_eq!(rig.broker.binding(&stdio), None);
    rig.session_of(init(&stdio, Some("s1"))).await;
    let moved = rig.broker.select(init(&stdio, Some("s2"))).await.unwrap().bound.unwrap();
    rig.broker.rollback(moved).await;
    assert_eq!((rig.broker.binding(&stdio), rig.applied()), (Some(session("s1")), 0));
}

#[tokio::test]
async fn a_rollback_waits_for_a_failed_disk_and_selections_wait_for_the_rollback() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1", "s2"]));
    let conversation = chat("c");
    rig.session_of(init(&conversation, Some("s1"))).await;
    let moved = rig.broker.select(init(&conversation, Some("s2"))).await.unwrap().bound.unwrap();
    rig.disk.fail(crate::storage::faulty::Fault::SyncLost);
    let mut undoing = Box::pin(rig.broker.rollback(moved));
    start(undoing.as_mut());
    let mut next = Box::pin(rig.broker.select(operate(&conversation)));
    start(next.as_mut());
    until(|| rig.broker.trouble().is_some()).await;
    rig.disk.mend();
    assert_eq!(next.await.unwrap().session, session("s1"));
    undoing.await;
}
