//! After `mesh recover` (failure rule F17): the new broker may lack what the old one knew last, so every member says which
//! operations of the last 24 h it knows, and nothing new is reserved before. Pure.

use chappie_mesh::NodeId;
use serde::{Deserialize, Serialize};

use super::{
    apply::{prune, settle},
    command::{Reply, Settlement, TooLong, bytes},
    limits::{CALL_BYTES_MAX, CONVERSATION_BYTES_MAX, RECEIPT_KEEP_MS, RECEIPTS_MAX, SESSION_BYTES_MAX},
    receipts::{Receipt, ReceiptKey, ReceiptKind, ReceiptStatus},
    state::State,
};
use crate::ids::{CallId, Conversation, Millis, SessionId};

/// Begins the reason of a receipt that two members ran; by it a repeated word is known.
const TWICE: &str = "it may have run twice, also at";

/// An operation with a receipt, as the journal of its session node has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reannounced {
    /// Identity.
    pub key: ReceiptKey,
    /// Which attempt.
    pub attempt: u32,
    /// Whose it is.
    pub conversation: Option<Conversation>,
    /// Where it ran.
    pub session: SessionId,
    /// That session's folder then.
    pub cwd: String,
    /// Message or batch.
    pub kind: ReceiptKind,
    /// The call that carried it.
    pub call_id: CallId,
    /// How it ended; `None`: it runs.
    pub outcome: Option<Settlement>,
    /// How long ago it last changed, in milliseconds by the member's own clock: only ages compare (failure rule F14).
    pub age_ms: u64,
}

impl Reannounced {
    /// Checks the lengths that bound the state.
    pub(super) fn check(&self) -> Result<(), TooLong> {
        if let Some(Conversation::Chat(id) | Conversation::Connection(id)) = &self.conversation {
            bytes("the conversation's id", id, CONVERSATION_BYTES_MAX)?;
        }
        bytes("the session's id", self.session.as_str(), SESSION_BYTES_MAX)?;
        bytes("the call's id", self.call_id.as_str(), CALL_BYTES_MAX)?;
        bytes("the receipt's key", &self.key.0, 64)
    }

    /// The receipt that this says. Its arguments are not known, so any are taken for the same.
    fn receipt(&self, at: Millis) -> Receipt {
        let changed = Millis(at.0.saturating_sub(self.age_ms));
        let mut receipt = Receipt {
            key: self.key.clone(),
            signature: String::new(),
            operation_id: String::new(),
            conversation: self.conversation.clone(),
            session: self.session.clone(),
            cwd: self.cwd.clone(),
            kind: self.kind,
            call_id: self.call_id.clone(),
            attempt: self.attempt,
            status: ReceiptStatus::Running,
            reason: None,
            created: changed,
            updated: changed,
            keep_from: changed,
            resources: Vec::new(),
            resources_left_out: 0,
            imported: false,
        };
        match &self.outcome {
            None => receipt.fit(),
            Some(Settlement::Completed { resources }) => {
                receipt.change(ReceiptStatus::Completed, None, changed);
                receipt.add_resources(resources, 0);
            }
            Some(Settlement::Uncertain { reason }) => receipt.change(ReceiptStatus::Uncertain, Some(reason), changed),
            Some(Settlement::NeverRun) => receipt.change(ReceiptStatus::NeverRun, None, changed),
        }
        receipt
    }
}

/// Takes over what `node` knows; it has re-announced when these were the `last` rows and there was room for them.
pub(super) fn reannounce(state: &mut State, at: Millis, node: &NodeId, rows: &[Reannounced], last: bool) -> Reply {
    let name = state.membership.as_ref().map_or_else(|| node.short(), |known| known.name_of(node));
    let mut changed = false;
    let settled = |row: &Reannounced| matches!(row.outcome, Some(Settlement::Completed { .. } | Settlement::NeverRun));
    for row in rows.iter().filter(|row| !settled(row) || row.age_ms < RECEIPT_KEEP_MS) {
        if !state.receipts.contains_key(&row.key) && state.receipts.len() >= RECEIPTS_MAX {
            prune(state, at);
            if state.receipts.len() >= RECEIPTS_MAX {
                return Reply::full("operation receipts", RECEIPTS_MAX);
            }
        }
        changed |= take(state, at, row, &name);
    }
    if last {
        changed |= state.recovering.remove(node);
    }
    Reply::Done(changed)
}

/// Whether the row changed anything.
fn take(state: &mut State, at: Millis, row: &Reannounced, from: &str) -> bool {
    use ReceiptStatus::{Completed, NeverRun, Uncertain};
    let Some(known) = state.receipts.get_mut(&row.key).filter(|known| !known.expired(at)) else {
        state.receipts.insert(row.key.clone(), row.receipt(at));
        return true;
    };
    if (known.attempt, &known.call_id) == (row.attempt, &row.call_id) {
        return match &row.outcome {
            Some(outcome) => settle(state, at, &row.key, row.attempt, outcome, 0) == Reply::Done(true),
            // It was believed to be sealed, and runs.
            None if known.status == NeverRun => {
                known.change(ReceiptStatus::Running, None, at);
                true
            }
            None => false,
        };
    }
    let theirs_ran = row.outcome != Some(Settlement::NeverRun);
    match known.status {
        _ if !theirs_ran => false,
        NeverRun => {
            let (signature, operation_id) = (known.signature.clone(), known.operation_id.clone());
            *known = Receipt { signature, operation_id, ..row.receipt(at) };
            known.fit();
            true
        }
        // What completed answers for the operation, whoever else ran it.
        Completed => false,
        Uncertain if known.reason.as_ref().is_some_and(|why| why.starts_with(TWICE)) => false,
        // An earlier attempt was sealed before the known one began.
        _ if row.attempt < known.attempt && row.session == known.session => false,
        _ => {
            // Another attempt than either had: what a session node reports of its run does not speak for the other.
            known.attempt = known.attempt.max(row.attempt).saturating_add(1);
            known.change(ReceiptStatus::Uncertain, Some(&format!("{TWICE} {from}")), at);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{
        apply::apply,
        command::{Command, Reservation, Stamped},
        membership::Membership,
    };

    const AT: Millis = Millis(1_790_000_000_000);

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    /// A mesh of two after its recovery, in which nobody has re-announced.
    fn recovered() -> State {
        let mut mesh = Membership::alone([1; 16].into(), node(1), "one", AT);
        let two = super::super::membership::Joined { name: "two".into(), at: AT, invite: None };
        mesh.members.insert(node(2), two);
        State { membership: Some(mesh), recovering: [node(1), node(2)].into(), at: AT, pruned: AT, ..State::default() }
    }

    fn run(state: &mut State, command: Command) -> Reply {
        let index = state.applied + 1;
        apply(state, &Stamped { at: AT, index, command })
    }

    fn reserve(state: &mut State, key: &str, call: &str) -> Reply {
        let reservation = Reservation {
            key: ReceiptKey(key.into()),
            signature: "s".into(),
            operation_id: key.into(),
            conversation: None,
            session: SessionId::from("s1"),
            cwd: "/w".into(),
            kind: ReceiptKind::Call,
            call_id: CallId::from(call),
        };
        run(state, Command::Reserve(reservation))
    }

    fn row(key: &str, call: &str, outcome: Option<Settlement>) -> Reannounced {
        Reannounced {
            key: ReceiptKey(key.into()),
            attempt: 1,
            conversation: None,
            session: SessionId::from("s1"),
            cwd: "/w".into(),
            kind: ReceiptKind::Call,
            call_id: CallId::from(call),
            outcome,
            age_ms: 1_000,
        }
    }

    fn completed() -> Option<Settlement> {
        Some(Settlement::Completed { resources: vec![] })
    }

    fn says(state: &mut State, who: u8, rows: Vec<Reannounced>, last: bool) -> Reply {
        run(state, Command::Reannounce { node: node(who), rows, last })
    }

    fn status(state: &State, key: &str) -> ReceiptStatus {
        state.receipts[&ReceiptKey(key.into())].status
    }

    #[test]
    fn f17_nothing_new_is_reserved_before_every_member_has_re_announced_to_the_last_row() {
        let mut state = recovered();
        let both = Reply::Recovering(vec!["one".into(), "two".into()]);
        assert_eq!(reserve(&mut state, "k", "c"), both);
        says(&mut state, 1, vec![row("a", "c", completed())], true);
        says(&mut state, 2, vec![row("b", "c", None)], false);
        assert_eq!(reserve(&mut state, "k", "c"), Reply::Recovering(vec!["two".into()]));
        assert!(matches!(reserve(&mut state, "a", "again"), Reply::Replay(_)), "what is known is answered");
        assert!(matches!(reserve(&mut state, "b", "again"), Reply::Replay(_)));
        says(&mut state, 2, vec![], true);
        assert_eq!(reserve(&mut state, "k", "c"), Reply::Fresh { attempt: 1 });
    }

    #[test]
    fn f17_a_sealed_attempt_does_not_run_again_either_before_all_have_spoken() {
        let mut state = recovered();
        says(&mut state, 1, vec![row("k", "c", Some(Settlement::NeverRun))], true);
        assert_eq!(reserve(&mut state, "k", "d"), Reply::Recovering(vec!["two".into()]));
        says(&mut state, 2, vec![], true);
        assert_eq!(reserve(&mut state, "k", "d"), Reply::Fresh { attempt: 2 });
    }

    #[test]
    fn f17_accepting_the_loss_or_forgetting_the_absent_ends_the_wait() {
        let mut state = recovered();
        assert_eq!(run(&mut state, Command::AcceptLoss), Reply::Done(true));
        assert_eq!(run(&mut state, Command::AcceptLoss), Reply::Done(false));
        assert_eq!(reserve(&mut state, "k", "c"), Reply::Fresh { attempt: 1 });
        let mut state = recovered();
        says(&mut state, 1, vec![], true);
        run(&mut state, Command::Remove { node: node(2), sessions: vec![] });
        assert_eq!(reserve(&mut state, "k", "c"), Reply::Fresh { attempt: 1 });
    }

    #[test]
    fn f17_the_journal_of_the_session_node_settles_what_the_state_believes_to_run() {
        let mut state = State { recovering: [].into(), ..recovered() };
        for key in ["done", "runs", "sealed"] {
            reserve(&mut state, key, "c");
        }
        let rows =
            vec![row("done", "c", completed()), row("runs", "c", None), row("sealed", "c", Some(Settlement::NeverRun))];
        says(&mut state, 1, rows.clone(), true);
        let found = ["done", "runs", "sealed"].map(|key| status(&state, key));
        assert_eq!(found, [ReceiptStatus::Completed, ReceiptStatus::Running, ReceiptStatus::NeverRun]);
        assert_eq!(says(&mut state, 1, rows, true), Reply::Done(false), "the same again changes nothing");
        says(&mut state, 1, vec![row("sealed", "c", None)], true);
        assert_eq!(status(&state, "sealed"), ReceiptStatus::Running);
    }

    #[test]
    fn f17_an_operation_that_ran_elsewhere_after_an_accepted_loss_becomes_uncertain_unless_it_completed() {
        let mut state = State { recovering: [].into(), ..recovered() };
        for key in ["runs", "done", "sealed"] {
            reserve(&mut state, key, "new");
        }
        let settle =
            |key: &str, outcome| Command::Settle { key: ReceiptKey(key.into()), attempt: 1, outcome, left_out: 0 };
        run(&mut state, settle("done", Settlement::Completed { resources: vec![] }));
        run(&mut state, settle("sealed", Settlement::NeverRun));
        let rows: Vec<_> = ["runs", "done", "sealed"].map(|key| row(key, "old", completed())).into();
        says(&mut state, 2, rows.clone(), true);
        let found = ["runs", "done", "sealed"].map(|key| status(&state, key));
        assert_eq!(found, [ReceiptStatus::Uncertain, ReceiptStatus::Completed, ReceiptStatus::Completed]);
        let uncertain = &state.receipts[&ReceiptKey("runs".into())];
        assert!(uncertain.reason.as_ref().is_some_and(|why| why.contains("two")), "{uncertain:?}");
        assert_eq!(state.receipts[&ReceiptKey("sealed".into())].signature, "s", "its arguments were known");
        let before = state.clone();
        says(&mut state, 2, rows, true);
        assert_eq!(state.receipts, before.receipts, "the same again changes nothing");
    }

    #[test]
    fn f17_what_ended_more_than_24_hours_ago_is_left_out() {
        let mut state = recovered();
        let old = Reannounced { age_ms: RECEIPT_KEEP_MS, ..row("old", "c", completed()) };
        let runs = Reannounced { age_ms: RECEIPT_KEEP_MS, ..row("runs", "c", None) };
        says(&mut state, 1, vec![old, runs], true);
        assert_eq!(state.receipts.keys().map(|key| key.0.as_str()).collect::<Vec<_>>(), ["runs"]);
    }
}
