//! The mesh through the handle: founding, invites, joining, forgetting, merging, starting over.

use chappie_mesh::{
    Admission, InviteId, InviteKey, MeshId, Roster,
    consensus::{Epoch, Group},
    fresh_invite,
};

use super::{
    command::{Command, Stamped},
    membership::{Joined, Membership},
    state::State,
    testing::alone,
    *,
};
use crate::storage::{
    faulty::Fault,
    medium::Medium,
    relics::{make_format_3, store_path},
};

const MINUTE: u64 = 60_000;
const TLS: [u8; 32] = [5; 32];

fn mesh(n: u8) -> MeshId {
    MeshId::from([n; 16])
}

fn invite(n: u8) -> (InviteId, InviteKey) {
    let (id, secret) = fresh_invite([n; 24]);
    (id, secret.key())
}

/// The broker of a mesh that node 1, `first`, founded.
async fn founded() -> Rig {
    Rig::new(quick()).await
}

/// The roster of node 1 alone, in the mesh and epoch that `rig` founded.
fn alone_in(rig: &Broker, name: &str) -> Roster {
    let Group { mesh, epoch } = rig.group();
    Roster { epoch_id: epoch.id, ..Roster::alone(mesh, node(1), name.into()) }
}

async fn open_invite(rig: &Rig, n: u8, uses: u32) {
    let (id, key) = invite(n);
    rig.broker.invite(id, key, uses, 10 * MINUTE).await.unwrap();
}

async fn join(rig: &Rig, who: u8, with: u8) -> Result<Arc<Roster>, AdmitError> {
    let (id, key) = invite(with);
    rig.broker.admit(node(who), &format!("n{who}"), id, TLS, key.prove(&TLS)).await
}

fn names(roster: &Roster) -> Vec<&str> {
    roster.members.values().map(|member| member.name.as_str()).collect()
}

fn group(n: u8, count: u64) -> Group {
    Group { mesh: mesh(n), epoch: Epoch { count, id: [n; 16] } }
}

#[tokio::test]
async fn a_member_that_has_heard_nothing_yet_admits_nobody_and_changes_nothing() {
    let rig = Rig::device(2, "n2", Some(group(1, 1))).await;
    let roster = rig.broker.roster();
    assert_eq!((roster.epoch, roster.version, roster.members.len()), (0, 0, 0));
    assert_eq!(rig.broker.group(), group(1, 1));
    let (id, key) = invite(1);
    assert_eq!(rig.broker.invite(id, key, 1, MINUTE).await, Err(ProposeError::NotBroker.into()));
    assert_eq!(join(&rig, 2, 1).await, Err(AdmitError::Refused));
    assert_eq!(rig.broker.forget(node(2), vec![]).await, Err(ProposeError::NotBroker.into()));
    assert!(rig.broker.merge(node(2), rig.broker.export()).await.is_ok(), "nothing to merge needs no mesh");
    assert!(matches!(rig.broker.recover().await, Err(ProposeError::NotWritten(why)) if why.contains("heard nothing")));
    assert_eq!((rig.applied(), rig.broker.assure().await), (0, Err(ProposeError::NotBroker)));
}

#[tokio::test]
async fn founding_happens_once_and_takes_a_new_name_over() {
    let rig = founded().await;
    let expected = alone_in(&rig.broker, "first");
    assert_eq!((*rig.broker.roster()).clone(), expected);
    let rig = rig.restart().await;
    assert_eq!((rig.applied(), (*rig.broker.roster()).clone()), (0, expected.clone()), "a start writes nothing");
    rig.broker.rename(node(1), "other").await.unwrap();
    let roster = rig.broker.roster();
    assert_eq!((roster.mesh, roster.version, names(&roster)), (expected.mesh, 2, vec!["other"]));
}

/// The broker that device 7 opens on this one's disk.
async fn stolen(rig: Rig) -> Rig {
    rig.broker.close().await;
    let place = Place { name: "clone".into(), ..place(rig.disk.medium(), node(7)) };
    Rig::at(place, rig.disk, rig.clock, quick()).await.unwrap()
}

#[tokio::test]
async fn f15_a_store_that_stood_alone_stays_with_a_new_identity_and_founds_a_mesh_of_its_own() {
    let rig = founded().await;
    open_invite(&rig, 1, 5).await;
    rig.broker.announce(online(&["s1"]));
    rig.session_of(operate(&chat("c"))).await;
    let before = rig.broker.group();
    let rig = stolen(rig).await;
    let roster = rig.broker.roster();
    assert_eq!((names(&roster), roster.members.contains_key(&node(7))), (vec!["clone"], true));
    assert_ne!(rig.broker.group().mesh, before.mesh);
    assert_eq!(join(&rig, 3, 1).await, Err(AdmitError::Refused), "its invites were the other's");
    assert_eq!(rig.broker.binding(&chat("c")), Some(session("s1")));
    let again = rig.broker.group();
    assert_eq!(stolen(rig).await.broker.group(), again, "once");
}

#[tokio::test]
async fn f15_a_store_of_a_mesh_that_others_share_is_copied_and_begun_anew_by_another_identity() {
    let rig = founded().await;
    open_invite(&rig, 1, 5).await;
    join(&rig, 2, 1).await.unwrap();
    rig.broker.announce(online(&["s1"]));
    rig.session_of(operate(&chat("c"))).await;
    let rig = stolen(rig).await;
    assert_eq!(names(&rig.broker.roster()), ["clone"]);
    assert_eq!(rig.broker.binding(&chat("c")), None);
    assert!(!rig.disk.bytes("consensus.redb.other-mesh-1.bak").is_empty());
}

#[tokio::test]
async fn the_roster_survives_a_restart_and_a_power_cut_and_watchers_see_every_change_of_members() {
    let rig = founded().await;
    let mut rosters = rig.broker.rosters();
    rosters.borrow_and_update();
    open_invite(&rig, 1, 2).await;
    assert!(!rosters.has_changed().unwrap(), "an invite is nobody's business");
    let told = join(&rig, 2, 1).await.unwrap();
    assert!(rosters.has_changed().unwrap());
    assert_eq!((&told, names(&told)), (&*rosters.borrow_and_update(), vec!["first", "n2"]));
    let cut = rig.after_power_cut().await;
    assert_eq!(cut.broker.roster(), told);
    assert_eq!(join(&cut, 3, 1).await.unwrap().version, 3, "the invite is there too");
    assert_eq!(join(&cut, 4, 1).await, Err(AdmitError::Spent));
    rig.broker.rename(node(2), "renamed").await.unwrap();
    let rig = rig.restart().await;
    let roster = rig.broker.roster();
    assert_eq!((roster.version, names(&roster)), (3, vec!["first", "renamed"]));
    assert!(roster.supersedes(&told));
}

#[tokio::test]
async fn f19_the_same_device_with_the_same_invite_gets_the_same_answer_and_spends_nothing() {
    let rig = founded().await;
    open_invite(&rig, 1, 1).await;
    let first = join(&rig, 2, 1).await.unwrap();
    let written = rig.applied();
    for _ in 0..3 {
        assert_eq!(join(&rig, 2, 1).await.unwrap(), first);
    }
    assert_eq!(rig.applied(), written, "nothing is written for it");
    assert_eq!(join(&rig, 3, 1).await, Err(AdmitError::Spent));
    rig.clock.advance(20 * MINUTE);
    assert_eq!(join(&rig, 2, 1).await.unwrap(), first);
    rig.clock.advance(1);
    assert_eq!(join(&rig, 2, 1).await, Err(AdmitError::Expired));
}

#[tokio::test]
async fn f19_expiry_goes_by_mesh_time_and_not_by_a_clock_that_was_set() {
    let rig = founded().await;
    open_invite(&rig, 1, 5).await;
    rig.clock.jump(400 * DAY);
    join(&rig, 2, 1).await.unwrap();
    rig.clock.wall.store(0, std::sync::atomic::Ordering::SeqCst);
    join(&rig, 3, 1).await.unwrap();
    rig.clock.advance(10 * MINUTE);
    assert_eq!(join(&rig, 4, 1).await, Err(AdmitError::Expired));
}

#[tokio::test]
async fn f19_a_wrong_proof_gets_the_words_of_an_unknown_invite_whatever_its_state() {
    let rig = founded().await;
    open_invite(&rig, 1, 1).await;
    open_invite(&rig, 2, 1).await;
    join(&rig, 2, 2).await.unwrap();
    let written = rig.applied();
    let (open, key) = invite(1);
    let (spent, spent_key) = invite(2);
    let (unknown, unknown_key) = invite(3);
    // The key that unknown ids are checked against is no way in.
    let (zero, zero_key) = invite(0);
    let relayed = key.prove(&[6; 32]);
    for (what, id, proof) in [
        ("no proof", open, [0; 32]),
        ("a proof over another connection", open, relayed),
        ("a proof of another invite", open, spent_key.prove(&TLS)),
        ("a spent one, not proved", spent, [0; 32]),
        ("an unknown one", unknown, unknown_key.prove(&TLS)),
        ("an unknown one with the stand-in's proof", zero, zero_key.prove(&TLS)),
        ("another unknown one with the stand-in's proof", unknown, zero_key.prove(&TLS)),
    ] {
        for who in [2, 9] {
            let told = rig.broker.admit(node(who), "x", id, TLS, proof).await;
            assert_eq!(told, Err(AdmitError::Refused), "{what}, node {who}");
        }
    }
    assert_eq!(rig.applied(), written, "a stranger writes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_devices_that_come_at_once_share_the_uses_exactly() {
    let rig = founded().await;
    open_invite(&rig, 1, 3).await;
    let mut tasks = tokio::task::JoinSet::new();
    for who in 2..12 {
        let broker = rig.broker.clone();
        tasks.spawn(async move {
            let (id, key) = invite(1);
            broker.admit(node(who), "n", id, TLS, key.prove(&TLS)).await
        });
    }
    let answers = tasks.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    assert!(answers.iter().all(|answer| matches!(answer, Ok(_) | Err(AdmitError::Spent))));
    assert_eq!(rig.broker.roster().members.len(), 4);
}

#[tokio::test]
async fn f12_an_admission_of_unknown_fate_is_found_out_by_asking_again() {
    for (fault, members) in [(Fault::SyncKept, 2), (Fault::SyncLost, 1)] {
        let rig = founded().await;
        open_invite(&rig, 1, 1).await;
        rig.disk.fail(fault.clone());
        let told = join(&rig, 2, 1).await.unwrap_err();
        assert!(matches!(told, AdmitError::Propose(_)), "{told}");
        assert_eq!(rig.broker.roster().members.len(), 1, "nobody is told before it is on disk");
        rig.disk.mend();
        until(|| rig.broker.trouble().is_none()).await;
        if fault == Fault::SyncKept {
            assert_eq!(rig.broker.roster().members.len(), members, "the store knew");
        }
        join(&rig, 2, 1).await.unwrap();
        assert_eq!(rig.broker.roster(), rig.after_power_cut().await.broker.roster());
    }
}

#[tokio::test]
async fn invites_that_cannot_be_are_refused_with_what_to_do() {
    let rig = founded().await;
    let (id, key) = invite(1);
    let ask = |uses, ttl| rig.broker.invite(id, key.clone(), uses, ttl);
    for (uses, ttl, told) in [
        (0, MINUTE, "1 to 1000 devices"),
        (1_001, MINUTE, "1 to 1000 devices"),
        (1, 999, "1 second to 7 days"),
        (1, 7 * DAY + 1, "1 second to 7 days"),
    ] {
        let error = ask(uses, ttl).await.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    ask(1_000, 7 * DAY).await.unwrap();
    ask(1_000, 7 * DAY).await.unwrap();
    assert_eq!(rig.broker.invite(id, invite(2).1, 1, MINUTE).await, Err(InviteError::Taken));
}

#[tokio::test]
async fn names_from_elsewhere_are_mended_and_a_stranger_is_not_renamed() {
    let rig = founded().await;
    open_invite(&rig, 1, 1).await;
    let (id, key) = invite(1);
    let roster = rig.broker.admit(node(2), "\u{1b}[2J lap\u{202e}top ", id, TLS, key.prove(&TLS)).await.unwrap();
    assert_eq!(names(&roster), ["first", "[2J laptop"]);
    let written = rig.applied();
    rig.broker.rename(node(2), "[2J laptop").await.unwrap();
    rig.broker.rename(node(3), "stranger").await.unwrap();
    assert_eq!(rig.applied(), written);
    rig.broker.rename(node(2), "").await.unwrap();
    assert_eq!(names(&rig.broker.roster()), ["first".to_owned(), node(2).short()]);
}

/// Two devices; chats `theirs` and `ours` are bound to a session of each, and an operation runs in each.
async fn with_work() -> (Rig, ReceiptKey, ReceiptKey) {
    let rig = founded().await;
    open_invite(&rig, 1, 9).await;
    join(&rig, 2, 1).await.unwrap();
    rig.broker.announce(online(&["ours-1", "theirs-1"]));
    rig.session_of(operate_on(&chat("ours"), "ours-1")).await;
    rig.session_of(operate_on(&chat("theirs"), "theirs-1")).await;
    rig.session_of(operate_on(&connection("theirs too"), "theirs-1")).await;
    let at = |whose: &str, on: &str| Reserve { session: session(on), ..reserve(&chat(whose), "op", "{}") };
    let (ours, theirs) = (at("ours", "ours-1"), at("theirs", "theirs-1"));
    for operation in [&ours, &theirs] {
        rig.broker.reserve(operation.clone()).await.unwrap();
    }
    (rig, ours.key, theirs.key)
}

#[tokio::test]
async fn f21_forgetting_drops_the_devices_bindings_and_makes_its_running_receipts_uncertain() {
    let (rig, ours, theirs) = with_work().await;
    rig.broker.forget(node(2), vec![session("theirs-1")]).await.unwrap();
    let roster = rig.broker.roster();
    assert_eq!((roster.admission(&node(2)), names(&roster)), (Admission::Removed, vec!["first"]));
    assert_eq!(rig.broker.binding(&chat("ours")), Some(session("ours-1")));
    assert_eq!((rig.broker.binding(&chat("theirs")), rig.broker.binding(&connection("theirs too"))), (None, None));
    assert_eq!(rig.broker.receipt(&ours).unwrap().status, ReceiptStatus::Running);
    let receipt = rig.broker.receipt(&theirs).unwrap();
    assert_eq!(receipt.status, ReceiptStatus::Uncertain);
    assert!(receipt.reason.as_ref().is_some_and(|why| why.contains("n2") && why.contains("forgotten")), "{receipt:?}");
    assert!(rig.after_power_cut().await.state() == rig.state());

    assert_eq!(join(&rig, 2, 1).await, Err(AdmitError::Forgotten), "its old invite is no way back");
    open_invite(&rig, 2, 1).await;
    assert_eq!(join(&rig, 2, 2).await.unwrap().admission(&node(2)), Admission::Member);
}

#[tokio::test]
async fn f12_forgetting_again_is_no_error_and_takes_sessions_that_were_not_known_before() {
    let (rig, _, theirs) = with_work().await;
    rig.broker.forget(node(2), vec![]).await.unwrap();
    assert_eq!(rig.broker.receipt(&theirs).unwrap().status, ReceiptStatus::Running);
    rig.broker.forget(node(2), vec![session("theirs-1")]).await.unwrap();
    assert_eq!(rig.broker.receipt(&theirs).unwrap().status, ReceiptStatus::Uncertain);
    assert_eq!(rig.broker.roster().version, 3);
}

#[tokio::test]
async fn f21_the_last_device_strangers_and_a_broker_that_nobody_can_follow_are_not_forgotten() {
    let alone = founded().await;
    let told = alone.broker.forget(node(1), vec![]).await.unwrap_err();
    assert!(told.to_string().contains("first is the only device"), "{told}");

    let (rig, ours, _) = with_work().await;
    let before = rig.broker.roster();
    let told = rig.broker.forget(node(8), vec![session("ours-1")]).await.unwrap_err();
    assert!(told.to_string().contains("chappie peers"), "{told}");
    let many = vec![session("s"); limits::FORGET_SESSIONS_MAX + 1];
    let told = rig.broker.forget(node(2), many).await.unwrap_err();
    assert!(matches!(told, ForgetError::Propose(ProposeError::TooLong(_))), "{told}");
    let told = rig.broker.forget(node(1), vec![session("ours-1")]).await.unwrap_err();
    assert!(told.to_string().contains("first is the broker, and no other device can take that over"), "{told}");
    assert_eq!(rig.broker.roster(), before);
    assert_eq!(rig.broker.binding(&chat("ours")), Some(session("ours-1")));
    assert_eq!(rig.broker.receipt(&ours).unwrap().status, ReceiptStatus::Running);
}

#[tokio::test]
async fn f18_a_joining_mesh_brings_its_bindings_receipts_and_deliveries_and_running_work_goes_on() {
    let (rig, ours, _) = with_work().await;
    let joiner = Rig::device(3, "laptop", None).await;
    joiner.broker.announce(online(&["laptop-1", "laptop-2"]));
    joiner.session_of(operate_on(&chat("new"), "laptop-1")).await;
    joiner.session_of(operate_on(&chat("ours"), "laptop-2")).await;
    joiner.broker.open_window(&chat("new"), &session("laptop-1"));
    let running = Reserve { session: session("laptop-1"), ..reserve(&chat("new"), "op", "{}") };
    let twin = Reserve { session: session("laptop-2"), ..reserve(&chat("ours"), "op", r#"{"other":1}"#) };
    for operation in [&running, &twin] {
        joiner.broker.reserve(operation.clone()).await.unwrap();
    }
    for n in 0..300 {
        joiner.broker.delivered(&chat("new"), vec![format!("late-{n}")]).await.unwrap();
    }

    join(&rig, 3, 1).await.unwrap();
    let brought = joiner.broker.export();
    let report = rig.broker.merge(node(3), brought.clone()).await.unwrap();
    let expected = MergeReport {
        bindings_added: 1,
        bindings_kept: 1,
        receipts_added: 1,
        receipts_uncertain: 1,
        delivered_added: 300,
        ..MergeReport::default()
    };
    assert_eq!(report, expected);
    assert_eq!(rig.broker.binding(&chat("new")), Some(session("laptop-1")));
    assert_eq!(rig.broker.binding(&chat("ours")), Some(session("ours-1")));
    assert!(rig.broker.undelivered(&chat("new"), &["late-7".into()]).is_empty());
    let uncertain = rig.broker.receipt(&ours).unwrap();
    assert_eq!(uncertain.status, ReceiptStatus::Uncertain);
    assert!(uncertain.reason.as_ref().is_some_and(|why| why.contains("n3")), "{uncertain:?}");
    // Its session node reports what became of it, and of the one that cannot be told apart.
    let done = || Settlement::Completed { resources: vec![] };
    rig.broker.settle(running.key.clone(), 1, done()).await.unwrap();
    rig.broker.settle(twin.key.clone(), 1, done()).await.unwrap();
    assert_eq!(rig.broker.receipt(&running.key).unwrap().status, ReceiptStatus::Completed);
    assert_eq!(rig.broker.receipt(&ours).unwrap().status, ReceiptStatus::Uncertain);

    let before = (rig.broker.receipts(), rig.broker.binding_counts());
    let again = rig.broker.merge(node(3), brought).await.unwrap();
    let nothing = MergeReport { bindings_kept: 2, receipts_kept: 2, delivered_kept: 300, ..MergeReport::default() };
    assert_eq!((again, (rig.broker.receipts(), rig.broker.binding_counts())), (nothing, before));
    assert!(rig.after_power_cut().await.state() == rig.state());
}

#[tokio::test]
async fn f18_what_is_brought_along_counts_uses_that_only_memory_knew_and_leaves_expired_rows() {
    let rig = founded().await;
    rig.broker.announce(online(&["s1", "s2"]));
    rig.session_of(operate(&chat("idle"))).await;
    rig.session_of(operate(&chat("used"))).await;
    let operation = reserve(&chat("used"), "op", "{}");
    rig.broker.reserve(operation.clone()).await.unwrap();
    rig.broker.settle(operation.key.clone(), 1, Settlement::NeverRun).await.unwrap();
    rig.clock.advance(20 * HOUR);
    rig.session_of(operate(&chat("used"))).await;
    assert_eq!(rig.broker.shared.state().bindings["used"].last_used, Millis(START));
    let brought = rig.broker.export();
    assert_eq!((brought.at, brought.receipts.len()), (Millis(START + 20 * HOUR), 1));
    assert_eq!(brought.bindings.iter().find(|row| row.chat == "used").unwrap().last_used, Millis(START + 20 * HOUR));
    rig.clock.advance(29 * DAY + 20 * HOUR);
    let brought = rig.broker.export();
    let chats: Vec<_> = brought.bindings.iter().map(|row| row.chat.as_str()).collect();
    assert_eq!((chats, brought.receipts.len()), (vec!["used"], 0));
}

#[tokio::test]
async fn f18_starting_over_backs_the_store_up_and_leaves_a_mesh_of_one_without_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    let first = broker.group();
    broker.announce(online(&["s1"]));
    broker.select(operate(&chat("c"))).await.unwrap();
    let operation = reserve(&chat("c"), "op", "{}");
    broker.reserve(operation.clone()).await.unwrap();
    broker.delivered(&chat("c"), vec!["late".into()]).await.unwrap();
    let (id, key) = invite(1);
    broker.invite(id, key.clone(), 1, MINUTE).await.unwrap();
    let mut rosters = broker.rosters();
    rosters.borrow_and_update();

    let backup = broker.start_over(mesh(2), "first").await.unwrap();
    assert_eq!(backup, home.path().join("consensus.redb.before-join-1.bak"));
    assert!(rosters.has_changed().unwrap());
    assert_eq!((broker.group().mesh, (*broker.roster()).clone()), (mesh(2), alone_in(&broker, "first")));
    assert_eq!((broker.binding(&chat("c")), broker.receipts()), (None, vec![]));
    assert_eq!(broker.undelivered(&chat("c"), &["late".into()]), ["late"]);
    assert_eq!(broker.admit(node(2), "n2", id, TLS, key.prove(&TLS)).await, Err(AdmitError::Refused));
    // It works on at once, and the same again keeps what was done since.
    assert_eq!(broker.select(operate(&chat("d"))).await.unwrap().session, session("s1"));
    let again = broker.start_over(mesh(2), "first").await.unwrap();
    assert_eq!(again, home.path().join("consensus.redb.before-join-2.bak"));
    assert_eq!(broker.binding(&chat("d")), Some(session("s1")));
    broker.close().await;

    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    assert_eq!((broker.roster().mesh, broker.binding(&chat("d"))), (mesh(2), Some(session("s1"))));
    broker.close().await;
    std::fs::rename(&backup, store_path(home.path())).unwrap();
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    assert_eq!((broker.roster().mesh, broker.binding(&chat("c"))), (first.mesh, Some(session("s1"))));
    assert_eq!(broker.receipt(&operation.key).unwrap().status, ReceiptStatus::Running);
}

#[tokio::test]
async fn f18_without_a_backup_nothing_is_given_up() {
    // The open store goes on working; a copy finds no folder to stand in.
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("gone");
    std::fs::create_dir(&folder).unwrap();
    let broker = alone(&folder, node(1), quick()).await.unwrap();
    let first = broker.group();
    std::fs::rename(&folder, home.path().join("moved")).unwrap();
    let told = broker.start_over(mesh(2), "first").await.unwrap_err();
    assert!(matches!(&told, ProposeError::NotWritten(why) if why.contains("no backup")), "{told}");
    assert_eq!(broker.group(), first);
    broker.rename(node(1), "still works").await.unwrap();
    broker.close().await;
    assert_eq!(broker.start_over(mesh(2), "x").await, Err(ProposeError::Stopped));
}

#[tokio::test]
async fn a_real_store_of_format_2_is_migrated_with_a_backup_and_founds_its_mesh() {
    // Written by the last program of format 2: a snapshot of entry 2048, then 22 entries.
    const STORE: &[u8] = include_bytes!("consensus.format-2.redb");
    let home = tempfile::tempdir().unwrap();
    std::fs::write(store_path(home.path()), STORE).unwrap();
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    let first = broker.shared.state().clone();
    assert_eq!((first.applied, first.membership.is_some()), (2_070, true));
    let bound: Vec<_> = first.bindings.iter().map(|(chat, row)| (chat.as_str(), row.session.as_str())).collect();
    assert_eq!(bound, [("after", "s2"), ("before", "s1")]);
    let statuses: Vec<_> = first.receipts.values().map(|row| (row.operation_id.as_str(), row.status)).collect();
    assert!(
        statuses.contains(&("op-1", ReceiptStatus::Uncertain)) && statuses.contains(&("op-2", ReceiptStatus::Running))
    );
    assert!(first.delivered.contains_key("late-1"));
    let group = broker.group();
    broker.close().await;
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    assert_eq!((broker.group(), names(&broker.roster())), (group, vec!["first"]));
    assert_eq!(*broker.shared.state(), first);
    assert_eq!(std::fs::read(home.path().join("consensus.redb.format-2.bak")).unwrap().len(), STORE.len());
}

/// A store of format 3 of a mesh with two devices: a snapshot, then entries; and the state it stands for.
fn format_3(home: &std::path::Path) -> State {
    let mut mesh = Membership::alone(mesh(5), node(1), "one", Millis(START));
    mesh.members.insert(node(2), Joined { name: "two".into(), at: Millis(START), invite: None });
    let mut state = State { applied: 7, at: Millis(START), membership: Some(mesh), ..State::default() };
    // As that program wrote a state: without who has yet to re-announce.
    let mut bytes = state.encode();
    bytes[0] = 3;
    assert_eq!(bytes.pop(), Some(0));
    let bind = Command::Bind { chat: "c".into(), session: session("s1"), expected: None };
    let deliver = Command::Deliver { conversation: chat("c").key(), ids: vec!["late".into()] };
    let refused = Command::Remove { node: node(1), sessions: vec![session("s1")] };
    let entries: Vec<_> = (8..)
        .zip([bind, refused, deliver])
        .map(|(index, command)| (index, Stamped { at: Millis(START + index), index, command }))
        .collect();
    for (_, entry) in entries.iter().filter(|(index, _)| *index != 9) {
        apply::apply(&mut state, entry);
    }
    let rows: Vec<_> = entries.iter().map(|(index, entry)| (*index, entry.encode())).collect();
    make_format_3(home, Some((7, &bytes)), &rows);
    state
}

#[tokio::test]
async fn a_store_of_format_3_becomes_a_group_of_one_with_all_its_rows_and_members() {
    let home = tempfile::tempdir().unwrap();
    let expected = format_3(home.path());
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    assert_eq!(*broker.shared.state(), expected);
    assert_eq!(broker.group(), Group { mesh: mesh(5), epoch: Epoch { count: 1, id: [0; 16] } });
    assert_eq!(names(&broker.roster()), ["one", "two"]);
    assert_eq!(broker.binding(&chat("c")), Some(session("s1")));
    broker.delivered(&chat("c"), vec!["more".into()]).await.unwrap();
    assert!(broker.shared.state().applied > expected.applied);
    assert!(home.path().join("consensus.redb.format-3.bak").exists());
}

#[tokio::test]
async fn f18_the_unused_mesh_of_a_member_with_a_store_of_format_3_is_copied_and_given_up() {
    let home = tempfile::tempdir().unwrap();
    format_3(home.path());
    let medium = Medium::Folder(home.path().to_owned());
    let place = Place { member_of: Some(group(9, 1)), ..place(medium, node(1)) };
    let broker = Broker::open(place, quick()).await.unwrap();
    assert_eq!((broker.group(), broker.roster().epoch), (group(9, 1), 0));
    assert!(home.path().join("consensus.redb.before-join-1.bak").exists());
}
