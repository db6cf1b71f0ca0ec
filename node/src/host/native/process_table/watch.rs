//! Looks after one running process: takes its exit status, so that no zombie stays, and keeps its output file from
//! filling the disk. Lives as long as the process or the node.

use std::{io::Write, os::unix::process::ExitStatusExt, time::Duration};

use tokio::{process::Child, time};

use super::{Entry, State, status};
use crate::clock;

/// The largest output file. A server that logs for weeks must not fill the disk; at this size the file begins anew.
const OUTPUT_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// How often the size is looked at: at 100 MB/s a file passes its limit by 1 GB at most.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Starts the task. `child` is the wrapper when this run of the node started it.
pub(super) fn start(entry: Entry, child: Option<Child>) {
    tokio::spawn(async move {
        let Some(mut child) = child else {
            while entry.state() == State::Running {
                time::sleep(LOOK_EVERY).await;
                trim(&entry, OUTPUT_BYTES_MAX);
            }
            return;
        };
        loop {
            match time::timeout(LOOK_EVERY, child.wait()).await {
                Err(_) => trim(&entry, OUTPUT_BYTES_MAX),
                Ok(status) => {
                    let nobody_said = matches!(status::read(&entry.status_file()), State::Running | State::Lost);
                    if let Some(signal) = status.ok().and_then(|status| status.signal()).filter(|_| nobody_said) {
                        status::write(&entry.status_file(), State::Killed(signal));
                    }
                    return;
                }
            }
        }
    });
}

/// Empties an output file above `limit` and says so in it. The process appends, so it goes on at the new end.
fn trim(entry: &Entry, limit: u64) {
    let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(entry.output()) else { return };
    if file.metadata().is_ok_and(|found| found.len() > limit) && file.set_len(0).is_ok() {
        let _ = writeln!(
            file,
            "[chappie: earlier output was dropped at {}: the file had passed {limit} bytes]",
            clock::rfc3339(clock::now())
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_file_above_its_limit_begins_anew_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let meta = serde_json::from_value(serde_json::json!({
            "id": "p1", "command": "true", "cwd": "/", "keep": false, "session": "s", "started": 0
        }));
        let entry = Entry { meta: meta.unwrap(), folder: folder.path().to_owned() };
        std::fs::write(entry.output(), "0123456789").unwrap();
        trim(&entry, 10);
        assert_eq!(std::fs::read_to_string(entry.output()).unwrap(), "0123456789");
        trim(&entry, 9);
        let text = std::fs::read_to_string(entry.output()).unwrap();
        assert!(text.starts_with("[chappie: earlier output was dropped at "), "{text}");
    }
}
