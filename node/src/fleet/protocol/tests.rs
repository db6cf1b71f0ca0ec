//! Golden bytes of every message: a change here is a change of the protocol.

use std::{fmt::Debug, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Blob,
    ask::{Ask, DoorAsk, OfficeAsk, Picture, Reply, SessionAsk, Unrecorded},
    feed::{Announcement, Down, News as Word, Up},
    history,
    run::{Dispatched, News, Order},
};
use crate::{
    broker::{ProposeError, Reannounced, ReceiptKey, ReceiptKind, Settlement},
    budget::TextBudget,
    fleet::{
        self, Board, HistoryAsk, Ran,
        testing::{dispatch, info, roster, text},
    },
    ids::{CallId, Conversation, SessionId},
    sessions::{Ended, ReceiptClaim, RunningReceipt, Work, entry::Event, history::Range},
};

/// Checks that each message is read back the same, and gives all as lines of hex.
fn lines<T: Serialize + DeserializeOwned + PartialEq + Debug>(messages: &[T]) -> Vec<String> {
    let line = |message: &T| {
        let bytes = postcard::to_stdvec(message).unwrap();
        assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), message);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    messages.iter().map(line).collect()
}

/// Compares with the lines of a golden file.
fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(messages: &[T], wanted: &str) {
    let found = lines(messages);
    let wanted: Vec<&str> = wanted.lines().collect();
    for (number, (message, line)) in messages.iter().zip(&found).enumerate() {
        assert_eq!(Some(&line.as_str()), wanted.get(number), "{message:?}; all:\n{}", found.join("\n"));
    }
    assert_eq!(found.len(), wanted.len());
}

fn chat() -> Conversation {
    Conversation::Chat("v1/c".into())
}

fn full_dispatch() -> fleet::Dispatch {
    let mut full = dispatch("c", "bash");
    full.operation.request_id = Some("q".into());
    full.operation.request_key = Some("qk".into());
    full.operation.receipt = Some(ReceiptClaim { key: ReceiptKey("k".into()), attempt: 2 });
    full
}

#[test]
fn messages_of_a_run_keep_their_bytes() {
    let chatting = fleet::Dispatch { resent: true, ..dispatch("d", "bash") };
    let mut chatting = chatting;
    chatting.operation.work = Work::Chat("hello".into());
    let orders = [
        Order::Dispatch(Box::new(Dispatched::of(&full_dispatch()).unwrap())),
        Order::Dispatch(Box::new(Dispatched::of(&chatting).unwrap())),
        Order::Cancel("why".into()),
        Order::Written(true),
    ];
    golden(&orders, include_str!("golden/orders.txt"));
    let news = [
        News::Accepted,
        News::Running,
        News::from(Ran::Finished(text("t"))),
        News::from(Ran::NeverRan("why".into())),
        News::from(Ran::Duplicate { twin: "t".into(), running: true }),
        News::from(Ran::Gone),
        News::from(Ran::Unknown("why".into())),
        News::CancelTaken,
        News::Settled,
        News::from(Ran::Fenced("why".into())),
    ];
    golden(&news, include_str!("golden/news.txt"));
}

#[test]
fn messages_of_history_keep_their_bytes() {
    let ask = HistoryAsk {
        session: "s".into(),
        range: Range { limit: 20, before: Some("x".into()), after: None },
        wait: Duration::from_secs(30),
        reader: Some("1234".into()),
    };
    golden(&[history::Order::Page(ask.into())], "0001731401017800b0ea01010431323334 00".replace(' ', "").as_str());
    let news = [history::News::Page(text("t").into()), history::News::Failed("why".into())];
    golden(&news, "000100017400 0000\n0103776879".replace(' ', "").as_str());
}

fn session_asks() -> Vec<Ask> {
    let room = TextBudget { bytes: 300, tokens: 9 };
    let board = Board { by: "b".into(), conversation: Some(chat()), session: Some("s".into()), room };
    let asks = [
        SessionAsk::Inspect("s".into()),
        SessionAsk::Known("c".into()),
        SessionAsk::Board(board.into()),
        SessionAsk::Settle { by: "b".into(), written: true },
        SessionAsk::Lapse("b".into()),
        SessionAsk::Revoke { call_id: "c".into(), reason: "why".into() },
        SessionAsk::Notice { session: "s".into(), event: Event::Interrupted, message: "m".into() },
        SessionAsk::Cancel { call_id: "c".into(), conversation: None, reason: "why".into() },
        SessionAsk::Ended("r".into()),
        SessionAsk::Image { session: "s".into(), sha256: "ab".into() },
    ];
    asks.into_iter().map(Ask::Session).collect()
}

#[test]
fn questions_keep_their_bytes() {
    let key = ReceiptKey("k".into());
    let ids = vec!["1".to_owned(), "2".to_owned()];
    let office = [
        OfficeAsk::Settle { key: key.clone(), attempt: 1, settlement: Settlement::Completed { resources: vec![] } },
        OfficeAsk::Settle { key: key.clone(), attempt: 1, settlement: Settlement::Uncertain { reason: "why".into() } },
        OfficeAsk::Settle { key, attempt: 1, settlement: Settlement::NeverRun },
        OfficeAsk::Undelivered { conversation: chat(), ids: ids.clone() },
        OfficeAsk::Delivered { conversation: chat(), ids: ids.clone() },
        OfficeAsk::ForgetDelivered(ids),
        OfficeAsk::Running(vec!["s".into()]),
    ];
    let known = Reannounced {
        key: ReceiptKey("k".into()),
        attempt: 2,
        conversation: Some(chat()),
        session: "s".into(),
        cwd: "/w".into(),
        kind: ReceiptKind::Call,
        call_id: "c".into(),
        outcome: Some(Settlement::NeverRun),
        age_ms: 300,
    };
    let known = [Ask::Office(OfficeAsk::Reannounce { rows: vec![known], last: true })];
    let door = [
        DoorAsk::Resource { uri: "u".into(), conversation: Some(chat()), request_id: None },
        DoorAsk::Disconnected(Conversation::Connection("x".into())),
        DoorAsk::Cancel { call_id: "c".into(), conversation: Some(chat()), reason: "why".into() },
        DoorAsk::Written { call_id: "c".into(), written: false },
        DoorAsk::CallOff {
            call_id: "c".into(),
            pin: Some("s".into()),
            conversation: Some(chat()),
            reason: "why".into(),
        },
    ];
    let asks = session_asks().into_iter().chain(office.map(Ask::Office)).chain(door.map(Ask::Door)).chain(known);
    golden(&asks.collect::<Vec<_>>(), include_str!("golden/asks.txt"));
}

#[test]
fn answers_keep_their_bytes() {
    let picture = || Picture { mime: "image/png".into(), bytes: Blob(vec![1, 2, 3]) };
    let running = RunningReceipt { key: ReceiptKey("k".into()), attempt: 1, call_id: "c".into() };
    let replies = [
        Reply::Unsupported("why".into()),
        Reply::Refused("why".into()),
        Reply::Failed("why".into()),
        Reply::Done,
        Reply::Flag(true),
        Reply::Inspected(Blob(b"{}".to_vec())),
        Reply::Never("why".into()),
        Reply::Held,
        Reply::Parcel(text("t").into()),
        Reply::Ended(Some(Ended::Cancelled)),
        Reply::Image(Some(picture())),
        Reply::Ids(vec!["1".into()]),
        Reply::Running(vec![running]),
        Reply::Unrecorded(Unrecorded::NotWritten("why".into())),
        Reply::Unrecorded(Unrecorded::Unknown("why".into())),
        Reply::Unrecorded(Unrecorded::Busy),
        Reply::Unrecorded(Unrecorded::Stopped),
        Reply::Resource(picture()),
        Reply::NotFound("why".into()),
        Reply::Unreadable("why".into()),
        Reply::Unrecorded(Unrecorded::NotBroker),
    ];
    golden(&replies, include_str!("golden/replies.txt"));
}

#[test]
fn messages_of_a_feed_keep_their_bytes() {
    let announcement =
        Announcement { boot: [7; 16], seq: 3, sessions: vec![info("s", 300)], late: vec![chat()], ext: vec![] };
    golden(&[Up::Announce(announcement)], include_str!("golden/up.txt"));
    let word = Word { roster: roster(), addresses: vec![], ext: vec![(1, Blob(vec![9]))] };
    golden(&[Down::Roster(Box::new(word))], include_str!("golden/down.txt"));
}

#[test]
fn a_dispatch_says_the_same_after_the_wire() {
    let sent = full_dispatch();
    let got = Dispatched::of(&sent).unwrap().open().unwrap();
    assert_eq!(format!("{got:?}"), format!("{sent:?}"));
    let mut again = Dispatched::of(&sent).unwrap();
    assert!(again.weight() > 10);
    again.again(Duration::from_secs(1));
    let got = again.open().unwrap();
    assert_eq!((got.wait, got.resent), (Duration::from_secs(1), true));
}

#[test]
fn a_peer_gets_no_more_room_than_an_answer_has() {
    let mut greedy = dispatch("c", "bash");
    greedy.operation.budget = TextBudget { bytes: usize::MAX, tokens: usize::MAX };
    assert_eq!(Dispatched::of(&greedy).unwrap().open().unwrap().operation.budget, TextBudget::WHOLE);
    let range = Range { limit: 100_000, before: None, after: None };
    let ask = HistoryAsk { session: "s".into(), range, wait: Duration::ZERO, reader: None };
    assert_eq!(HistoryAsk::from(history::Wanted::from(ask)).range.limit, crate::sessions::history::LIMIT_MAX);
}

#[test]
fn errors_of_the_broker_keep_their_kind_over_the_wire() {
    let unknown = ProposeError::Unknown("why".into());
    assert_eq!(ProposeError::from(Unrecorded::from(unknown.clone())), unknown);
    for error in
        [ProposeError::Busy, ProposeError::Stopped, ProposeError::NotBroker, ProposeError::NotWritten("why".into())]
    {
        assert_eq!(ProposeError::from(Unrecorded::from(error.clone())), error);
    }
    let full = Unrecorded::from(ProposeError::Full { what: "receipts".into(), limit: 1 });
    assert!(ProposeError::from(full).to_string().contains("receipts"));
}

#[test]
fn bytes_that_are_no_message_are_an_error() {
    for bytes in [&[][..], &[9], &[0], &[0, 1, b's'], &[255; 40]] {
        assert!(postcard::from_bytes::<Order>(bytes).is_err(), "{bytes:?}");
        assert!(postcard::from_bytes::<Up>(bytes).is_err(), "{bytes:?}");
    }
    let call: (SessionId, CallId) = ("s".into(), "c".into());
    assert!(postcard::from_bytes::<Order>(&postcard::to_stdvec(&call).unwrap()).is_err());
}
