//! Golden bytes of every message: a change here is a change of the protocol.

use std::{fmt::Debug, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    Blob,
    ask::{Ask, DoorAsk, OfficeAsk, Reply, SessionAsk, Unrecorded},
    feed::{Announcement, Down, News as Roll, Up},
    history,
    run::{self, Dispatched, News, Order},
};
use crate::{
    broker::{ProposeError, ReceiptKey, Settlement},
    budget::TextBudget,
    fleet::{
        Board, HistoryAsk, Picture, Ran,
        testing::{dispatch, info, roster, text},
    },
    ids::Conversation,
    sessions::{Ended, ReceiptClaim, RunningReceipt, Work, entry::Event, history::Range},
};

/// Checks that `message` is written as `hex` and read back the same.
fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, hex: &str) {
    let bytes = postcard::to_stdvec(message).unwrap();
    let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, hex, "{message:?}");
    assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), message);
}
