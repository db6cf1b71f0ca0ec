//! Answers on their way out of one connection (failure rule F7): a [`Ticket`] waits here from the moment the answer's last
//! byte entered the connection's buffer until the connection says that its buffer is with the operating system.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use crate::tools::Ticket;

/// The tickets of one connection. The connection calls [`Outbox::flushed`] and [`Outbox::close`], response bodies park.
#[derive(Default)]
pub struct Outbox {
    /// Whether anything is parked: the common flush takes no lock.
    waiting: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// At most one per request in flight, and HTTP/1 has one.
    parked: Vec<Ticket>,
}

impl Outbox {
    /// Keeps `ticket` until the next flush. After [`Outbox::close`] it is dropped, hence not written.
    pub fn park(&self, ticket: Ticket) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            drop(ticket);
            return;
        }
        state.parked.push(ticket);
        self.waiting.store(true, Ordering::Release);
    }

    /// Whether a flush would settle anything.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Everything buffered so far was handed to the operating system.
    pub fn flushed(&self) {
        for ticket in self.take(false) {
            ticket.written();
        }
    }

    /// The connection is gone: what waits was not written, nor will anything parked later be.
    pub fn close(&self) {
        drop(self.take(true));
    }

    /// Takes the tickets out, so that none settles under the lock.
    fn take(&self, close: bool) -> Vec<Ticket> {
        let mut state = self.lock();
        state.closed |= close;
        self.waiting.store(false, Ordering::Release);
        std::mem::take(&mut state.parked)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    fn ticket() -> (Ticket, mpsc::Receiver<bool>) {
        let (tx, rx) = mpsc::channel();
        (Ticket::new(move |written| tx.send(written).unwrap()), rx)
    }

    #[test]
    fn f7_a_parked_ticket_is_written_by_the_flush_and_not_before() {
        let outbox = Outbox::default();
        let (first, settled) = ticket();
        outbox.park(first);
        assert!(outbox.is_waiting());
        assert!(settled.try_recv().is_err());
        outbox.flushed();
        assert_eq!(settled.try_recv(), Ok(true));
        assert!(!outbox.is_waiting());
    }

    #[test]
    fn f7_a_connection_that_closes_first_leaves_its_tickets_unwritten() {
        let outbox = Outbox::default();
        let (first, settled) = ticket();
        outbox.park(first);
        outbox.close();
        outbox.flushed();
        assert_eq!(settled.try_recv(), Ok(false));
        let (late, settled) = ticket();
        outbox.park(late);
        assert_eq!(settled.try_recv(), Ok(false));
    }

    #[test]
    fn f7_an_outbox_dropped_with_its_connection_settles_what_waits() {
        let outbox = Outbox::default();
        let (first, settled) = ticket();
        outbox.park(first);
        drop(outbox);
        assert_eq!(settled.try_recv(), Ok(false));
    }

    #[test]
    fn settling_may_use_the_outbox_again() {
        let outbox = Arc::new(Outbox::default());
        let again = outbox.clone();
        outbox.park(Ticket::new(move |_| again.close()));
        outbox.flushed();
        let (late, settled) = ticket();
        outbox.park(late);
        assert_eq!(settled.try_recv(), Ok(false));
    }
}
