//! The swarm: `cargo run --release -p netsim -- --seeds N`. Runs seeds on all cores, says how many a minute, and stops at
//! the first that fails with the command that runs it again.

use std::{
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use netsim::{
    fleet::{Broken, Options, REQUIRED, Scenario, Tally, run},
    world::trace::Keep,
};

const USAGE: &str = "usage: netsim [--seeds N] [--first S] [--jobs J] [--all] [--quorum] [--broken KIND]\n       netsim --seed S [--trace | --packets] [--quorum] [--broken KIND]\n\
    KIND: fencing, fsync, receipt-after-dispatch, vote, ack-before-write";
/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(20);

/// From so many seeds on, a swarm must have reached everything.
const REACHING: u64 = 200;

/// What is asked for.
#[derive(Clone, Debug)]
struct Asked {
    first: u64,
    seeds: u64,
    jobs: usize,
    one: Option<u64>,
    /// Whether to go on after a failure.
    all: bool,
    keep: Keep,
    broken: Option<Broken>,
    scenario: Scenario,
}

impl Asked {
    /// How each seed is run. Each has a trace of its own.
    fn options(&self, keep: Keep) -> Options {
        Options { keep, broken: self.broken, ..Options::default() }
    }

    /// The words that a seed is to be run again with.
    fn again(&self) -> String {
        let scenario = if self.scenario == Scenario::Quorum { " --quorum" } else { "" };
        let broken = self.broken.map(|broken| format!(" --broken {broken}")).unwrap_or_default();
        format!("{scenario}{broken}")
    }
}

fn asked(words: impl Iterator<Item = String>) -> Result<Asked, String> {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let mut asked = Asked {
        first: 1,
        seeds: 100,
        jobs,
        one: None,
        all: false,
        keep: Keep::Hash,
        broken: None,
        scenario: Scenario::default(),
    };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{word}: `{value}` is no number"))
        };
        match word.as_str() {
            "--seeds" => asked.seeds = number()?,
            "--first" => asked.first = number()?,
            "--seed" => asked.one = Some(number()?),
            "--jobs" => asked.jobs = usize::try_from(number()?).unwrap_or(1).max(1),
            "--all" => asked.all = true,
            "--quorum" => asked.scenario = Scenario::Quorum,
            "--trace" => asked.keep = Keep::Events,
            "--packets" => asked.keep = Keep::Packets,
            "--broken" => asked.broken = Some(words.next().ok_or("--broken needs a kind")?.parse()?),
            _ => return Err(format!("`{word}` is not known\n{USAGE}")),
        }
    }
    Ok(asked)
}

fn main() -> ExitCode {
    let asked = match asked(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    match asked.one {
        Some(seed) => one(seed, &asked),
        None => swarm(&asked),
    }
}

/// Runs one seed, and shows what it was asked to show.
fn one(seed: u64, asked: &Asked) -> ExitCode {
    let options = asked.options(asked.keep);
    let outcome = run(asked.scenario, seed, options.clone());
    if let Some(trace) = options.took.trace() {
        for line in trace.lines() {
            println!("{line}");
        }
        let (hash, events) = trace.digest();
        println!("seed {seed}: {events} events, trace {hash:016x}");
    }
    match outcome {
        Ok(tally) => {
            println!("{tally}seed {seed}: passed");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("seed {seed}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Progress {
    next: AtomicU64,
    done: AtomicU64,
    stop: AtomicBool,
    tally: Mutex<Tally>,
    failures: Mutex<Vec<(u64, String)>>,
}

fn swarm(asked: &Asked) -> ExitCode {
    let progress = Arc::new(Progress::default());
    let begin = Instant::now();
    let workers: Vec<_> = (0..asked.jobs)
        .map(|_| {
            let (progress, asked) = (Arc::clone(&progress), asked.clone());
            thread::spawn(move || work(&progress, &asked))
        })
        .collect();
    let mut told = Instant::now();
    while workers.iter().any(|worker| !worker.is_finished()) {
        thread::sleep(Duration::from_millis(50));
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            println!("{} of {} seeds, {:.0} a minute", done(&progress), asked.seeds, rate(&progress, begin));
        }
    }
    let failures = progress.failures.lock().unwrap_or_else(PoisonError::into_inner);
    let first = failures.iter().min_by_key(|(seed, _)| *seed);
    println!("{} seeds, {:.0} a minute{}", done(&progress), rate(&progress, begin), of_a_core(&progress));
    match first {
        Some((seed, error)) => {
            let again = asked.again();
            println!(
                "seed {seed} fails: {error}\nrun it again: cargo run --release -p netsim -- --seed {seed} --trace{again}"
            );
            ExitCode::FAILURE
        }
        None => {
            let tally = progress.tally.lock().unwrap_or_else(PoisonError::into_inner);
            print!("{tally}");
            let missing = tally.missing(&REQUIRED);
            if asked.scenario == Scenario::Whole && asked.seeds >= REACHING && !missing.is_empty() {
                println!("no seed reached: {}", missing.join(", "));
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
    }
}

fn done(progress: &Progress) -> u64 {
    progress.done.load(Ordering::SeqCst)
}

fn rate(progress: &Progress, begin: Instant) -> f64 {
    let seconds = begin.elapsed().as_secs_f64().max(0.001);
    f64::from(u32::try_from(done(progress)).unwrap_or(u32::MAX)) * 60.0 / seconds
}

/// How many seeds a minute one core has done that this process had to itself, by what the system says it used: on a busy
/// machine the time on the wall says little.
fn of_a_core(progress: &Progress) -> String {
    /// The system's unit of it; 100 a second on every Linux that Rust's standard library knows.
    const TICKS_A_MINUTE: f64 = 6_000.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold spaces: user and system time are the 12th and 13th field.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let used: f64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    if used < 1.0 {
        return String::new();
    }
    let seeds = f64::from(u32::try_from(done(progress)).unwrap_or(u32::MAX));
    format!(", {:.0} a minute of one core", seeds * TICKS_A_MINUTE / used)
}

fn work(progress: &Progress, asked: &Asked) {
    while !progress.stop.load(Ordering::SeqCst) {
        let number = progress.next.fetch_add(1, Ordering::SeqCst);
        if number >= asked.seeds {
            return;
        }
        let seed = asked.first + number;
        let outcome = run(asked.scenario, seed, asked.options(Keep::Hash));
        progress.done.fetch_add(1, Ordering::SeqCst);
        match outcome {
            Ok(tally) => progress.tally.lock().unwrap_or_else(PoisonError::into_inner).merge(&tally),
            Err(error) => {
                if asked.all {
                    let first: String = error.chars().take(300).collect();
                    println!("seed {seed} fails: {first}");
                } else {
                    progress.stop.store(true, Ordering::SeqCst);
                }
                progress.failures.lock().unwrap_or_else(PoisonError::into_inner).push((seed, error));
            }
        }
    }
}
