//! Runs another program (`nft`, those of Open vSwitch) in the namespaces of the calling thread, with a limit to how long it may take.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Why a program did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It could not be started; in the system's words.
    NotRun(String),
    /// It took too long, and was ended.
    NoAnswer,
    /// It ended with an error; in its own words.
    Refused(String),
}

/// How often somebody who may lose his patience is asked about it.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Its standard output, once it has ended well. `patience` is how long it may take, in all; it is asked again and again, as it may change meanwhile.
pub(crate) fn run(program: &Path, words: &[&str], input: String, patience: &dyn Fn() -> Duration) -> Result<String, Failure> {
    let not_run = |error: io::Error| Failure::NotRun(error.to_string());
    let mut command = Command::new(program);
    let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(not_run)?;
    let outcome = converse(&mut child, input, patience);
    if outcome.is_none() {
        // Its output may be held open by nobody else: it has no children.
        let _ = child.kill();
    }
    let status = child.wait().map_err(not_run)?;
    let (output, errors) = outcome.ok_or(Failure::NoAnswer)?;
    if status.success() {
        return Ok(output);
    }
    let cause = errors.trim();
    Err(Failure::Refused(if cause.is_empty() { format!("{} ended with {status}", program.display()) } else { cause.to_owned() }))
}

/// Hands the program its input, and reads what it says until it has said all; `None` when that takes too long.
fn converse(child: &mut Child, input: String, patience: &dyn Fn() -> Duration) -> Option<(String, String)> {
    let begun = Instant::now();
    let (mut stdin, stdout, stderr) = (child.stdin.take()?, child.stdout.take()?, child.stderr.take()?);
    // Ends with the program at the latest; if that goes early, it says why on its own.
    in_background(move || drop(stdin.write_all(input.as_bytes())));
    let (output, errors) = (in_background(move || read(stdout)), in_background(move || read(stderr)));
    let output = within(&output, begun, patience)?;
    // Both end together, with the program.
    Some((output, within(&errors, begun, patience)?))
}

fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    // Where no thread can be had the sender is gone, which the receiver takes as silence.
    let _ = thread::Builder::new().name("program".to_owned()).spawn(move || sender.send(work()));
    receiver
}

fn within<T>(receiver: &Receiver<T>, begun: Instant, patience: &dyn Fn() -> Duration) -> Option<T> {
    loop {
        let left = patience().saturating_sub(begun.elapsed());
        match receiver.recv_timeout(left.min(ASK_EVERY)) {
            Ok(said) => return Some(said),
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

fn read(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is all that there is to show.
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn patience_may_end_meanwhile() {
        let asked = Cell::new(0);
        let patience = || {
            asked.set(asked.get() + 1);
            if asked.get() > 2 { Duration::ZERO } else { FOR_EVER }
        };
        assert_eq!(run(Path::new("sleep"), &["3600"], String::new(), &patience), Err(Failure::NoAnswer));
        assert_eq!(run(Path::new("cat"), &[], "said".to_owned(), &|| FOR_EVER), Ok("said".to_owned()));
    }
}
