//! [`Bindings`]: the saved defaults by conversation, with an index by session, so that looking for a free session does
//! not walk all of them. Pure. What a binding means is said in [`super::state`].

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::state::Binding;
use crate::ids::SessionId;

/// Chat id → default session. Reads go to the map; every change keeps the index, which is not written.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    rows: BTreeMap<String, Binding>,
    chats: BTreeMap<SessionId, BTreeSet<String>>,
}

impl Bindings {
    /// Sets a row; gives the one that stood there.
    pub fn insert(&mut self, chat: String, binding: Binding) -> Option<Binding> {
        let session = binding.session.clone();
        let previous = self.rows.insert(chat.clone(), binding);
        if let Some(previous) = previous.as_ref().filter(|previous| previous.session != session) {
            self.unlist(&previous.session.clone(), &chat);
        }
        self.chats.entry(session).or_default().insert(chat);
        previous
    }

    /// Removes a row.
    pub fn remove(&mut self, chat: &str) -> Option<Binding> {
        let removed = self.rows.remove(chat)?;
        self.unlist(&removed.session.clone(), chat);
        Some(removed)
    }

    /// Removes every row that `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(&Binding) -> bool) {
        let gone: Vec<String> =
            self.rows.iter().filter(|(_, binding)| !keep(binding)).map(|(chat, _)| chat.clone()).collect();
        for chat in gone {
            self.remove(&chat);
        }
    }

    /// Removes every row of a session; gives how many there were.
    pub fn remove_session(&mut self, session: &SessionId) -> usize {
        let chats = self.chats.remove(session).unwrap_or_default();
        for chat in &chats {
            self.rows.remove(chat);
        }
        chats.len()
    }

    /// Changes a row without moving it to another session.
    pub fn change(&mut self, chat: &str, change: impl FnOnce(&mut Binding)) {
        if let Some(binding) = self.rows.get_mut(chat) {
            keep_session(binding, change);
        }
    }

    /// Changes every row without moving any to another session.
    pub fn change_all(&mut self, change: impl Fn(&mut Binding)) {
        for binding in self.rows.values_mut() {
            keep_session(binding, &change);
        }
    }

    /// The chats whose rows name `session`.
    pub fn chats_of(&self, session: &SessionId) -> impl Iterator<Item = &String> {
        self.chats.get(session).into_iter().flatten()
    }

    fn unlist(&mut self, session: &SessionId, chat: &str) {
        if let Some(chats) = self.chats.get_mut(session) {
            chats.remove(chat);
            if chats.is_empty() {
                self.chats.remove(session);
            }
        }
    }
}

/// The index must not go wrong by a careless closure.
fn keep_session(binding: &mut Binding, change: impl FnOnce(&mut Binding)) {
    let session = binding.session.clone();
    change(binding);
    binding.session = session;
}

impl Deref for Bindings {
    type Target = BTreeMap<String, Binding>;

    fn deref(&self) -> &Self::Target {
        &self.rows
    }
}

impl FromIterator<(String, Binding)> for Bindings {
    fn from_iter<T: IntoIterator<Item = (String, Binding)>>(rows: T) -> Self {
        let mut bindings = Self::default();
        for (chat, binding) in rows {
            bindings.insert(chat, binding);
        }
        bindings
    }
}

impl PartialEq for Bindings {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

impl Eq for Bindings {}

impl Serialize for Bindings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bindings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<String, Binding>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Millis;

    fn binding(session: &str) -> Binding {
        Binding { session: SessionId::from(session), last_used: Millis(1), idle_from: Millis(1), revision: 1 }
    }

    fn index(bindings: &Bindings) -> Vec<(String, Vec<String>)> {
        bindings.chats.iter().map(|(session, chats)| (session.0.clone(), chats.iter().cloned().collect())).collect()
    }

    fn listed(pairs: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        let texts = |chats: &[&str]| chats.iter().map(|chat| (*chat).to_owned()).collect();
        pairs.iter().map(|(session, chats)| ((*session).to_owned(), texts(chats))).collect()
    }

    #[test]
    fn the_index_follows_every_change_and_is_built_again_from_bytes() {
        let mut bindings: Bindings = [("a", "s1"), ("b", "s1"), ("c", "s2")]
            .map(|(chat, to)| (chat.to_owned(), binding(to)))
            .into_iter()
            .collect();
        assert_eq!(index(&bindings), listed(&[("s1", &["a", "b"]), ("s2", &["c"])]));
        bindings.insert("a".into(), binding("s2"));
        bindings.insert("a".into(), binding("s2"));
        bindings.change("b", |row| row.session = SessionId::from("s9"));
        assert_eq!(index(&bindings), listed(&[("s1", &["b"]), ("s2", &["a", "c"])]));

        let bytes = postcard::to_stdvec(&bindings).unwrap();
        assert_eq!(bytes, postcard::to_stdvec(&*bindings).unwrap(), "the index is not written");
        let again: Bindings = postcard::from_bytes(&bytes).unwrap();
        assert_eq!((index(&again), &again), (index(&bindings), &bindings));

        bindings.remove("c");
        bindings.retain(|row| row.session != SessionId::from("s1"));
        assert_eq!(index(&bindings), listed(&[("s2", &["a"])]));
        assert_eq!(bindings.remove_session(&SessionId::from("s2")), 1);
        assert!(index(&bindings).is_empty() && bindings.is_empty());
    }
}
