//! Log files with a cap, and equal lines counted instead of repeated.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use file_rotate::compression::Compression;
use file_rotate::suffix::AppendCount;
use file_rotate::{ContentLimit, FileRotate};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::domain::{Clock, SystemClock};

/// A file is put aside when it has grown past this.
const FILE_MAX_BYTES: usize = 8 << 20;
/// Files put aside; the oldest goes.
const FILES_MAX: usize = 4;
/// Lines waiting for the disk; more are dropped, because a log must not stop the work.
const LINES_WAITING_MAX: usize = 8_192;
/// Lines looked back for equal ones, and for how long.
const EQUAL_LINES: usize = 32;
const EQUAL_FOR: Duration = Duration::from_secs(60);

/// What is logged where nothing else is asked for with `MIDWATCH_LOG`.
const LEVELS: &str = "info,hyper=warn,reqwest=warn,h2=warn,rustls=warn";

/// Starts the log: files under `folder`, and standard error as well when `also_stderr`.
///
/// What waits is written when the returned guards are dropped.
///
/// # Errors
/// When the folder cannot be made.
pub fn start(folder: &Path, also_stderr: bool) -> io::Result<Vec<WorkerGuard>> {
    std::fs::create_dir_all(folder)?;
    let filter = || {
        let asked = std::env::var("MIDWATCH_LOG").ok();
        asked.and_then(|asked| EnvFilter::try_new(asked).ok()).unwrap_or_else(|| EnvFilter::new(LEVELS))
    };
    let file = FileRotate::new(
        folder.join("midwatch.log"),
        AppendCount::new(FILES_MAX),
        ContentLimit::BytesSurpassed(FILE_MAX_BYTES),
        Compression::None,
        None,
    );
    let builder = || NonBlockingBuilder::default().buffered_lines_limit(LINES_WAITING_MAX).lossy(true);
    let (file, file_guard) = builder().finish(Counting::new(file, Arc::new(SystemClock::new())));
    let mut guards = vec![file_guard];
    let to_file = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(file).with_filter(filter());
    let to_stderr = also_stderr.then(|| {
        let (stderr, guard) = builder().finish(Counting::new(io::stderr(), Arc::new(SystemClock::new())));
        guards.push(guard);
        // The journal has its own clock; a second time on each line is noise.
        tracing_subscriber::fmt::layer().with_ansi(false).without_time().with_writer(stderr).with_filter(filter())
    });
    // A second start in one process (tests) keeps the first log.
    let _ = tracing_subscriber::registry().with(to_file).with(to_stderr).try_init();
    Ok(guards)
}

/// Passes a line on once a minute, and counts the times it came in between.
struct Counting<W> {
    to: W,
    clock: Arc<dyn Clock>,
    recent: VecDeque<Recent>,
}

struct Recent {
    line: u64,
    text: String,
    until: Duration,
    held: u64,
}

impl<W: Write> Counting<W> {
    fn new(to: W, clock: Arc<dyn Clock>) -> Self {
        Self { to, clock, recent: VecDeque::new() }
    }

    fn tell(&mut self, recent: &Recent) -> io::Result<()> {
        match recent.held {
            0 => Ok(()),
            held => self.to.write_all(format!("(this line came {held} more times) {}", recent.text).as_bytes()),
        }
    }
}

/// A line without its time, which is never equal.
fn without_time(line: &str) -> &str {
    match line.split_once(' ') {
        Some((first, rest)) if first.ends_with('Z') && first.contains('T') => rest,
        _ => line,
    }
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let text = without_time(&text);
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let (line, now) = (hasher.finish(), self.clock.monotonic());
        while self.recent.front().is_some_and(|oldest| oldest.until <= now) || self.recent.len() > EQUAL_LINES {
            if let Some(oldest) = self.recent.pop_front() {
                self.tell(&oldest)?;
            }
        }
        if let Some(equal) = self.recent.iter_mut().find(|recent| recent.line == line) {
            equal.held += 1;
            return Ok(bytes.len());
        }
        self.to.write_all(bytes)?;
        self.recent.push_back(Recent { line, text: text.to_owned(), until: now + EQUAL_FOR, held: 0 });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W> Drop for Counting<W> {
    fn drop(&mut self) {
        let held: u64 = self.recent.iter().map(|recent| recent.held).sum();
        if held > 0 {
            tracing::debug!(held, "Equal lines were counted and not written.");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::domain::Timestamp;

    struct Hands(Mutex<Duration>);

    impl Clock for Hands {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }
        fn monotonic(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    #[test]
    fn b137_a_line_that_comes_a_thousand_times_a_second_is_written_once_a_minute_with_its_count() {
        let clock = Arc::new(Hands(Mutex::new(Duration::ZERO)));
        let mut log = Counting::new(Vec::new(), clock.clone());
        for at in 0..600_000_u64 {
            *clock.0.lock().unwrap() = Duration::from_millis(at);
            log.write_all(format!("2026-11-30T00:00:00.{at:06}Z  WARN midwatch: It failed.\n").as_bytes()).unwrap();
        }
        let written = String::from_utf8(log.to.clone()).unwrap();
        assert_eq!(written.lines().count(), 19, "{written}");
        assert!(written.contains("(this line came 59999 more times)  WARN midwatch: It failed."), "{written}");
    }

    #[test]
    fn b137_the_files_stay_below_their_cap() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = FileRotate::new(
            folder.path().join("midwatch.log"),
            AppendCount::new(FILES_MAX),
            ContentLimit::BytesSurpassed(10_000),
            Compression::None,
            None,
        );
        for at in 0..10_000 {
            file.write_all(format!("line {at} is not like any other\n").as_bytes()).unwrap();
        }
        let bytes: u64 = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes <= (FILES_MAX as u64 + 1) * 10_100, "{bytes}");
    }
}
