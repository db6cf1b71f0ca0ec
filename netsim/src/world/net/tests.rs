//! What a network does to datagrams.

use std::future::poll_fn;

use quinn::{
    AsyncUdpSocket as _,
    udp::{RecvMeta, Transmit},
};

use super::*;
use crate::world::trace::Keep;

const LINK: Rule = Rule { jitter: Duration::ZERO, ..Rule::CALM };

fn address(device: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, device], 7000))
}

fn net(seed: u64, rule: Rule) -> (Net, Trace) {
    let trace = Trace::new(Keep::Hash);
    (Net::new(Seed::new(seed), rule, trace.clone()), trace)
}

fn send(socket: &Socket, to: u8, bytes: &[u8]) {
    let destination = address(to);
    let transmit = Transmit { destination, ecn: None, contents: bytes, segment_size: None, src_ip: None };
    socket.try_send(&transmit).unwrap();
}

async fn receive(socket: &Socket) -> (SocketAddr, Vec<u8>) {
    let mut bytes = [0; 2000];
    let mut meta = [RecvMeta::default()];
    let taken = poll_fn(|context| socket.poll_recv(context, &mut [io::IoSliceMut::new(&mut bytes)], &mut meta)).await;
    assert_eq!(taken.unwrap(), 1);
    (meta[0].addr, bytes[..meta[0].len].to_vec())
}

/// What arrives within a second.
async fn all(socket: &Socket) -> Vec<u8> {
    let mut firsts = Vec::new();
    while let Ok((_, bytes)) = tokio::time::timeout(Duration::from_secs(1), receive(socket)).await {
        firsts.push(bytes[0]);
    }
    firsts
}

#[tokio::test(start_paused = true)]
async fn a_datagram_arrives_after_the_latency_of_its_way() {
    let (net, _) = net(1, LINK);
    let [a, b] = [1, 2].map(|device| net.bind(address(device)).unwrap());
    net.way(address(1).ip(), address(2).ip(), Rule { latency: Duration::from_millis(40), ..LINK });
    let start = Instant::now();
    send(&a, 2, b"there");
    assert_eq!(receive(&b).await, (address(1), b"there".to_vec()));
    assert_eq!(start.elapsed(), Duration::from_millis(40));
    send(&b, 1, b"back");
    assert_eq!(receive(&a).await, (address(2), b"back".to_vec()));
    assert_eq!(start.elapsed(), Duration::from_millis(41));
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_in_one_go_arrives_as_single_datagrams() {
    let (net, _) = net(1, LINK);
    let [a, b] = [1, 2].map(|device| net.bind(address(device)).unwrap());
    let transmit =
        Transmit { destination: address(2), ecn: None, contents: b"aabbc", segment_size: Some(2), src_ip: None };
    a.try_send(&transmit).unwrap();
    assert_eq!(all(&b).await, b"abc");
    send(&a, 2, &[7; 1473]);
    assert_eq!(all(&b).await, b"", "longer than the way takes");
}

#[tokio::test(start_paused = true)]
async fn datagrams_are_lost_doubled_and_overtake_each_other() {
    let (net, _) = net(5, LINK);
    let [a, b] = [1, 2].map(|device| net.bind(address(device)).unwrap());
    net.rule(Rule { loss: PerMille(300), twice: PerMille(200), jitter: Duration::from_millis(20), ..LINK });
    let sent: Vec<u8> = (0..200).collect();
    for byte in &sent {
        send(&a, 2, &[*byte]);
    }
    let arrived = all(&b).await;
    let counts = net.counts();
    assert_eq!((counts.sent, counts.cut), (200, 0));
    assert!((30..100).contains(&counts.lost) && (10..60).contains(&counts.twice), "{counts:?}");
    assert_eq!(arrived.len() as u64, counts.sent - counts.lost + counts.twice);
    assert!(!arrived.is_sorted(), "jitter reorders");
}

#[tokio::test(start_paused = true)]
async fn one_direction_can_be_cut_and_what_was_under_way_is_lost() {
    let (net, _) = net(1, LINK);
    let [a, b] = [1, 2].map(|device| net.bind(address(device)).unwrap());
    send(&a, 2, b"1");
    net.cut(address(1).ip(), address(2).ip());
    send(&a, 2, b"2");
    send(&b, 1, b"3");
    assert_eq!((all(&b).await, all(&a).await), (vec![], b"3".to_vec()));
    net.mend(address(1).ip(), address(2).ip());
    send(&a, 2, b"4");
    assert_eq!(all(&b).await, b"4");
    assert_eq!(net.counts().cut, 2);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_was_unplugged_is_gone_until_it_binds_again() {
    let (net, _) = net(1, LINK);
    let [a, old] = [1, 2].map(|device| net.bind(address(device)).unwrap());
    net.unplug(address(2).ip());
    send(&a, 2, b"1");
    send(&old, 1, b"2");
    assert_eq!(all(&a).await, b"");
    let new = net.bind(address(2)).unwrap();
    drop(old);
    assert_eq!(net.bind(address(2)).unwrap_err().kind(), io::ErrorKind::AddrInUse, "the old one's end frees nothing");
    send(&a, 2, b"3");
    assert_eq!(all(&new).await, b"3");
    drop(new);
    net.bind(address(2)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_off_gets_nothing_and_one_that_stalls_sends_late() {
    let (net, _) = net(1, LINK);
    let [a, b] = [1, 2].map(|device| net.bind(address(device)).unwrap());
    net.switch(address(2).ip(), true);
    send(&a, 2, b"1");
    assert_eq!(all(&b).await, b"");
    net.switch(address(2).ip(), false);
    let start = Instant::now();
    net.stall(address(1).ip(), start + Duration::from_millis(300));
    send(&a, 2, b"2");
    assert_eq!(receive(&b).await.1, b"2");
    assert_eq!(start.elapsed(), Duration::from_millis(301));
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_nobody_reads_is_bounded() {
    let (net, _) = net(1, LINK);
    let [a, b] = [1, 2].map(|device| net.bind(address(device)).unwrap());
    for _ in 0..2 * QUEUE_BYTES_MAX / 1000 {
        send(&a, 2, &[1; 1000]);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(net.0.lock().ports[&address(2)].queue.len(), QUEUE_BYTES_MAX / 1000);
    assert_eq!(all(&b).await.len(), QUEUE_BYTES_MAX / 1000);
    assert_eq!(net.0.lock().ports[&address(2)].bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn port_zero_is_a_free_port() {
    let (net, _) = net(1, LINK);
    let any = SocketAddr::from(([10, 0, 0, 9], 0));
    let [a, b] = [0, 1].map(|_| net.bind(any).unwrap());
    assert_ne!(a.local_addr().unwrap(), b.local_addr().unwrap());
}

async fn storm(seed: u64) -> (u64, u64) {
    let (net, trace) = net(seed, Rule { loss: PerMille(100), jitter: Duration::from_millis(9), ..LINK });
    let [a, b] = [1, 2].map(|device| net.bind(address(device)).unwrap());
    for byte in 0..50 {
        send(&a, 2, &[byte; 30]);
    }
    // Each that arrives is answered, so that what is lost shows in what is sent.
    while let Ok((_, bytes)) = tokio::time::timeout(Duration::from_secs(1), receive(&b)).await {
        send(&b, 1, &bytes);
    }
    trace.digest()
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_trace() {
    assert_eq!(storm(1).await, storm(1).await);
    assert_ne!(storm(1).await, storm(2).await);
}
