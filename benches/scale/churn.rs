//! A tenth is deleted while another tenth is created: what the deletion costs those who create.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use etcd_client::TxnOp;

use crate::bed::{self, note};
use crate::hear::{ADDRESSES, Counted, LINKS, News};
use crate::report::Report;
use crate::run::Run;
use crate::single::{Writer, hear_usable, until_both, usable};
use crate::support::{Etcd, Host};
use crate::verify::{Eyes, Wanted};
use crate::work::{MTU, Pair, ends, wishes};

pub const CREATED: &str = "create while a tenth is deleted: put of both keys, both ends usable";
const ALONE: &str = "the same creates with nothing deleted";
const SPACES: usize = 10;

/// Measures with so many pairs standing.
pub fn measure(report: &mut Report, pairs: usize, rounds: usize) {
    let host = bed::host(SPACES, true);
    let etcd = host.start_etcd();
    let mut run = Run::new(&host, &etcd);
    let tenth = pairs / 10;
    let mut eyes = Eyes::new(&host, SPACES);
    let ears = Counted::open(&host, SPACES, ADDRESSES);
    let mut standing = Pair::many(0, pairs, SPACES);
    bed::put_all(&etcd, &run.label, &wishes(&standing, MTU));
    run.agent.start();
    ears.until("links have addresses", 2 * pairs, |_| true);
    drop(ears);
    let (mut beside, mut alone) = (Vec::new(), Vec::new());
    let mut next = pairs;
    for round in 0..rounds {
        note(&format!("a tenth deleted and a tenth created, round {} of {rounds}", round + 1));
        for (delete, samples) in [(true, &mut beside), (false, &mut alone)] {
            let fresh = Pair::many(next, tenth, SPACES);
            next += tenth;
            let doomed: Vec<Pair> = if delete { standing.drain(..tenth).collect() } else { Vec::new() };
            std::thread::sleep(Duration::from_secs(3));
            samples.extend(turn(&host, &run, &doomed, &fresh));
            standing.extend(fresh);
            eyes.until(Wanted::pairs(&standing, MTU, &run.label), Instant::now());
        }
        // What was created alone goes again.
        let extra: Vec<Pair> = standing.drain(..tenth).collect();
        remove(&etcd, &run, &extra);
        eyes.until(Wanted::pairs(&standing, MTU, &run.label), Instant::now());
    }
    report.latency(CREATED, beside);
    report.latency(ALONE, alone);
}

fn deletions(run: &Run<'_>, pairs: &[Pair]) -> Vec<TxnOp> {
    ends(pairs).map(|end| TxnOp::delete(bed::config_key(&run.label, &end.name), None)).collect()
}

fn remove(etcd: &Etcd<'_>, run: &Run<'_>, pairs: &[Pair]) {
    etcd.client(async |mut client| {
        for part in deletions(run, pairs).chunks(100) {
            client.txn(etcd_client::Txn::new().and_then(part)).await.unwrap();
        }
    });
}

/// Deletes some, and creates others one after the other; how long each creation took that began before the last deletion was done (all, if nothing is
/// deleted).
fn turn(host: &Host, run: &Run<'_>, doomed: &[Pair], fresh: &[Pair]) -> Vec<Duration> {
    let (tell, heard) = channel();
    let _ears = hear_usable(host, SPACES, &tell);
    let deleted = Counted::open(host, SPACES, LINKS);
    let mut writer = Writer::connect(host);
    for part in deletions(run, doomed).chunks(100) {
        writer.transact(part.to_vec());
    }
    let creation = |pair: &Pair| {
        let start = writer.transact(bed::puts(&run.label, &pair.wishes(MTU)));
        (start, until_both(&heard, pair, usable).duration_since(start))
    };
    let creations: Vec<(Instant, Duration)> = fresh.iter().map(creation).collect();
    let over =
        if doomed.is_empty() { Instant::now() } else { deleted.until("links are gone", 2 * doomed.len(), |news| *news == News::Gone) };
    creations.into_iter().filter(|(start, _)| *start < over).map(|(_, took)| took).collect()
}
