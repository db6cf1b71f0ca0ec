//! What goes over a machine's network, as tcpdump sees it.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::Namespace;
use crate::wait;

/// A running capture of one network card of a machine.
#[derive(Debug)]
pub struct Capture {
    child: Child,
    folder: TempDir,
}

impl Capture {
    /// Starts to capture at a card, `eth0` on a [`super::Lan`] and `wan0` on a [`super::Wan`]; what is sent afterwards is
    /// in it. Loopback is another card: what a client says to its door is not on the wire.
    ///
    /// # Panics
    /// When tcpdump is not installed or does not start.
    #[must_use]
    pub fn of(namespace: &Namespace, card: &str) -> Self {
        Self::filtered(namespace, card, "")
    }

    /// The same of the packets that pass a filter of tcpdump, e.g. `udp port 5353`.
    ///
    /// # Panics
    /// When tcpdump is not installed or does not start.
    #[must_use]
    pub fn filtered(namespace: &Namespace, card: &str, filter: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("checks-").tempdir().expect("the temporary folder is writable");
        let mut command = namespace.command("tcpdump");
        command
            .args(["-i", card, "-U", "--immediate-mode", "-s", "0", "-Z", "root", "-w"])
            .arg(folder.path().join("pcap"))
            .arg(filter);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("nsenter of util-linux is installed");
        let lines = BufReader::new(child.stderr.take().expect("piped above")).lines().map_while(Result::ok);
        let mut said = Vec::new();
        let listening = lines.inspect(|line| said.push(line.clone())).any(|line| line.contains("listening on"));
        assert!(listening, "tcpdump did not start: {said:?}");
        Self { child, folder }
    }

    /// Everything captured so far.
    ///
    /// # Panics
    /// When tcpdump's file cannot be read.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.folder.path().join("pcap")).expect("tcpdump made it before it listened")
    }

    /// Whether these bytes stand in a packet.
    #[must_use]
    pub fn contains(&self, bytes: &[u8]) -> bool {
        contains(&self.bytes(), bytes)
    }

    /// How many packets were captured.
    #[must_use]
    pub fn packets(&self) -> usize {
        packets(&self.bytes()).len()
    }

    /// Waits until these bytes have been captured.
    pub async fn seen(&self, bytes: &[u8]) {
        let patience = Duration::from_secs(20);
        wait::within(patience, "a packet in the capture", async || self.contains(bytes).then_some(())).await;
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// The packets of a pcap file: a header of 24 bytes, then each with a header of 16 bytes of which the third number is the
/// captured length.
fn packets(mut file: &[u8]) -> Vec<&[u8]> {
    let mut packets = Vec::new();
    file = file.get(24..).unwrap_or_default();
    while let Some((head, rest)) = file.split_at_checked(16) {
        let length = [head[8], head[9], head[10], head[11]];
        let length = usize::try_from(u32::from_ne_bytes(length)).unwrap_or(usize::MAX);
        let Some((packet, rest)) = rest.split_at_checked(length) else { break };
        packets.push(packet);
        file = rest;
    }
    packets
}

/// Whether `needle` stands in `haystack`.
#[must_use]
pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
