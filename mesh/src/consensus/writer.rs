//! The one thread that writes the engine's state, and the queue before it. What queued up while it wrote goes into the
//! next transaction together. In a simulation there is no thread, and everything is written here and now.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use openraft::storage::IOFlushed;
use tokio::sync::{mpsc, oneshot};

use super::{
    api::{LogStore, Write},
    types::Types,
};
use crate::runtime;

/// Changes that wait to be written. The engine waits when it is full; it holds more than the engine appends at once.
const QUEUE: usize = 1024;

/// Jobs of one transaction: what one sync may take along without making the first of them wait for long.
const BATCH: usize = 256;

/// Whom the end of a write is told.
pub(super) enum Done {
    /// Nobody: a later write tells, as a failed store fails every later one too.
    Nobody,
    /// Who asked for it.
    Asker(oneshot::Sender<io::Result<()>>),
    /// The engine.
    Engine(IOFlushed<Types>),
}

impl Done {
    fn tell(self, result: Result<(), &str>) {
        let result = result.map_err(io::Error::other);
        match self {
            Self::Nobody => {}
            // Who no longer waits needs no answer.
            Self::Asker(asker) => drop(asker.send(result)),
            Self::Engine(engine) => engine.io_completed(result),
        }
    }
}

type Kept = Option<(Vec<u8>, Vec<u8>)>;

enum Job {
    Write(Vec<Write>, Done),
    /// Written with what comes next: nobody waits for it, and losing it costs nothing.
    Committed(Vec<u8>),
    Snapshot(oneshot::Sender<io::Result<Kept>>),
    Close(oneshot::Sender<()>),
}

/// The store, and what became of it.
struct Disk {
    store: Option<Box<dyn LogStore>>,
    committed: Option<Vec<u8>>,
    /// Why it takes nothing more.
    failed: Arc<Mutex<Option<String>>>,
}

impl Disk {
    fn why_not(&self) -> String {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.clone().unwrap_or_else(|| "the store is closed".into())
    }

    /// All of it in one transaction. After an error it is not known what is on disk, so nothing more is written.
    fn write(&mut self, mut writes: Vec<Write>) -> Result<(), String> {
        let Some(store) = &mut self.store else { return Err(self.why_not()) };
        writes.extend(self.committed.take().map(Write::Committed));
        let Err(error) = store.write(writes) else { return Ok(()) };
        self.store = None;
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        Err(error.to_string())
    }

    fn snapshot(&mut self) -> io::Result<Kept> {
        match &mut self.store {
            Some(store) => store.snapshot(),
            None => Err(io::Error::other(self.why_not())),
        }
    }

    fn close(&mut self) {
        if self.committed.is_some() {
            // It may lag; when it cannot be written the log is applied from further back.
            let _ = self.write(Vec::new());
        }
        self.store = None;
    }

    /// Does `first` and what queued up behind it.
    fn work(&mut self, first: Job, queue: &mut mpsc::Receiver<Job>) {
        let mut next = Some(first);
        while let Some(job) = next.take() {
            match job {
                Job::Write(mut writes, done) => {
                    let mut told = vec![done];
                    while told.len() < BATCH {
                        match queue.try_recv() {
                            Ok(Job::Write(more, done)) => {
                                writes.extend(more);
                                told.push(done);
                            }
                            Ok(Job::Committed(id)) => self.committed = Some(id),
                            Ok(other) => {
                                next = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    let result = self.write(writes);
                    told.into_iter().for_each(|done| done.tell(result.as_ref().map(|&()| ()).map_err(String::as_str)));
                }
                Job::Committed(id) => self.committed = Some(id),
                Job::Snapshot(asker) => drop(asker.send(self.snapshot())),
                Job::Close(asker) => {
                    self.close();
                    let _ = asker.send(());
                }
            }
        }
    }
}

enum Way {
    Thread(mpsc::Sender<Job>),
    Inline(Mutex<Disk>),
}

/// Hands changes over to the store. Cheap to clone.
#[derive(Clone)]
pub(super) struct Writer {
    way: Arc<Way>,
    failed: Arc<Mutex<Option<String>>>,
}

impl Writer {
    /// Takes the store over.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(store: Box<dyn LogStore>) -> io::Result<Self> {
        let failed = Arc::new(Mutex::new(None));
        let mut disk = Disk { store: Some(store), committed: None, failed: Arc::clone(&failed) };
        if runtime::is_simulated() {
            return Ok(Self { way: Arc::new(Way::Inline(Mutex::new(disk))), failed });
        }
        let (jobs, mut queue) = mpsc::channel(QUEUE);
        std::thread::Builder::new().name("consensus-log".into()).spawn(move || {
            while let Some(job) = queue.blocking_recv() {
                disk.work(job, &mut queue);
            }
            disk.close();
        })?;
        Ok(Self { way: Arc::new(Way::Thread(jobs)), failed })
    }

    /// Why the store takes nothing more, when it failed.
    pub(super) fn failed(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn hand(&self, job: Job) -> io::Result<()> {
        match &*self.way {
            Way::Thread(jobs) => jobs.send(job).await.map_err(|_| io::Error::other("the store's thread has ended")),
            Way::Inline(disk) => {
                let (_, mut nothing) = mpsc::channel(1);
                disk.lock().unwrap_or_else(PoisonError::into_inner).work(job, &mut nothing);
                Ok(())
            }
        }
    }

    /// Queues changes; `done` hears when they are on disk.
    pub(super) async fn write(&self, writes: Vec<Write>, done: Done) -> io::Result<()> {
        self.hand(Job::Write(writes, done)).await
    }

    /// Writes changes and waits until they are on disk.
    pub(super) async fn written(&self, writes: Vec<Write>) -> io::Result<()> {
        let (asker, answer) = oneshot::channel();
        self.write(writes, Done::Asker(asker)).await?;
        answer.await.map_err(|_| io::Error::other("the store's thread has ended"))?
    }

    /// Notes what is known to be committed; it is written with the next change.
    pub(super) async fn committed(&self, id: Vec<u8>) -> io::Result<()> {
        self.hand(Job::Committed(id)).await
    }

    /// The snapshot, as it was written.
    pub(super) async fn snapshot(&self) -> io::Result<Kept> {
        let (asker, answer) = oneshot::channel();
        self.hand(Job::Snapshot(asker)).await?;
        answer.await.map_err(|_| io::Error::other("the store's thread has ended"))?
    }

    /// Writes what is left and closes the store. Later changes are errors.
    pub(super) async fn close(&self) {
        let (asker, answer) = oneshot::channel();
        if self.hand(Job::Close(asker)).await.is_ok() {
            let _ = answer.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as std_mpsc;

    use super::*;

    /// Says what it was given, and waits before each transaction until it may go on.
    struct Slow {
        seen: std_mpsc::Sender<Vec<Write>>,
        go: std_mpsc::Receiver<io::Result<()>>,
    }

    impl LogStore for Slow {
        fn write(&mut self, writes: Vec<Write>) -> io::Result<()> {
            self.seen.send(writes).unwrap();
            self.go.recv().unwrap()
        }

        fn snapshot(&mut self) -> io::Result<Kept> {
            Ok(Some((vec![1], vec![2])))
        }
    }

    fn slow() -> (Writer, std_mpsc::Receiver<Vec<Write>>, std_mpsc::Sender<io::Result<()>>) {
        let (seen, writes) = std_mpsc::channel();
        let (go, gate) = std_mpsc::channel();
        (Writer::start(Box::new(Slow { seen, go: gate })).unwrap(), writes, go)
    }

    fn append(index: u64) -> Vec<Write> {
        vec![Write::Append(vec![(index, vec![])])]
    }

    #[tokio::test]
    async fn what_queues_up_during_a_write_goes_into_the_next_one_together() {
        let (writer, seen, go) = slow();
        writer.write(append(1), Done::Nobody).await.unwrap();
        assert_eq!(seen.recv().unwrap(), append(1));
        let (first, one) = oneshot::channel();
        let (second, two) = oneshot::channel();
        writer.write(append(2), Done::Asker(first)).await.unwrap();
        writer.committed(vec![7]).await.unwrap();
        writer.write(append(3), Done::Asker(second)).await.unwrap();
        go.send(Ok(())).unwrap();
        go.send(Ok(())).unwrap();
        one.await.unwrap().unwrap();
        two.await.unwrap().unwrap();
        let together: Vec<_> = [append(2), append(3), vec![Write::Committed(vec![7])]].concat();
        assert_eq!(seen.recv().unwrap(), together);
    }

    #[tokio::test]
    async fn f12_after_an_error_the_store_is_asked_nothing_more() {
        let (writer, seen, go) = slow();
        go.send(Err(io::Error::other("no space"))).unwrap();
        assert_eq!(writer.written(append(1)).await.unwrap_err().to_string(), "no space");
        assert_eq!(writer.written(append(2)).await.unwrap_err().to_string(), "no space");
        assert_eq!(writer.snapshot().await.unwrap_err().to_string(), "no space");
        assert_eq!(writer.failed().as_deref(), Some("no space"));
        assert_eq!(seen.try_iter().count(), 1);
    }

    #[tokio::test]
    async fn a_closed_store_is_gone_and_has_what_is_committed() {
        let (writer, seen, go) = slow();
        writer.committed(vec![7]).await.unwrap();
        go.send(Ok(())).unwrap();
        writer.close().await;
        assert_eq!(seen.iter().collect::<Vec<_>>(), [vec![Write::Committed(vec![7])]]);
        assert_eq!(writer.written(append(1)).await.unwrap_err().to_string(), "the store is closed");
        assert_eq!(writer.failed(), None);
    }
}
