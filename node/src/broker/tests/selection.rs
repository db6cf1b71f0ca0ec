//! Selection and bindings (behaviour 6).

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6_1_simultaneous_new_conversations_get_distinct_sessions() {
    let rig = Rig::new(patient()).await;
    let names: Vec<String> = (0..32).map(|n| format!("s{n:02}")).collect();
    rig.broker.announce(online(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let broker = rig.broker.clone();
        tasks.spawn(async move { broker.select(operate(&chat(&format!("c{n}")))).await.unwrap().session.0 });
    }
    let mut chosen = tasks.join_all().await;
    chosen.sort();
    assert_eq!(chosen, names);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6_1_parallel_calls_of_one_new_conversation_end_on_one_session() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1", "s2", "s3"]));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let broker = rig.broker.clone();
        tasks.spawn(async move { broker.select(operate(&chat("c"))).await.unwrap() });
    }
    let chosen = tasks.join_all().await;
    assert!(chosen.iter().all(|selection| selection.session == session("s1")));
    assert_eq!(chosen.iter().filter(|selection| selection.mode == Some(Mode::Executor)).count(), 1);
    assert_eq!(chosen.iter().filter(|selection| selection.how == How::Automatic).count(), 1);
    assert_eq!(rig.broker.binding_counts(), [(session("s1"), 1)].into());
}

#[tokio::test]
async fn f13_sessions_are_taken_by_creation_stamp_and_id() {
    let rig = Rig::new(patient()).await;
    let at = |id: &str, created| Announced { session: session(id), created: Millis(created), cwd: PathBuf::new() };
    rig.broker.announce(vec![at("z", 5), at("b", 9), at("a", 9), at("m", 2)]);
    for (conversation, expected) in [("1", "m"), ("2", "z"), ("3", "a"), ("4", "b")] {
        assert_eq!(rig.session_of(operate(&chat(conversation))).await, expected);
    }
}

#[tokio::test]
async fn s6_1_a_cancelled_bind_frees_the_session_for_a_waiter() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1"]));
    rig.disk.hold();
    let (first, second) = (chat("first"), chat("second"));
    let mut holder = Box::pin(rig.broker.select(operate(&first)));
    start(holder.as_mut());
    let mut waiter = Box::pin(rig.broker.select(operate(&second)));
    start(waiter.as_mut());
    drop(holder);
    rig.disk.release();
    assert_eq!(waiter.await.unwrap().session, session("s1"));
    assert_eq!((rig.broker.binding(&first), rig.broker.binding(&second)), (None, Some(session("s1"))));
    assert_eq!(rig.after_power_cut().await.broker.binding(&first), None);
}

#[tokio::test]
async fn s6_1_a_bind_whose_caller_left_just_before_hearing_of_it_is_taken_back() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1"]));
    let first = chat("first");
    let mut applied = rig.broker.subscribe();
    rig.disk.hold();
    let mut holder = Box::pin(rig.broker.select(operate(&first)));
    start(holder.as_mut());
    rig.disk.release();
    applied.changed().await.unwrap();
    until(|| rig.broker.binding(&first).is_some()).await;
    drop(holder);
    assert_eq!(rig.session_of(operate(&chat("second"))).await, "s1");
    assert_eq!(rig.broker.binding(&first), None);
}

#[tokio::test]
async fn s6_1_a_failed_bind_frees_the_session() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1"]));
    rig.disk.fail(crate::storage::faulty::Fault::SyncLost);
    let error = rig.broker.select(operate(&chat("first"))).await.unwrap_err();
    assert!(matches!(error, SelectError::Propose(ProposeError::Unknown(_) | ProposeError::NotWritten(_))), "{error}");
    rig.disk.mend();
    until(|| rig.broker.trouble().is_none()).await;
    assert_eq!(rig.session_of(operate(&chat("second"))).await, "s1");
    assert_eq!(rig.broker.binding(&chat("first")), None);
}

#[tokio::test]
async fn s6_1_a_waiters_timeout_does_not_disturb_the_holder() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    rig.disk.hold();
    let first = chat("first");
    let mut holder = Box::pin(rig.broker.select(operate(&first)));
    start(holder.as_mut());
    let refused = rig.broker.select(operate(&chat("second"))).await.unwrap_err();
    assert_eq!(refused, SelectError::NoneFree { online: 1, waited: Duration::from_millis(60) });
    rig.disk.release();
    assert_eq!(holder.await.unwrap().session, session("s1"));
    assert_eq!(rig.broker.binding(&first), Some(session("s1")));
}

#[tokio::test]
async fn s6_1_a_waiter_gets_a_session_that_comes_online() {
    let rig = Rig::new(patient()).await;
    let conversation = chat("c");
    for (ask, expected) in [(operate(&conversation), "s1"), (operate_on(&conversation, "s2"), "s2")] {
        let mut waiting = Box::pin(rig.broker.select(ask));
        start(waiting.as_mut());
        rig.broker.announce(online(&["s1", expected]));
        assert_eq!(waiting.await.unwrap().session, session(expected));
    }
}

#[tokio::test]
async fn s6_1_refusals_name_the_session_and_what_to_do() {
    let rig = Rig::new(quick()).await;
    let conversation = chat("c");
    rig.broker.announce(online(&["s1"]));
    rig.session_of(operate(&conversation)).await;
    rig.broker.announce(online(&["s2"]));
    let stateless = |session, purpose| Ask { conversation: None, session, purpose };
    let offline = rig.broker.select(operate_on(&conversation, "s9")).await.unwrap_err();
    let default = rig.broker.select(operate(&conversation)).await.unwrap_err();
    let target = rig.broker.target(Some(&conversation), None).await.unwrap_err();
    let nowhere = rig.broker.select(stateless(None, Purpose::Operate)).await.unwrap_err();
    let unbindable = rig.broker.select(stateless(Some(session("s2")), Purpose::Init)).await.unwrap_err();
    for (error, told) in [
        (&offline, ["s9", "`sessions`"]),
        (&default, ["s1", "not replaced"]),
        (&target, ["s1", "not replaced"]),
        (&nowhere, ["sessionId", "openai/session"]),
        (&unbindable, ["`init` needs a conversation", "sessionId"]),
    ] {
        assert!(told.iter().all(|text| error.to_string().contains(text)), "{error}");
    }
    assert_eq!(rig.broker.binding(&conversation), Some(session("s1")));
}

#[tokio::test]
async fn s6_1_another_tools_session_id_moves_no_default_and_inits_does() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1", "s2", "s3"]));
    let conversation = chat("c");
    let first = rig.broker.select(operate_on(&conversation, "s2")).await.unwrap();
    assert_eq!((first.how, first.mode), (How::Explicit, Some(Mode::Executor)));
    assert_eq!(first.bound.unwrap().left(), Some(None));
    let other = rig.broker.select(operate_on(&conversation, "s3")).await.unwrap();
    assert_eq!((other.session, other.mode, other.bound), (session("s3"), None, None));
    assert_eq!(rig.broker.binding(&conversation), Some(session("s2")));
    let moved = rig.broker.select(init(&conversation, Some("s3"))).await.unwrap();
    assert_eq!((moved.how, moved.mode), (How::Explicit, Some(Mode::Executor)));
    assert_eq!(moved.bound.unwrap().left(), Some(Some(&session("s2"))));
    let kept = rig.broker.select(init(&conversation, None)).await.unwrap();
    assert_eq!((kept.session, kept.how, kept.mode), (session("s3"), How::Existing, Some(Mode::Observer)));
    let operated = rig.broker.select(operate(&conversation)).await.unwrap();
    assert_eq!((operated.session, operated.mode), (session("s3"), None));
}

#[tokio::test]
async fn s6_1_an_explicit_choice_may_share_a_bound_session() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1"]));
    rig.session_of(operate(&chat("a"))).await;
    assert_eq!(rig.session_of(operate_on(&chat("b"), "s1")).await, "s1");
    assert_eq!(rig.broker.binding_counts(), [(session("s1"), 2)].into());
}

#[tokio::test]
async fn s6_1_history_takes_the_named_or_the_default_and_binds_nothing() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1", "s2"]));
    let conversation = chat("c");
    assert_eq!(rig.broker.target(Some(&conversation), None).await, Err(SelectError::NoDefault));
    assert_eq!(rig.broker.target(None, None).await, Err(SelectError::NoTarget));
    assert_eq!(rig.broker.target(Some(&conversation), Some(session("s2"))).await, Ok(session("s2")));
    assert_eq!(rig.broker.target(None, Some(session("s2"))).await, Ok(session("s2")));
    assert_eq!((rig.broker.binding(&conversation), rig.applied()), (None, 0));
    rig.session_of(operate(&conversation)).await;
    assert_eq!(rig.broker.target(Some(&conversation), None).await, Ok(session("s1")));
}

#[tokio::test]
async fn d12_a_stateless_caller_names_its_session_and_binds_nothing() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let ask = Ask { conversation: None, session: Some(session("s1")), purpose: Purpose::Operate };
    let chosen = rig.broker.select(ask).await.unwrap();
    assert_eq!((chosen.session, chosen.mode, chosen.bound), (session("s1"), None, None));
    assert_eq!(rig.applied(), 0);
}

#[tokio::test]
async fn d12_a_connections_default_lives_in_memory_only() {
    let rig = Rig::new(patient()).await;
    rig.broker.announce(online(&["s1", "s2"]));
    let (stdio, other, third) = (connection("1"), connection("2"), connection("3"));
    assert_eq!(rig.session_of(operate(&stdio)).await, "s1");
    assert_eq!(rig.session_of(operate(&stdio)).await, "s1");
    assert_eq!(rig.session_of(operate(&other)).await, "s2");
    // Nothing else is free: a connection may be gone without having said so.
    assert_eq!(rig.session_of(operate(&third)).await, "s1");
    assert_eq!(rig.session_of(operate(&chat("c"))).await, "s1");
    assert_eq!(rig.broker.binding_counts(), [(session("s1"), 1)].into());
    rig.broker.disconnected(&stdio);
    assert_eq!(rig.broker.binding(&stdio), None);
    let rig = rig.restart().await;
    assert_eq!((rig.broker.binding(&other), rig.broker.binding(&chat("c"))), (None, Some(session("s1"))));
}

#[tokio::test]
async fn s6_2_a_binding_idle_for_30_days_is_ignored_everywhere_and_then_removed() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let (old, new) = (chat("old"), chat("new"));
    rig.session_of(operate(&old)).await;
    rig.clock.advance(30 * DAY);
    assert_eq!(rig.broker.binding(&old), Some(session("s1")));
    assert!(matches!(rig.broker.select(operate(&new)).await, Err(SelectError::NoneFree { online: 1, .. })));
    rig.clock.advance(1);
    assert_eq!((rig.broker.binding(&old), rig.broker.binding_counts().len()), (None, 0));
    assert_eq!(rig.broker.target(Some(&old), None).await, Err(SelectError::NoDefault));
    assert_eq!(rig.session_of(operate(&new)).await, "s1");
    rig.clock.advance(2 * DAY);
    rig.broker.delivered(&new, vec!["x".into()]).await.unwrap();
    assert_eq!(rig.broker.shared.state().bindings.keys().collect::<Vec<_>>(), ["new"]);
}

#[tokio::test]
async fn s6_2_an_expired_binding_can_be_made_anew() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1", "s2"]));
    let conversation = chat("c");
    rig.session_of(operate_on(&conversation, "s2")).await;
    rig.clock.advance(30 * DAY + 1);
    let again = rig.broker.select(operate(&conversation)).await.unwrap();
    assert_eq!((again.session, again.how), (session("s1"), How::Automatic));
}

#[tokio::test]
async fn s6_2_a_use_counts_at_once_and_is_written_once_a_day() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let conversation = chat("c");
    rig.session_of(operate(&conversation)).await;
    let bound = rig.applied();
    rig.clock.advance(DAY - 1);
    rig.session_of(operate(&conversation)).await;
    rig.broker.close().await;
    assert_eq!(rig.applied(), bound);

    // In memory it counts: 30 days after the written use, 29 after the real one.
    rig.clock.advance(29 * DAY + 2);
    assert_eq!(rig.broker.binding(&conversation), Some(session("s1")));

    // On disk it does not; but a broker that starts 30 days after its last stamp lets nothing expire by that (F14).
    let rig = Rig::on(rig.disk, rig.clock, quick()).await;
    assert_eq!(rig.broker.shared.state().bindings["c"].last_used, Millis(START));
    assert_eq!(rig.broker.binding(&conversation), Some(session("s1")));
}

#[tokio::test]
async fn s6_2_a_use_a_day_later_is_written_and_only_one() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let conversation = chat("c");
    rig.session_of(operate(&conversation)).await;
    let bound = rig.applied();
    rig.clock.advance(DAY);
    for _ in 0..5 {
        rig.session_of(operate(&conversation)).await;
    }
    let rig = rig.restart().await;
    assert_eq!(rig.applied(), bound + 1);
    assert_eq!(rig.broker.shared.state().bindings["c"].last_used, Millis(START + DAY));
}

#[tokio::test]
async fn a_conversation_id_that_would_not_fit_is_refused_and_nothing_is_kept() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let error = rig.broker.select(operate(&chat(&"x".repeat(10_000)))).await.unwrap_err();
    assert!(error.to_string().contains("10000 bytes where at most 256 bytes"), "{error}");
    assert_eq!(rig.session_of(operate(&chat("c"))).await, "s1");
}

#[test]
fn a_caller_without_conversation_is_not_sent_to_init() {
    let nowhere = SelectError::NoTarget.to_string();
    assert!(!nowhere.contains("init"), "{nowhere}");
    assert!(nowhere.contains("sessionId") && nowhere.contains("_meta[\"openai/session\"]"), "{nowhere}");
    assert!(SelectError::NoDefault.to_string().contains("`init`"));
}

/// Sessions of a hundred devices and more.
fn fleet(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("s{n:05}")).collect()
}

#[test]
fn f13_the_one_free_session_of_a_large_fleet_is_found_and_what_is_beyond_the_limit_is_left_out() {
    let names = fleet(limits::SESSIONS_MAX + 1);
    let mut volatile = volatile::Volatile::default();
    assert!(volatile.announce(online(&names.iter().map(String::as_str).collect::<Vec<_>>())));
    assert_eq!(volatile.count(), limits::SESSIONS_MAX);
    assert!(!volatile.online(&session(names.last().unwrap())));

    // Every chat that can be saved has a session, and the last session has none.
    let last = limits::SESSIONS_MAX - 1;
    let binding = |n: usize| state::Binding {
        session: session(&names[n % last]),
        last_used: Millis(START),
        idle_from: Millis(START),
        revision: 1,
    };
    let bindings = (0..limits::BINDINGS_MAX).map(|n| (format!("c{n}"), binding(n))).collect();
    let mut state = state::State { bindings, ..state::State::default() };
    let whose = chat("new");
    let wish = select::Wish { conversation: Some(&whose), session: None, purpose: Purpose::Operate };
    let chosen = |state: &state::State, at: u64| match select::decide(state, &volatile, wish, Millis(at)) {
        select::Decision::Use { session, .. } => Some(session.0),
        select::Decision::Wait(select::Missing::Free { online }) => {
            assert_eq!(online, limits::SESSIONS_MAX);
            None
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(chosen(&state, START).as_ref(), Some(&names[last]));
    state.bindings.insert("c0".into(), state::Binding { session: session(&names[last]), ..binding(0) });
    // The first session still has the chat that came round to it.
    assert_eq!(chosen(&state, START), None);
    // Idle chats hold none.
    assert_eq!(chosen(&state, START + 31 * DAY).as_ref(), Some(&names[0]));
}

#[tokio::test]
async fn an_announcement_that_says_nothing_new_wakes_nobody() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1", "s2"]));
    let mut changed = rig.broker.shared.changed.subscribe();
    changed.borrow_and_update();
    rig.broker.announce(online(&["s1", "s2"]));
    assert!(!changed.has_changed().unwrap());
    rig.broker.announce(online(&["s2"]));
    assert!(changed.has_changed().unwrap());
}
