//! A tenth is deleted while another tenth is created: what the deletion costs those who create.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use etcd_client::TxnOp;

use crate::bed::{self, LIMIT, note};
use crate::hear::{ADDRESSES, Counted};
use crate::report::Report;
use crate::run::Run;
use crate::single::{Heard, Telling, Writer, hear_usable};
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

/// Deletes some, then creates others one after the other without waiting for them; how long each creation took.
fn turn(host: &Host, run: &Run<'_>, doomed: &[Pair], fresh: &[Pair]) -> Vec<Duration> {
    let (tell, heard) = channel();
    let _ears = hear_usable(host, SPACES, &tell);
    let deletions = deletions(run, doomed);
    let mut writer = Writer::connect(host);
    for part in deletions.chunks(100) {
        writer.transact(part.to_vec());
    }
    let starts: Vec<Instant> = fresh.iter().map(|pair| writer.transact(bed::puts(&run.label, &pair.wishes(MTU)))).collect();
    fresh.iter().zip(usable(&heard, fresh)).zip(starts).map(|((_, at), start)| at.duration_since(start)).collect()
}

/// When each pair could be used.
fn usable(heard: &Receiver<Telling>, pairs: &[Pair]) -> Vec<Instant> {
    let places: HashMap<&str, usize> =
        pairs.iter().enumerate().flat_map(|(place, pair)| pair.ends.each_ref().map(|end| (end.name.as_str(), place))).collect();
    let mut moments: Vec<Vec<Instant>> = vec![Vec::new(); pairs.len()];
    for _ in 0..2 * pairs.len() {
        let (at, place) = loop {
            let (at, what) = heard.recv_timeout(LIMIT).expect("all pairs are made in time");
            if let Heard::Usable(name) = what
                && let Some(place) = places.get(name.as_str())
            {
                break (at, *place);
            }
        };
        moments[place].push(at);
    }
    moments.into_iter().map(|both| both.into_iter().max().unwrap()).collect()
}
