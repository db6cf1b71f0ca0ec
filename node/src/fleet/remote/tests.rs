//! A node on another device answers as a local one, and losses end in a clear word.

use std::sync::Arc;

use chappie_mesh::Roster;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, advance},
};

use super::*;
use crate::{
    budget::TextBudget,
    fleet::{
        Ran,
        testing::{Device, NoDoors, Scripted, Wires, dispatch, node, roster, text},
    },
    ids::Conversation,
    sessions::history::Range,
};

/// Device two with its sessions, as device one, the broker, sees it.
struct Stand {
    wires: Arc<Wires>,
    node: Arc<Scripted>,
    remote: Arc<RemoteNode>,
    rosters: watch::Sender<Arc<Roster>>,
    _device: Device,
}

impl Stand {
    fn new() -> Self {
        let (wires, scripted) = (Wires::new(), Scripted::new());
        let (rosters, watched) = watch::channel(Arc::new(roster()));
        let device = Device::new(&wires, node(2), watched.clone());
        device.serve(&wires, scripted.clone(), Arc::new(NoDoors));
        let remote = RemoteNode::new(node(2), wires.line(node(1), watched));
        Self { wires, node: scripted, remote, rosters, _device: device }
    }

    fn run(&self, dispatch: Dispatch) -> Box<dyn Run> {
        Arc::clone(&self.remote).run(dispatch)
    }
}

fn finished() -> Ran {
    Ran::Finished(text("done"))
}

fn board() -> Board {
    let room = TextBudget { bytes: 1_000, tokens: 300 };
    Board { by: "b".into(), conversation: Some(Conversation::Chat("v1/c".into())), session: Some("s".into()), room }
}

fn ask(session: &str, wait: Duration) -> HistoryAsk {
    let range = Range { limit: 7, before: Some("x".into()), after: None };
    HistoryAsk { session: session.into(), range, wait, reader: Some("1234".into()) }
}

#[tokio::test(start_paused = true)]
async fn every_method_answers_as_the_node_itself() {
    let stand = Stand::new();
    let (near, far) = (&*stand.node, &*stand.remote);
    for session in ["s", "none"] {
        assert_eq!(far.inspect(session.into()).await, near.inspect(session.into()).await);
        let wait = Duration::from_secs(30);
        assert_eq!(far.history(ask(session, wait)).await, near.history(ask(session, wait)).await);
        for hash in ["ab", "cd"] {
            assert_eq!(far.image(session.into(), hash.into()).await, near.image(session.into(), hash.into()).await);
        }
    }
    assert_eq!(far.board(board()).await, near.board(board()).await);
    for id in ["c", "other"] {
        let cancel = Cancel { call_id: id.into(), conversation: None, reason: "why".into() };
        assert_eq!(far.cancel(cancel.clone()).await, near.cancel(cancel).await);
    }
    for receipt in ["r", "other"] {
        assert_eq!(far.ended(receipt.into()).await, near.ended(receipt.into()).await);
    }
    assert_eq!(far.known("never".into()).await, near.known("never".into()).await);
    far.notice("s".into(), Event::Joined, "hello".into());
    near.saw("notice s Joined hello").await;
    SessionNode::settle(far, "b".into(), true);
    near.saw("board b settled true").await;
    assert!(!near.log().contains(&"board b settled false".to_owned()), "the asker said that it has the parcel");
}

#[tokio::test(start_paused = true)]
async fn every_outcome_comes_over_the_wire_and_its_word_goes_back() {
    let stand = Stand::new();
    let outcomes = [
        finished(),
        Ran::NeverRan("why".into()),
        Ran::Duplicate { twin: "t".into(), running: true },
        Ran::Gone,
        Ran::Unknown("why".into()),
    ];
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let id = format!("c{number}");
        let mut run = stand.run(dispatch(&id, "bash"));
        stand.node.saw(&format!("run {id} begun, resent false")).await;
        stand.node.end(&id, outcome.clone());
        assert_eq!(run.done().await, outcome);
        assert_eq!(run.done().await, outcome, "again");
        let written = number % 2 == 0;
        run.settle(written);
        stand.node.saw(&format!("run {id} settled {written}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_and_what_runs_is_told_apart() {
    let stand = Stand::new();
    let run = stand.run(dispatch("c", "bash"));
    assert!(!run.is_running());
    stand.node.saw("run c begun, resent false").await;
    while !run.is_running() {
        advance(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f4_a_dropped_run_detaches_and_cancels_nothing() {
    let stand = Stand::new();
    let run = stand.run(dispatch("c", "bash"));
    stand.node.saw("executed c").await;
    drop(run);
    stand.node.saw("run c dropped").await;
    assert!(!stand.node.log().iter().any(|line| line.starts_with("cancel")));
}

#[tokio::test(start_paused = true)]
async fn f4_a_cancel_goes_on_the_stream_and_by_itself_when_the_stream_is_gone() {
    let stand = Stand::new();
    let mut run = stand.run(dispatch("c", "bash"));
    stand.node.saw("executed c").await;
    run.cancel("stop".into()).await;
    assert!(stand.node.log().contains(&"cancel c on its stream: stop".to_owned()));
    let mut lost = stand.run(dispatch("d", "bash"));
    stand.node.saw("executed d").await;
    stand.wires.down();
    let begun = Instant::now();
    lost.cancel("stop".into()).await;
    assert!(begun.elapsed() <= Duration::from_secs(3));
    drop(lost);
    advance(Duration::from_secs(60)).await;
    stand.wires.up();
    stand.node.saw("revoke d: stop").await;
}

#[tokio::test(start_paused = true)]
async fn f23_what_was_not_taken_in_time_is_sealed_and_never_ran() {
    let stand = Stand::new();
    stand.wires.deafen(StreamKind::Run, true);
    let begun = Instant::now();
    let mut run = stand.run(dispatch("c", "bash"));
    assert_eq!(run.done().await, Ran::NeverRan("it was not there, and is sealed".into()));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    stand.wires.deafen(StreamKind::Run, false);
    assert_eq!(stand.run(dispatch("c", "bash")).done().await, Ran::NeverRan("sealed".into()));
}

#[tokio::test(start_paused = true)]
async fn f6_a_lost_stream_is_found_again_and_nothing_runs_twice() {
    let stand = Stand::new();
    let mut run = stand.run(dispatch("c", "bash"));
    stand.node.saw("run c begun, resent false").await;
    for _ in 0..3 {
        let before = stand.wires.opened(StreamKind::Run);
        stand.wires.cut();
        while stand.wires.opened(StreamKind::Run) == before {
            advance(Duration::from_millis(50)).await;
        }
    }
    stand.node.saw("run c begun, resent true").await;
    stand.node.end("c", finished());
    assert_eq!(run.done().await, finished());
    assert_eq!(stand.node.log().iter().filter(|line| *line == "executed c").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn f6_the_same_dispatch_twice_runs_once_and_both_get_the_outcome() {
    let stand = Stand::new();
    let (mut one, mut two) = (stand.run(dispatch("c", "bash")), stand.run(dispatch("c", "bash")));
    stand.node.saw("executed c").await;
    stand.node.end("c", finished());
    assert_eq!((one.done().await, two.done().await), (finished(), finished()));
    assert_eq!(stand.node.log().iter().filter(|line| *line == "executed c").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn f23_a_device_that_vanished_ends_the_call_with_a_word_on_its_outcome() {
    for (tool, word) in [("bash", "late result"), ("read", "repeat it")] {
        let stand = Stand::new();
        let mut run = stand.run(dispatch("c", tool));
        stand.node.saw("executed c").await;
        stand.wires.down();
        let begun = Instant::now();
        let Ran::Unknown(reason) = run.done().await else { panic!("{tool}") };
        assert!(reason.contains("device two") && reason.contains(word), "{reason}");
        // Four seconds of silence went before: five in all.
        assert!(begun.elapsed() <= Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_never_sent_was_never_run() {
    let stand = Stand::new();
    stand.wires.down();
    let Ran::NeverRan(reason) = stand.run(dispatch("c", "bash")).done().await else { panic!("it was not sent") };
    assert!(reason.contains("nothing was done") && reason.contains("two"), "{reason}");
    let resent = Dispatch { resent: true, ..dispatch("c", "bash") };
    let ran = stand.run(resent).done().await;
    assert!(matches!(&ran, Ran::Unknown(_)), "an earlier sending may have arrived: {ran:?}");
}

#[tokio::test(start_paused = true)]
async fn f7_the_word_on_an_answer_arrives_though_its_stream_was_lost() {
    let stand = Stand::new();
    for written in [true, false] {
        let id = format!("c{written}");
        let mut run = stand.run(dispatch(&id, "bash"));
        stand.node.saw(&format!("executed {id}")).await;
        stand.node.end(&id, finished());
        assert_eq!(run.done().await, finished());
        stand.wires.cut();
        run.settle(written);
        stand.node.saw(&format!("run {id} settled {written}")).await;
        assert!(!stand.node.log().contains(&format!("run {id} dropped")));
    }
}

#[tokio::test(start_paused = true)]
async fn f7_without_a_word_nobody_knows_whether_the_answer_was_written() {
    let stand = Stand::new();
    let mut run = stand.run(dispatch("c", "bash"));
    stand.node.saw("executed c").await;
    stand.node.end("c", finished());
    run.done().await;
    stand.wires.down();
    drop(run);
    stand.node.saw("run c dropped").await;
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_for_an_asker_that_is_gone_is_free_again() {
    let stand = Stand::new();
    let ask = Ask::Session(SessionAsk::Board(board().into()));
    let (reply, stream) = stand.remote.line.converse(node(2), &ask, ASK_WAIT).await.unwrap();
    assert!(matches!(reply, Reply::Parcel(_)));
    drop(stream);
    stand.node.saw("board b settled false").await;
    stand.wires.down();
    assert_eq!(stand.remote.board(Board { by: "d".into(), ..board() }).await, Parcel::default());
    stand.wires.up();
    stand.node.saw("board d settled false").await;
}

/// Found by netsim (whole seed 120): a broker that lost its seat said what became of its answer, and was refused. What had been
/// claimed for that answer was told to nobody for five minutes.
#[tokio::test(start_paused = true)]
async fn f7_a_former_broker_still_says_what_became_of_its_own_answers() {
    let stand = Stand::new();
    for by in ["b", "c", "d"] {
        assert_ne!(stand.remote.board(Board { by: by.into(), ..board() }).await, Parcel::default());
    }
    stand.rosters.send_replace(Arc::new(Roster { broker: node(3), ..roster() }));
    SessionNode::settle(&*stand.remote, "b".into(), false);
    stand.node.saw("board b settled false").await;
    SessionNode::lapse(&*stand.remote, "c".into());
    stand.node.saw("board c lapsed").await;
    let other = RemoteNode::new(node(2), stand.wires.line(node(3), stand.rosters.subscribe()));
    assert_ne!(other.board(Board { by: "d".into(), ..board() }).await, Parcel::default());
    let late = Ask::Session(SessionAsk::Settle { by: "d".into(), written: false });
    let reply = stand.remote.line.ask(node(2), &late, ASK_WAIT).await.unwrap();
    assert!(matches!(reply, Reply::Refused(_)), "the next broker composes this answer anew: {reply:?}");
}

#[tokio::test(start_paused = true)]
async fn f7_what_a_broker_claimed_that_is_gone_comes_again_soon() {
    let stand = Stand::new();
    assert_ne!(stand.remote.board(board()).await, Parcel::default());
    advance(Duration::from_secs(60)).await;
    assert!(!stand.node.log().contains(&"board b lapsed".to_owned()), "its answer may take a while to be written");
    stand.wires.down();
    stand.rosters.send_replace(Arc::new(Roster { broker: node(3), ..roster() }));
    let begun = Instant::now();
    stand.node.saw("board b lapsed").await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lost_wait_for_history_names_the_device() {
    let stand = Stand::new();
    let remote = Arc::clone(&stand.remote);
    let waiting = tokio::spawn(async move { remote.history(ask("s", Duration::from_secs(30))).await });
    stand.node.saw("history s").await;
    let begun = Instant::now();
    stand.wires.down();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.contains("device two"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn f11_a_member_that_is_not_the_broker_is_refused() {
    let stand = Stand::new();
    stand.rosters.send_replace(Arc::new(Roster { broker: node(3), ..roster() }));
    let Ran::Fenced(reason) = stand.run(dispatch("c", "bash")).done().await else { panic!("it was taken") };
    assert!(reason.contains("three"), "{reason}");
    let error = stand.remote.inspect("s".into()).await.unwrap_err();
    assert!(error.contains("three"), "{error}");
    assert!(stand.remote.history(ask("s", Duration::ZERO)).await.is_err());
    assert_eq!(stand.remote.ended("r".into()).await, None);
    assert!(stand.node.log().is_empty(), "{:?}", stand.node.log());
}

#[tokio::test(start_paused = true)]
async fn a_question_of_a_later_version_is_answered_and_the_next_one_works() {
    let stand = Stand::new();
    let line = &stand.remote.line;
    for bytes in [&[99_u8, 1, 2][..], &[], &[0, 99]] {
        let mut stream = line.open(node(2), StreamKind::Ask, ASK_WAIT).await.unwrap();
        // As the message it would be: a tuple has no length in postcard.
        match bytes {
            [a, b, c] => stream.send.message(&(*a, *b, *c)).await.unwrap(),
            [a, b] => stream.send.message(&(*a, *b)).await.unwrap(),
            _ => stream.send.message(&()).await.unwrap(),
        }
        let reply = stream.recv.message::<Reply>(ANSWER_MAX).await.unwrap();
        assert!(matches!(reply, Some(Reply::Unsupported(_))), "{reply:?}");
    }
    assert!(stand.remote.inspect("s".into()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_bad_first_message_ends_its_stream_and_nothing_runs() {
    let stand = Stand::new();
    for kind in [StreamKind::Run, StreamKind::History] {
        let mut stream = stand.remote.line.open(node(2), kind, ASK_WAIT).await.unwrap();
        stream.send.message(&json!(null).to_string()).await.unwrap();
        assert_eq!(stream.recv.message::<u8>(ANSWER_MAX).await, Ok(None));
    }
    assert!(stand.node.log().is_empty());
}
