//! Which processes belong to a call: those of its process group, their descendants, and those that carry its marker in
//! their environment although they left the group (`setsid`, daemons that fork twice). Linux reads `/proc`; where there
//! is none the list is empty and only the group itself is signalled.
//!
//! Not here: when to end them, which is `super`.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read,
    sync::OnceLock,
};

use rustix::process::{Pid, Signal};

/// A process by pid and start time, so that a recycled pid is never taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Process id.
    pub pid: i32,
    /// Clock ticks since boot at which it started; zero where the system has no `/proc`.
    pub start: u64,
}

/// What `/proc/<pid>/stat` says of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) id: Identity,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// It has ended and only waits for its parent to ask.
    pub(super) ended: bool,
}

impl Identity {
    /// The process that has `pid` now; `None` when there is none.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        match stat(pid) {
            Some(process) => Some(process.id),
            None => exists_without_proc(pid).then_some(Self { pid, start: 0 }),
        }
    }

    /// Whether exactly this process still runs. A zombie does not.
    #[must_use]
    pub fn is_alive(self) -> bool {
        match stat(self.pid) {
            Some(process) => process.id == self && !process.ended,
            None => self.start == 0 && exists_without_proc(self.pid),
        }
    }

    /// Whether it has ended and waits for this process to ask how.
    #[must_use]
    pub fn awaits_us(self) -> bool {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        stat(self.pid).is_some_and(|process| process.id == self && process.ended && process.parent == own)
    }

    /// Sends `signal` to this process and to no later owner of its pid. A process that is gone is no error.
    pub fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
            // The descriptor holds on to the process, so that it cannot be replaced between the check and the signal.
            let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
            if Self::of(self.pid) == Some(self) {
                // Fails only when it ended meanwhile or belongs to another user: nothing that we could do.
                let _ = pidfd_send_signal(handle, signal);
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// The processes of `leader`'s group, of its session, those carrying `marker` (`KEY=value`), and all descendants of
/// these. Includes zombies; never includes this process.
pub(super) fn members(leader: Option<Identity>, marker: &str) -> Vec<Process> {
    let all = processes();
    let marked: BTreeSet<i32> = all.iter().map(|p| p.id.pid).filter(|pid| carries(*pid, marker)).collect();
    select(&all, leader, &marked, i32::try_from(std::process::id()).unwrap_or_default())
}

/// The rule of [`members`] on a list of processes. Pure.
fn select(all: &[Process], leader: Option<Identity>, marked: &BTreeSet<i32>, own: i32) -> Vec<Process> {
    // A group without its leader proves nothing: the number may be a later group's. Marked members still count.
    let group = leader.filter(|l| all.iter().any(|p| p.id == *l)).map(|l| l.pid);
    let mut chosen: BTreeSet<i32> = all
        .iter()
        .filter(|p| marked.contains(&p.id.pid) || group.is_some_and(|g| [p.id.pid, p.group, p.session].contains(&g)))
        .map(|p| p.id.pid)
        .collect();
    chosen.remove(&own);
    loop {
        let before = chosen.len();
        for process in all {
            if process.id.pid != own && chosen.contains(&process.parent) {
                chosen.insert(process.id.pid);
            }
        }
        if chosen.len() == before {
            break;
        }
    }
    all.iter().filter(|p| chosen.contains(&p.id.pid)).copied().collect()
}

/// Every process of the system.
fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid > 1)
        .filter_map(stat)
        .collect()
}

fn stat(pid: i32) -> Option<Process> {
    parse_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// proc(5): the second field is the name in parentheses and may hold any character, so the rest starts after the last
/// one. Then state, parent, group, session, and the start time as field 22.
fn parse_stat(pid: i32, text: &str) -> Option<Process> {
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let start = fields.nth(15)?.parse().ok()?;
    let ended = matches!(state, "Z" | "X" | "x");
    Some(Process { id: Identity { pid, start }, parent, group, session, ended })
}

/// An environment larger than this is read only so far: the kernel's own bound on one string, eight times over.
const ENVIRONMENT_BYTES_MAX: u64 = 1024 * 1024;

/// Whether the process was started with `marker` in its environment. Other users' processes cannot be read: no.
fn carries(pid: i32, marker: &str) -> bool {
    let Ok(file) = File::open(format!("/proc/{pid}/environ")) else { return false };
    let mut environment = Vec::new();
    // A process that ends while it is read gives an error and is not ours to end any more.
    let _ = file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut environment);
    environment.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes())
}

/// Identifies this boot of the machine: start times count from it. Empty where the system does not say.
#[must_use]
pub fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    })
}

#[cfg(target_os = "linux")]
const fn exists_without_proc(_pid: i32) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn exists_without_proc(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32, session: i32) -> Process {
        let id = Identity { pid, start: u64::try_from(pid).unwrap() };
        Process { id, parent, group, session, ended: false }
    }

    fn pids(chosen: &[Process]) -> Vec<i32> {
        chosen.iter().map(|p| p.id.pid).collect()
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let text = "77 (a) b (c) S 5 77 70 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 998877 1 1";
        let found = parse_stat(77, text).unwrap();
        assert_eq!(found.id, Identity { pid: 77, start: 998_877 });
        assert_eq!((found.parent, found.group, found.session, found.ended), (5, 77, 70, false));
    }

    #[test]
    fn group_session_descendants_and_marked_processes_are_chosen() {
        let all = [
            process(10, 1, 10, 1),   // the leader
            process(11, 10, 10, 1),  // its child in the group
            process(12, 1, 10, 1),   // orphan in the group
            process(13, 11, 13, 13), // descendant that called setsid
            process(14, 1, 14, 14),  // daemon, only its marker tells
            process(15, 14, 15, 15), // its child
            process(20, 1, 20, 20),  // a stranger
        ];
        let chosen = select(&all, Some(all[0].id), &BTreeSet::from([14]), 99);
        assert_eq!(pids(&chosen), [10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn a_recycled_leader_brings_only_marked_processes() {
        let all = [process(10, 1, 10, 1), process(11, 10, 10, 1), process(14, 1, 14, 14)];
        let stale = Identity { pid: 10, start: 3 };
        assert_eq!(pids(&select(&all, Some(stale), &BTreeSet::from([14]), 99)), [14]);
        assert!(select(&all, None, &BTreeSet::new(), 99).is_empty());
    }

    #[test]
    fn this_process_is_never_chosen() {
        let all = [process(10, 1, 10, 1), process(11, 10, 10, 1), process(12, 11, 12, 1)];
        assert_eq!(pids(&select(&all, Some(all[0].id), &BTreeSet::from([11]), 11)), [10]);
    }

    #[test]
    fn an_identity_is_bound_to_its_start_time() {
        let own = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.is_alive());
        assert!(!Identity { start: own.start + 1, ..own }.is_alive());
    }
}
