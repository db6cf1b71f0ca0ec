//! One scene of the kill test: a node with two sessions, a ledger, files, and what the clients were told so far.

mod operation;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use chappie_tests::{
    Answer, Client, Node, World, answer::excerpt, client::InFlight, eventually, files, ledger::Ledger, node::Setup,
    random::Random,
};
use operation::{Kind, Operation};
use serde_json::{Value, json};

/// In which state a kill caught the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    BeforeAccepted,
    Running,
    Unsent,
    Sent,
}

impl State {
    pub(crate) const ALL: [Self; 4] = [Self::BeforeAccepted, Self::Running, Self::Unsent, Self::Sent];
}

/// How the moment of a kill is chosen. The seed chooses the rest; what a kill really hit is judged afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// While the probe waits behind another call of its session.
    Queued,
    /// Within milliseconds of sending it.
    AtOnce,
    /// Between its first and its last line in the ledger.
    Midway,
    /// After its last line, its client having lost the connection while it ran.
    Deserted,
    /// Within milliseconds of its last line.
    AtItsEnd,
    /// After its answer arrived.
    Answered,
    /// At any time.
    Anywhere,
}

impl Aim {
    pub(crate) const ALL: [Self; 7] =
        [Self::Queued, Self::AtOnce, Self::Midway, Self::Deserted, Self::AtItsEnd, Self::Answered, Self::Anywhere];

    pub(crate) const fn meant_for(self) -> Option<State> {
        match self {
            Self::Queued | Self::AtOnce => Some(State::BeforeAccepted),
            Self::Midway => Some(State::Running),
            Self::Deserted | Self::AtItsEnd => Some(State::Unsent),
            Self::Answered => Some(State::Sent),
            Self::Anywhere => None,
        }
    }
}

/// The files that writes go to, and the one that edits go to.
const WRITTEN: [&str; 3] = ["w0", "w1", "w2"];
const EDITED: &str = "e";

pub(crate) struct Scene {
    node: Node,
    random: Random,
    ledger: Ledger,
    folder: PathBuf,
    /// The session of the probe and the session of the mixed calls.
    sessions: [String; 2],
    /// The last entry of each session's history that was read.
    cursors: [String; 2],
    /// The entries before the first round.
    first: [String; 2],
    /// What each file held after the last round.
    contents: BTreeMap<&'static str, String>,
    /// Marks that must be in history, for they were acknowledged; `fresh` ones in this round.
    acknowledged: BTreeSet<String>,
    fresh: BTreeSet<String>,
    /// How often the output of each operation arrived in a late result.
    late: BTreeMap<String, Arrivals>,
}

/// How often an outcome came late.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    /// As something new.
    first: usize,
    /// As `redelivered`.
    again: usize,
}

impl Scene {
    pub(crate) async fn open(seed: u64) -> Self {
        let world = Arc::new(World::new());
        let (probe, mixed) = (world.folder("P"), world.folder("M"));
        let ledger_path = world.folder("outside").join("ledger");
        world.put(&ledger_path, "");
        let mut contents = BTreeMap::new();
        for name in WRITTEN {
            contents.insert(name, operation::content("first"));
        }
        contents.insert(EDITED, operation::edited("first"));
        for (name, content) in &contents {
            world.put(&mixed.join(name), content);
        }
        let setup = Setup::new().session(&probe, "p").session(&mixed, "m").cooldown(0.0);
        let node = Node::start(world, setup).await;
        let sessions = [node.session("p"), node.session("m")];
        let cursors = [last_entry(&node, &sessions[0]).await, last_entry(&node, &sessions[1]).await];
        Self {
            node,
            random: Random::from_environment(seed),
            ledger: Ledger::at(&ledger_path),
            folder: mixed,
            sessions,
            cursors: cursors.clone(),
            first: cursors,
            contents,
            acknowledged: BTreeSet::new(),
            fresh: BTreeSet::new(),
            late: BTreeMap::new(),
        }
    }

    /// Chooses the next aim: any at first, then one for a state that still lacks kills.
    pub(crate) fn aim(&mut self, any: bool, lacks: impl Fn(State) -> bool) -> Aim {
        let wanted: Vec<Aim> = Aim::ALL.into_iter().filter(|aim| any || aim.meant_for().is_some_and(&lacks)).collect();
        *self.random.pick(&wanted)
    }

    /// One kill: calls begin, the node dies, it starts again, and everything is checked.
    pub(crate) async fn round(&mut self, number: usize, aim: Aim) -> State {
        let client = self.node.client().await;
        let probe = Operation::probe(number, &self.ledger, &mut self.random);
        let mixed = self.begin_mixed(&client, number);
        let caller = client.chat(&format!("probe-{number}"));
        let received = self.probe_until_kill(&caller, &probe, aim).await;
        let at_kill = self.ledger.counts();
        let outcomes = collect(mixed).await;
        self.node.start_again().await;

        let state = self.judge_probe(number, &probe, aim, received.as_ref(), &at_kill).await;
        for (operation, answer) in &outcomes {
            self.check_mixed(operation, answer.as_ref()).await;
        }
        self.check_files(&outcomes);
        self.check_ledger();
        self.check_history().await;
        state
    }

    /// The last look: everything acknowledged is still in history, read from its beginning, after one more restart.
    pub(crate) async fn close(&mut self) {
        self.node.restart().await;
        let text = self.read_history(&mut self.first.clone()).await;
        for mark in &self.acknowledged {
            assert!(text.contains(mark), "{mark} was acknowledged and is not in history");
        }
    }

    fn begin_mixed(&mut self, client: &Client, number: usize) -> Vec<(Operation, InFlight)> {
        let mut begun = Vec::new();
        for (index, kind) in Kind::MIXED.into_iter().enumerate() {
            if self.random.chance(25) {
                continue;
            }
            let name = format!("m{number}x{index}");
            let file = *self.random.pick(&WRITTEN);
            let with_id = self.random.chance(50);
            let current = self.contents[EDITED].clone();
            let operation = Operation::mixed(kind, &name, &self.ledger, file, &current, with_id);
            let caller = client.chat(&format!("mixed-{}", index % 2));
            let arguments = operation.arguments(&self.sessions[1]);
            let call = caller.begin(operation.tool, arguments);
            begun.push((operation, call));
        }
        begun
    }

    /// Sends the probe and kills the node at the moment that `aim` and the seed choose. Gives the answer if it arrived.
    async fn probe_until_kill(&mut self, caller: &Client, probe: &Operation, aim: Aim) -> Option<Answer> {
        let arguments = probe.arguments(&self.sessions[0]);
        let (start, end) = (format!("{}-start", probe.name), format!("{}-end", probe.name));
        let blocker = if aim == Aim::Queued { Some(self.block(caller, &probe.name).await) } else { None };
        let mut call = Some(caller.begin(probe.tool, arguments));
        match aim {
            Aim::Queued => self.random.moment(80).await,
            Aim::AtOnce => self.random.moment(4).await,
            Aim::Anywhere => self.random.moment(400).await,
            Aim::Midway => {
                self.seen(&start).await;
                self.random.moment(40).await;
            }
            Aim::Deserted => {
                self.seen(&start).await;
                drop(call.take());
                self.seen(&end).await;
                self.random.moment(150).await;
            }
            Aim::AtItsEnd => {
                self.seen(&end).await;
                self.random.moment(4).await;
            }
            Aim::Answered => {
                let call = call.as_ref().unwrap();
                eventually("the probe's answer", async || call.is_finished().then_some(())).await;
                self.random.moment(30).await;
            }
        }
        self.node.kill();
        drop(blocker);
        match call {
            Some(call) => call.try_answer().await.ok(),
            None => None,
        }
    }

    /// Occupies the probe's session for half a second.
    async fn block(&self, caller: &Client, name: &str) -> InFlight {
        let mark = format!("{name}-block");
        let command = format!("{}; sleep 0.5", self.ledger.append(&mark));
        let call = caller.begin("bash", json!({"command": command, "sessionId": self.sessions[0]}));
        self.seen(&mark).await;
        call
    }

    async fn seen(&self, mark: &str) {
        eventually(mark, async || (self.ledger.count(mark) > 0).then_some(())).await;
    }

    /// Repeats the probe under its `operationId` and says in which state the kill caught it.
    async fn judge_probe(
        &mut self,
        number: usize,
        probe: &Operation,
        aim: Aim,
        received: Option<&Answer>,
        at_kill: &BTreeMap<String, usize>,
    ) -> State {
        let client = self.node.client().await.chat(&format!("probe-{number}"));
        let started = at_kill.contains_key(&format!("{}-start", probe.name));
        let replay = client.call(probe.tool, probe.arguments(&self.sessions[0])).await.ok();
        self.count_late(&replay);
        let status = replay.header()["replay"]["status"].as_str().map(str::to_owned);
        let state = match (received, status.as_deref()) {
            (Some(answer), status) => {
                assert!(answer.text().contains(&probe.output()), "{}", excerpt(&answer.text()));
                assert_eq!(status, Some("completed"), "an acknowledged outcome is known: {}", excerpt(&replay.text()));
                State::Sent
            }
            (None, Some("completed")) => State::Unsent,
            (None, Some("uncertain")) if started => State::Running,
            (None, Some("uncertain") | None) if !started => State::BeforeAccepted,
            (None, status) => {
                panic!("the probe had begun, and its repetition ended as {status:?}: {}", excerpt(&replay.text()))
            }
        };
        if status.is_some() {
            assert!(replay.results().is_empty(), "a replay never brings results: {}", excerpt(&replay.text()));
        } else {
            assert!(replay.output().contains(&probe.output()), "what never ran runs now: {}", excerpt(&replay.text()));
        }
        self.settle_late(&client, probe, aim, state).await;
        if state == State::Sent {
            self.fresh.insert(probe.output());
        }
        state
    }

    /// An outcome that nobody received comes with a later answer of its conversation, once.
    async fn settle_late(&mut self, client: &Client, probe: &Operation, aim: Aim, state: State) {
        for _ in 0..2 {
            let answer = client.call("bash", json!({"command": "true", "sessionId": self.sessions[0]})).await.ok();
            self.count_late(&answer);
        }
        let Arrivals { first, again } = self.late.get(&probe.name).copied().unwrap_or_default();
        match (state, aim) {
            // The node may not know whether the answer that nobody read went out, so it may call it a repetition.
            (State::Unsent, Aim::Deserted) => assert_eq!(first + again, 1, "{}: late results", probe.name),
            (State::Sent, _) => assert_eq!(first, 0, "{}: was received, and came as if it were new", probe.name),
            _ => assert!(first + again <= 1, "{}: {first} late results and {again} repetitions", probe.name),
        }
    }

    fn count_late(&mut self, answer: &Answer) {
        for (head, results) in answer.late_results() {
            for word in results.iter().flat_map(|result| result.text.split_whitespace()) {
                let Some(name) = word.strip_prefix("out-") else { continue };
                let arrivals = self.late.entry(name.to_owned()).or_default();
                if head["redelivered"] == true {
                    arrivals.again += 1;
                } else {
                    arrivals.first += 1;
                }
            }
        }
    }

    async fn check_mixed(&mut self, operation: &Operation, answer: Option<&Answer>) {
        let ran = self.ledger.count(&operation.name);
        if let Some(answer) = answer
            && !answer.is_error
        {
            assert!(!operation.leaves_mark() || ran == 1, "{} was acknowledged and ran {ran} times", operation.name);
            if operation.leaves_mark() {
                self.fresh.insert(operation.output());
            }
        }
        if operation.has_id() && self.random.chance(50) {
            let client = self.node.client().await.chat(&operation.conversation());
            let replay = client.call(operation.tool, operation.arguments(&self.sessions[1])).await;
            self.count_late(&replay);
            if operation.leaves_mark() && ran == 1 {
                assert_eq!(self.ledger.count(&operation.name), 1, "{} ran again", operation.name);
            }
        }
    }

    fn check_ledger(&self) {
        for (mark, count) in self.ledger.counts() {
            assert_eq!(count, 1, "{mark} ran {count} times");
        }
    }

    /// Each file holds what it held, or all of what one operation of this round put into it.
    fn check_files(&mut self, outcomes: &[(Operation, Option<Answer>)]) {
        for (name, before) in self.contents.clone() {
            let now = files::text(&self.folder.join(name));
            let known = now == before || outcomes.iter().any(|(operation, _)| operation.puts(name, &now));
            assert!(known, "{name} is neither old nor new: {}", excerpt(&now));
            self.contents.insert(name, now);
        }
        let strangers: Vec<String> = files::Snapshot::of(&self.folder)
            .names()
            .into_iter()
            .filter(|name| !self.contents.contains_key(name.as_str()))
            .collect();
        assert!(strangers.len() <= 1, "files left behind by kills pile up: {strangers:?}");
    }

    /// Reads on in both histories: what was acknowledged in this round stands there.
    async fn check_history(&mut self) {
        let mut cursors = self.cursors.clone();
        let text = self.read_history(&mut cursors).await;
        self.cursors = cursors;
        for mark in std::mem::take(&mut self.fresh) {
            assert!(text.contains(&mark), "{mark} was acknowledged and is not in history");
            self.acknowledged.insert(mark);
        }
    }

    /// Reads both histories forward from `cursors`, and moves those.
    async fn read_history(&self, cursors: &mut [String; 2]) -> String {
        let client = self.node.stateless();
        let mut all = String::new();
        for (session, cursor) in self.sessions.iter().zip(cursors) {
            loop {
                let arguments = json!({"sessionId": session, "after": cursor, "limit": 200, "observer": true});
                let page = client.call("history", arguments).await.ok();
                all.push_str(&page.text());
                if let Some(last) = page.sections().iter().rev().find_map(|section| entry_id(&section.head)) {
                    *cursor = last;
                }
                if page.header()["history"]["hasMore"] != true {
                    break;
                }
            }
        }
        all
    }
}

fn entry_id(head: &Value) -> Option<String> {
    head.get("timestamp")?;
    head["id"].as_str().map(str::to_owned)
}

/// The last entry of a session's history, which is given one to begin with.
async fn last_entry(node: &Node, session: &str) -> String {
    let client = node.stateless();
    client.call("bash", json!({"command": "true", "sessionId": session})).await.ok();
    let page = client.call("history", json!({"sessionId": session, "limit": 1, "observer": true})).await.ok();
    let last = page.sections().iter().find_map(|section| entry_id(&section.head));
    last.unwrap_or_else(|| panic!("no entry in {}", excerpt(&page.text())))
}

async fn collect(calls: Vec<(Operation, InFlight)>) -> Vec<(Operation, Option<Answer>)> {
    let mut outcomes = Vec::new();
    for (operation, call) in calls {
        outcomes.push((operation, call.try_answer().await.ok()));
    }
    outcomes
}
