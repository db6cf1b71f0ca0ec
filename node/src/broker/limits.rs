//! Every number of the broker with its reason. Pure.

/// Receipts kept at most (the guide: each state file retains at most 16,384 and then fails closed).
pub const RECEIPTS_MAX: usize = 16_384;
/// Encoded size of one receipt with its key (F26); what does not fit stays in the session node's journal.
pub const RECEIPT_BYTES_MAX: usize = 1_536;
/// How long a settled receipt is kept: 24 h (the guide). Uncertain and running ones stay until someone settles them.
pub const RECEIPT_KEEP_MS: u64 = 24 * HOUR_MS;
/// Room a receipt always leaves for the reason of an uncertain outcome, in bytes: a sentence.
pub const REASON_BYTES_MAX: usize = 160;
/// References one settlement may carry into the log. At 1.5 KiB a receipt holds fewer; this bounds the log entry.
pub const SETTLED_RESOURCES_MAX: usize = 64;
/// Characters of an `operationId` (behaviour 7.1).
pub const OPERATION_ID_CHARS_MAX: usize = 128;

/// Saved bindings at most (behaviour 13).
pub const BINDINGS_MAX: usize = 16_384;
/// An idle binding is ignored after 30 days (the guide).
pub const BINDING_IDLE_MS: u64 = 30 * DAY_MS;
/// A refreshed use is written at most once in this time; in memory it counts at once (behaviour 6.2).
pub const TOUCH_EVERY_MS: u64 = DAY_MS;
/// An idle binding leaves the state only here: the written use may be [`TOUCH_EVERY_MS`] older than the real one.
pub const BINDING_PRUNE_MS: u64 = BINDING_IDLE_MS + TOUCH_EVERY_MS;
/// After a touch that could not be written the next use within this time does not try again, so that a full disk is not
/// asked once per call.
pub const TOUCH_RETRY_MS: u64 = 60_000;

/// Bytes of a conversation's id. ChatGPT's are about 40; a longer one is a mistake and would fill the state.
pub const CONVERSATION_BYTES_MAX: usize = 256;
/// Bytes of a session's id: ours are 36, agents' own ids may be longer.
pub const SESSION_BYTES_MAX: usize = 96;
/// Bytes of a call's or a late result's id.
pub const CALL_BYTES_MAX: usize = 64;
/// Encoded size of one binding at most: two ids, three stamps, a revision, lengths.
pub const BINDING_BYTES_MAX: usize = CONVERSATION_BYTES_MAX + SESSION_BYTES_MAX + 48;

/// Delivered late results remembered (behaviour 13). They leave when their owner confirmed deletion (F26); when full, the
/// next delivery is not recorded and may come again, marked as such.
pub const DELIVERED_MAX: usize = 4_096;
/// Encoded size of one remembered delivery at most.
pub const DELIVERED_BYTES_MAX: usize = CALL_BYTES_MAX + CONVERSATION_BYTES_MAX + 24;

/// Devices of one mesh. The roster goes to each of them with every change; at this size it has 130 KB.
pub const MEMBERS_MAX: usize = 1_000;
/// Characters of a device's name, as the setting has it.
pub const NAME_CHARS_MAX: usize = 64;
/// Bytes of a device's name, as the devices tell it to each other.
pub const NAME_BYTES_MAX: usize = chappie_mesh::NAME_BYTES_MAX;
/// Forgotten devices that are told so (the roster's word); the oldest is then a stranger like any other.
pub const REMOVED_MAX: usize = 1_024;
/// Invites that can still be used. More than a person keeps in mind; a fleet takes one with many uses.
pub const INVITES_OPEN_MAX: usize = 64;
/// Invites kept, used up ones too: until they are over they answer those who used them (F19). One for each member.
pub const INVITES_MAX: usize = 1_024;
/// Uses of one invite: a whole mesh of them.
pub const INVITE_USES_MAX: u32 = 1_000;
/// Uses of all invites, past and to come, while they are kept: two whole meshes. Bounds what is written about uses.
pub const INVITE_USES_SUM_MAX: usize = 2_000;
/// How long an invite is good: from a second, below which nobody can use it, to a week, for machines that are set up later.
pub const INVITE_TTL_MS: (u64, u64) = (1_000, 7 * DAY_MS);
/// How long after its end an invite answers those who used it (F19).
pub const INVITE_GRACE_MS: u64 = 10 * 60_000;
/// Sessions that one `forget` may name: a device with more is misconfigured. An entry of the log is then 400 KB.
pub const FORGET_SESSIONS_MAX: usize = 4_096;
/// Encoded size of all about membership at most: ids of 32 bytes, names, stamps and counts of up to 10, lengths.
pub const MEMBERSHIP_BYTES_MAX: usize = MEMBERS_MAX * (32 + NAME_BYTES_MAX + 2 + 10 + 9)
    + REMOVED_MAX * (32 + 10)
    + INVITES_MAX * (8 + 32 + 5 + 10 + 10 + 1 + 2)
    + INVITE_USES_SUM_MAX * (32 + 10)
    + 128;

/// Encoded size of the list of members that have yet to re-announce at most.
pub const RECOVERING_BYTES_MAX: usize = MEMBERS_MAX * 32 + 2;

/// All of the above together (F26: 32 MiB, failing closed). Each table is capped by count and row size, so the sum is.
pub const STATE_BYTES_MAX: usize = 32 << 20;
const _: () = assert!(
    RECEIPTS_MAX * RECEIPT_BYTES_MAX
        + BINDINGS_MAX * BINDING_BYTES_MAX
        + DELIVERED_MAX * DELIVERED_BYTES_MAX
        + MEMBERSHIP_BYTES_MAX
        + RECOVERING_BYTES_MAX
        + 1_024
        <= STATE_BYTES_MAX
);

/// Expired rows are looked for at most this often; looking walks both tables.
pub const PRUNE_EVERY_MS: u64 = 10 * 60_000;

/// Connections (stdio, 2025-11-25 MCP sessions) whose default is remembered. Twice the agents and clients of a large
/// fleet; the least recently used is forgotten first.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Participation windows at most. Each lives 20 s, so this is 200 first calls a second; the one that ends first goes.
pub const WINDOWS_MAX: usize = 4_096;
/// Sessions online that are taken in: those of a hundred devices with a hundred each, and room. As many conversations can
/// be bound, so more could not all be used.
pub const SESSIONS_MAX: usize = 16_384;

/// A wall clock that moved further than this between two readings jumped (F14).
pub const JUMP_MS: u64 = HOUR_MS;

/// Commands that may wait for the writer. It commits up to [`BATCH_MAX`] in a few milliseconds, and the doors
/// admit 512 calls (behaviour 3.15), each with one command at a time; a full queue means a stuck disk.
pub const QUEUE_MAX: usize = 1_024;
/// Commands that are proposed together.
pub const BATCH_MAX: usize = 256;
/// Changes of the group and the like that may wait for the council: persons ask for them, one at a time.
pub const CONTROLS_MAX: usize = 64;
/// Back-off between attempts to reopen a store that failed (F25): first and longest.
pub const REOPEN_MS: (u64, u64) = (100, 5_000);
/// Free space below which a broker hands its office over, when another voter can take it (F25): four times what its log keeps in
/// reserve, so that it leaves before it lives on that. Below 64 MiB sessions refuse new work, and a broker has no need to yet.
pub const ROOM_MIN_BYTES: u64 = 16 << 20;
/// How often a broker looks at its free space, in milliseconds: a disk fills at some hundred MiB a second at most, and the
/// reserve is for what comes in between.
pub const ROOM_EVERY_MS: u64 = 1_000;
/// After it handed over for lack of room: first and longest pause before it does so again, in milliseconds. Where no device has
/// room they must not pass the office round and round.
pub const ROOM_AGAIN_MS: (u64, u64) = (10_000, 600_000);
/// How long a command waits for the office of a device that is the only voter: its election needs two syncs, and a
/// disk that takes longer than this for them is stuck.
pub const OFFICE_WAIT_MS: u64 = 5_000;
/// How long the office may take to move to a device that may have to become a voter first (F21).
pub const MOVE_WAIT_MS: u64 = 10_000;
/// How long an orderly end waits for another device to become the broker. It takes two round trips.
pub const LEAVE_WAIT_MS: u64 = 2_000;
/// How long nobody must have acted in this device's epoch before it follows a later one (F16): several elections, and a
/// broker that hands over is no reason to leave it.
pub const SILENT_MS: u64 = 2_000;
/// How long a device that starts asks the others of which epoch they are, before it stands for election: a dial and an answer
/// over a slow line. As much longer may a mesh that starts as a whole be without a broker, when a device is missing.
pub const SOUND_MS: u64 = 1_500;
/// How long one round of questions may take at least, and the pauses between two: at first, when the network is just coming
/// up, and as long as it waits for a later epoch's broker.
pub const SOUND_ROUND_MS: (u64, u64, u64) = (200, 50, 1_000);
/// Devices that are asked: each may take a dial, and in a larger mesh one of so many is in step with the others.
pub const SOUND_MAX: usize = 64;
/// How long a device of another epoch is remembered after it was heard (F16). Its broker asks every few seconds.
pub const SPLIT_HEARD_MS: u64 = 60_000;
/// How long a device of a later epoch waits for this one to follow it: a copy of the store and a start.
pub const FOLLOW_WAIT_MS: u64 = 10_000;
/// A bind that lost the compare-and-set selects again, at most this often: each loss means that somebody else's bind
/// of the same conversation was kept.
pub const BIND_ROUNDS_MAX: usize = 64;
/// Rows of one import command; larger imports become several commands, so that no log entry is over about 200 KiB.
pub const IMPORT_BATCH: usize = 128;
/// The largest state file that `import-state` reads. The original caps its own at 32 MiB.
pub const IMPORT_BYTES_MAX: usize = 64 << 20;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
