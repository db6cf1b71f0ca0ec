//! Tests of the broker through its handle, on a real store.

use std::{path::PathBuf, time::Duration};

use super::*;
use crate::ids::{Conversation, Millis, SessionId};

mod selection;

fn chat(id: &str) -> Conversation {
    Conversation::Chat(id.into())
}

fn session(id: &str) -> SessionId {
    SessionId::from(id)
}

fn online(ids: &[&str]) -> Vec<Announced> {
    (1..)
        .zip(ids)
        .map(|(n, id)| Announced { session: session(id), created: Millis(n), cwd: PathBuf::from("/w") })
        .collect()
}

fn quick() -> Settings {
    Settings { cooldown: Duration::from_secs(20), offline_wait: Duration::from_millis(60) }
}

fn patient() -> Settings {
    Settings { offline_wait: Duration::from_secs(60), ..quick() }
}

fn operate(conversation: &Conversation) -> Ask<'_> {
    Ask { conversation: Some(conversation), session: None, purpose: Purpose::Operate }
}

fn init<'a>(conversation: &'a Conversation, named: Option<&str>) -> Ask<'a> {
    Ask { conversation: Some(conversation), session: named.map(SessionId::from), purpose: Purpose::Init }
}
