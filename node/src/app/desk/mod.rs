//! The broker's desk: what a person, or a member itself, asks of the device that is broker, from any device of the mesh.
//! On the broker's device it is a function call, elsewhere one stream for each question.

mod messages;

use std::{sync::Arc, time::Duration};

use chappie_mesh::{InviteId, InviteKey, JoinReply, JoinRequest, NodeId, Stream, StreamKind};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use self::messages::{ASK_MAX, DeskAsk, DeskTold, TOLD_MAX};
use super::Node;
use crate::{
    broker::{AdmitError, Belongings, ForgetError, InviteError, ProposeError, ResolveError},
    control::{CommandError, ForgetRow, ReceiptReport, ReceiptRow, Resolution, SessionRow, membership::named},
    fleet::seat::Holder,
};

/// How long a question waits for a connection to the broker's device: as an offline selection does.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long an answer may take after that. Merging the largest state takes about a second on a slow disk.
const ANSWER_WAIT: Duration = Duration::from_secs(15);

/// Before the next broker is asked: an election takes a little longer.
const MOVED_PAUSE: Duration = Duration::from_millis(200);

/// Devices that one question is sent to in a row: whoever is asked first may have lost the seat, and whoever it names too.
const HOPS_MAX: usize = 4;

/// Questions of members that are answered at one time; each costs a task, and at most [`ASK_MAX`] bytes. More are dropped,
/// and whoever asked is told that nobody answered.
pub(super) const DESKS_MAX: usize = 32;

fn failed(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(error.to_string())
}

impl Node {
    /// Asks the device `broker`, and whoever it names as the broker.
    async fn ask_desk(&self, broker: NodeId, ask: DeskAsk) -> Result<DeskTold, CommandError> {
        let mut asked = broker;
        for _ in 0..HOPS_MAX {
            match self.ask_one(asked, &ask).await? {
                DeskTold::Refused { message, temporary } => return Err(CommandError { message, temporary }),
                DeskTold::Elsewhere(Some(next)) if next != asked && next != self.own() => asked = next,
                DeskTold::Elsewhere(_) => break,
                told => return Ok(told),
            }
        }
        let device = self.membership.roster().label(&asked);
        Err(CommandError::temporary(format!(
            "no device is the broker just now (asked {device} last); try again in some seconds, and see `chappie status`"
        )))
    }

    async fn ask_one(&self, broker: NodeId, ask: &DeskAsk) -> Result<DeskTold, CommandError> {
        let device = self.membership.roster().label(&broker);
        let Some(mesh) = self.mesh.get() else {
            return Err(CommandError::new(format!(
                "the broker of this mesh is the device {device}, and this process has no connection to it; start the node \
                 here with `chappie up`, or run the command on {device}"
            )));
        };
        let unreachable = |cause: String| {
            CommandError::temporary(format!("the broker's device {device} could not be asked: {cause}"))
        };
        let mut stream =
            mesh.open(broker, StreamKind::Desk, CONNECT_WAIT).await.map_err(|error| unreachable(error.to_string()))?;
        let exchange = async {
            stream.send.message(ask).await?;
            stream.send.finish();
            stream.recv.message::<DeskTold>(TOLD_MAX).await
        };
        match tokio::time::timeout(ANSWER_WAIT, exchange).await {
            Ok(Ok(Some(told))) => Ok(told),
            Ok(Ok(None)) => Err(unreachable("it closed the question without an answer".into())),
            Ok(Err(error)) => Err(unreachable(error.to_string())),
            Err(_) => Err(unreachable(format!("it did not answer within {} s", ANSWER_WAIT.as_secs()))),
        }
    }

    /// Who has the seat; waits a moment while it changes hands.
    ///
    /// # Errors
    /// Nobody has it: who is missing, and what to do.
    async fn broker_now(&self) -> Result<Holder, CommandError> {
        let mut seat = self.seat.clone();
        match tokio::time::timeout(CONNECT_WAIT, seat.taken()).await {
            Ok(holder) => Ok(holder),
            Err(_) => Err(self.no_broker()),
        }
    }

    /// Asks `node` for nothing but an answer.
    pub(super) async fn is_there(&self, node: NodeId) -> bool {
        self.ask_one(node, &DeskAsk::Sessions).await.is_ok()
    }

    async fn ask_rows<T: DeserializeOwned>(&self, broker: NodeId, ask: DeskAsk) -> Result<T, CommandError> {
        read_rows(self.ask_desk(broker, ask).await?)
    }

    /// Why nobody can be asked.
    fn no_broker(&self) -> CommandError {
        CommandError::temporary(self.fleet.no_broker())
    }

    async fn ask_done(&self, broker: NodeId, ask: DeskAsk) -> Result<(), CommandError> {
        self.ask_desk(broker, ask).await.map(|_| ())
    }

    /// The fleet's sessions; only this device's own while the broker cannot be asked.
    pub(super) async fn fleet_sessions(&self) -> Vec<SessionRow> {
        match self.seat.holder() {
            Holder::Here => self.online_rows(),
            Holder::Nobody => self.session_rows(),
            Holder::There(broker) if !self.connected(&broker) => self.session_rows(),
            Holder::There(broker) => match self.ask_rows(broker, DeskAsk::Sessions).await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::debug!(%error, "only this device's own sessions are listed");
                    self.session_rows()
                }
            },
        }
    }

    /// Has the broker do something, wherever it is, and whoever it is by then: an election in between is waited for.
    async fn decided(&self, ask: DeskAsk) -> Result<DeskTold, CommandError> {
        let until = Instant::now() + ANSWER_WAIT;
        loop {
            let told = match self.broker_now().await? {
                Holder::Here => match self.desk_answer(self.own(), ask.clone()).await {
                    Ok(told) => told,
                    Err(Undone::Moved) => DeskTold::Elsewhere(None),
                    Err(Undone::Failed(error)) => return Err(error),
                },
                Holder::There(broker) => self.ask_one(broker, &ask).await?,
                Holder::Nobody => return Err(self.no_broker()),
            };
            match told {
                DeskTold::Refused { message, temporary } => return Err(CommandError { message, temporary }),
                DeskTold::Elsewhere(_) if Instant::now() < until => tokio::time::sleep(MOVED_PAUSE).await,
                DeskTold::Elsewhere(_) => return Err(self.no_broker()),
                told => return Ok(told),
            }
        }
    }

    async fn decided_rows<T: DeserializeOwned>(&self, ask: DeskAsk) -> Result<T, CommandError> {
        read_rows(self.decided(ask).await?)
    }

    /// All receipts, oldest first.
    pub(super) async fn all_receipts(&self) -> Result<Vec<ReceiptRow>, CommandError> {
        self.decided_rows(DeskAsk::Receipts).await
    }

    /// One receipt with its details.
    pub(super) async fn one_receipt(&self, id: String) -> Result<ReceiptReport, CommandError> {
        self.decided_rows(DeskAsk::Receipt(id)).await
    }

    /// Takes a person's word on a receipt.
    pub(super) async fn settle_by_word(&self, id: String, how: Resolution) -> Result<(), CommandError> {
        self.decided(DeskAsk::Resolve(id, how)).await.map(|_| ())
    }

    /// Has the broker remember an invite.
    pub(super) async fn register_invite(
        &self,
        id: InviteId,
        key: InviteKey,
        uses: u32,
        ttl_ms: u64,
    ) -> Result<(), CommandError> {
        self.decided(DeskAsk::Invite { id, key, uses, ttl_ms }).await.map(|_| ())
    }

    /// Forgets another device (F21). A broker that shall be forgotten gives its office away first; then the next one is asked.
    /// Nobody forgets itself: what came of it could not be told to a device that is cut off.
    pub(super) async fn forget_device(&self, word: String) -> Result<ForgetRow, CommandError> {
        let node = named(&self.membership.roster(), &word)?;
        if node == self.own() {
            return Err(CommandError::new(
                "this is the device itself; run the command on another device of the mesh, or stop the node here and run \
                 `chappie reset-identity`",
            ));
        }
        // By its id: the device that was meant, whatever the word comes to mean meanwhile.
        let forgotten = self.decided_rows(DeskAsk::Forget(node.to_string())).await;
        forgotten.map_err(|error| self.only_voter(&node).unwrap_or(error))
    }

    /// Why `node` cannot be forgotten, when it alone votes and is not reached: nobody else can decide it.
    fn only_voter(&self, node: &NodeId) -> Option<CommandError> {
        let alone = self.broker.standing().borrow().voters.iter().eq([node]);
        let name = self.membership.roster().label(node);
        (alone && !self.connected(node)).then(|| failed(ForgetError::OnlyVoter(name)))
    }

    /// Tells the broker this device's name, when the roster has another one.
    pub(super) async fn tell_name(&self) -> Result<(), CommandError> {
        let known = self.membership.roster().members.get(&self.own()).map(|member| member.name.clone());
        if known.as_ref() == Some(&self.config.name) {
            return Ok(());
        }
        match self.seat.holder() {
            Holder::Here => self.broker.rename(self.own(), &self.config.name).await.map_err(failed),
            Holder::There(broker) => self.ask_done(broker, DeskAsk::Rename(self.config.name.clone())).await,
            Holder::Nobody => Err(self.no_broker()),
        }
    }

    /// Hands over what this device's own broker knew (F18).
    pub(super) async fn merge_into(&self, broker: NodeId, belongings: Belongings) -> Result<(), CommandError> {
        self.ask_done(broker, DeskAsk::Merge(belongings)).await
    }

    /// A device shows an invite at this device's door.
    pub(super) async fn admit(&self, node: NodeId, request: JoinRequest, binding: [u8; 32]) -> JoinReply {
        let JoinRequest { name, invite, proof, .. } = request;
        let Some(_stay) = self.membership.stay() else {
            let text =
                "the inviting device is changing its mesh itself just now; try again in a minute, with a new invite";
            return JoinReply::Refused(text.into());
        };
        let admitted = match self.decided(DeskAsk::Admit { node, name, invite, binding, proof }).await {
            Ok(DeskTold::Roster(roster)) => Ok(roster),
            Ok(_) => Err(failed("the broker's device answered something else")),
            Err(error) => Err(error),
        };
        match admitted {
            Ok(roster) => {
                let addresses = self.mesh.get().map(|mesh| mesh.known_addresses(None)).unwrap_or_default();
                JoinReply::Welcome { roster, addresses }
            }
            // Not decided is not refused: the mesh tells the device to try again when this takes too long.
            Err(error) if error.temporary => {
                tracing::warn!(%error, node = %node.short(), "a join could not be decided yet");
                std::future::pending().await
            }
            Err(error) => JoinReply::Refused(error.message),
        }
    }

    async fn forget_here(&self, word: &str) -> Result<ForgetRow, Undone> {
        self.is_itself()?;
        let roster = self.membership.roster();
        let node = named(&roster, word)?;
        let name = roster.members.get(&node).map(|member| member.name.clone()).unwrap_or_default();
        let sessions = self.fleet.kept(&node);
        let rows = self.online_rows().into_iter().filter(|row| sessions.iter().any(|id| id.as_str() == row.id));
        let rows = rows.collect();
        self.broker.forget(node, sessions).await?;
        tracing::info!(%node, name, "a device was forgotten; its connections close, and its sessions are gone from here");
        Ok(ForgetRow { node: node.to_string(), name, sessions: rows })
    }

    /// Answers one question of the member `peer`.
    pub(super) async fn serve_desk(self: Arc<Self>, peer: NodeId, mut stream: Stream) {
        let Ok(_desk) = self.desks.try_acquire() else {
            return tracing::warn!(peer = %peer.short(), "too many questions at once; one was dropped");
        };
        let ask = match tokio::time::timeout(ANSWER_WAIT, stream.recv.message::<DeskAsk>(ASK_MAX)).await {
            Ok(Ok(Some(ask))) => ask,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                tracing::warn!(%error, peer = %peer.short(), "a question was not understood");
                let message = "the broker's device does not know this question; update it".to_owned();
                let _ = stream.send.message(&DeskTold::Refused { message, temporary: false }).await;
                return;
            }
            Err(_) => return tracing::warn!(peer = %peer.short(), "a question did not arrive whole in time"),
        };
        let told = if self.seat.holder() == Holder::Here {
            match self.desk_answer(peer, ask).await {
                Ok(told) => Ok(told),
                Err(Undone::Moved) => Ok(DeskTold::Elsewhere(None)),
                Err(Undone::Failed(error)) => Err(error),
            }
        } else {
            let broker = match self.seat.holder() {
                Holder::There(broker) => Some(broker),
                Holder::Here | Holder::Nobody => None,
            };
            Ok(DeskTold::Elsewhere(broker))
        };
        let told =
            told.unwrap_or_else(|error| DeskTold::Refused { message: error.message, temporary: error.temporary });
        if let Err(error) = stream.send.message(&told).await {
            tracing::debug!(%error, peer = %peer.short(), "an answer did not arrive");
        }
        stream.send.finish();
    }

    async fn desk_answer(&self, peer: NodeId, ask: DeskAsk) -> Result<DeskTold, Undone> {
        let told = match ask {
            DeskAsk::Admit { node, name, invite, binding, proof } => {
                let roster = self.broker.admit(node, &name, invite, binding, proof).await?;
                DeskTold::Roster((*roster).clone())
            }
            DeskAsk::Invite { id, key, uses, ttl_ms } => {
                self.broker.invite(id, key, uses, ttl_ms).await?;
                DeskTold::Done
            }
            DeskAsk::Rename(name) => {
                self.broker.rename(peer, &name).await?;
                DeskTold::Done
            }
            DeskAsk::Merge(belongings) => {
                let report = self.broker.merge(peer, belongings).await?;
                if report.no_room > 0 {
                    let count = report.no_room;
                    return Err(Undone::Failed(CommandError::temporary(format!(
                        "the broker's tables are full: {count} rows of the joining device found no room. Settle uncertain \
                         receipts with `chappie receipts` there"
                    ))));
                }
                tracing::info!(?report, peer = %peer.short(), "a joining device handed over what its own broker knew");
                DeskTold::Done
            }
            DeskAsk::Sessions => rows(&self.online_rows())?,
            DeskAsk::Receipts => rows(&self.receipt_rows())?,
            DeskAsk::Receipt(id) => rows(&self.receipt_report(&id).await?)?,
            DeskAsk::Resolve(id, how) => {
                self.resolve_here(&id, how).await?;
                DeskTold::Done
            }
            DeskAsk::Forget(word) => rows(&self.forget_here(&word).await?)?,
        };
        Ok(told)
    }
}

/// Why the broker's part was not done.
pub(super) enum Undone {
    /// This device has lost its office, or given it away: the next broker must be asked.
    Moved,
    /// Something else, in words.
    Failed(CommandError),
}

impl From<CommandError> for Undone {
    fn from(error: CommandError) -> Self {
        Self::Failed(error)
    }
}

impl From<ProposeError> for Undone {
    fn from(error: ProposeError) -> Self {
        match error {
            // All that is asked here may be asked again: the same once more changes nothing (F12).
            ProposeError::NotBroker | ProposeError::Unknown(_) => Self::Moved,
            error => Self::Failed(failed(error)),
        }
    }
}

impl From<InviteError> for Undone {
    fn from(error: InviteError) -> Self {
        match error {
            InviteError::Propose(error) => error.into(),
            error => Self::Failed(failed(error)),
        }
    }
}

impl From<AdmitError> for Undone {
    fn from(error: AdmitError) -> Self {
        match error {
            AdmitError::Propose(error) => error.into(),
            error => Self::Failed(failed(error)),
        }
    }
}

impl From<ForgetError> for Undone {
    fn from(error: ForgetError) -> Self {
        match error {
            ForgetError::Propose(error) => error.into(),
            error => Self::Failed(failed(error)),
        }
    }
}

impl From<ResolveError> for Undone {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Propose(error) => error.into(),
            error => Self::Failed(failed(error)),
        }
    }
}

fn read_rows<T: DeserializeOwned>(told: DeskTold) -> Result<T, CommandError> {
    match told {
        DeskTold::Rows(json) => serde_json::from_slice(&json)
            .map_err(|error| failed(format!("the broker's device answered what this program cannot read: {error}"))),
        _ => Err(failed("the broker's device answered something else; update both devices to one version")),
    }
}

fn rows(value: &impl Serialize) -> Result<DeskTold, CommandError> {
    serde_json::to_vec(value).map(DeskTold::Rows).map_err(failed)
}
