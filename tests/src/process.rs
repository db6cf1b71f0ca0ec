//! Looking at processes from outside, through `/proc`: which ones carry a mark, what they run, how much memory they hold.

use std::{fs, path::Path};

use rustix::process::{Pid, Signal};

/// Environment variable that marks every process started for a test, and what those start in turn.
pub const MARK: &str = "CHECKS_WORLD";

/// A process that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its id.
    pub pid: i32,
    /// Its command line, arguments joined by spaces.
    pub command: String,
}

/// The processes marked with `mark`, except zombies.
#[must_use]
pub fn marked(mark: &str) -> Vec<Seen> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            environment.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes()).then_some(pid)
        })
        .filter_map(|pid| Some(Seen { pid, command: command(pid)? }))
        .collect()
}

/// The marked processes whose command line contains `part`.
#[must_use]
pub fn running(mark: &str, part: &str) -> Vec<Seen> {
    marked(mark).into_iter().filter(|seen| seen.command.contains(part)).collect()
}

/// Ends every marked process, by its id.
pub fn end_marked(mark: &str) {
    for seen in marked(mark) {
        kill(seen.pid);
    }
}

/// Sends SIGKILL.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Whether the process is there and no zombie.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    command(pid).is_some()
}

/// Resident memory in bytes; `None` when the process is gone.
#[must_use]
pub fn resident(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// What each thread of a process waits for in the kernel (`wchan`).
#[must_use]
pub fn waits(pid: i32) -> Vec<String> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks.filter_map(Result::ok).filter_map(|task| fs::read_to_string(task.path().join("wchan")).ok()).collect()
}

/// How many file descriptors a process holds open.
#[must_use]
pub fn open_files(pid: i32) -> usize {
    fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).map_or(0, Iterator::count)
}

/// Processor time a process has used so far, in clock ticks (100 a second).
#[must_use]
pub fn cpu_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

fn command(pid: i32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // A zombie and a kernel thread have no command line.
    if line.is_empty() {
        return None;
    }
    let parts: Vec<_> =
        line.split(|byte| *byte == 0).filter(|part| !part.is_empty()).map(String::from_utf8_lossy).collect();
    Some(parts.join(" "))
}
