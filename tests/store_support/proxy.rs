//! A TCP proxy between the source and etcd that can lose single HTTP/2 frames, or everything.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the proxy does at present.
#[derive(Default)]
pub struct Faults {
    /// A data frame from etcd that holds these bytes is lost, once.
    pub lose: Mutex<Option<Vec<u8>>>,
    /// Nothing passes in either direction; connections stay open.
    pub stall: AtomicBool,
    /// Frames that were lost.
    pub lost: AtomicUsize,
}

/// Starts a proxy on this port of 127.0.0.1 to that one.
pub async fn start(port: u16, target: u16) -> Arc<Faults> {
    let faults = Arc::new(Faults::default());
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("bind the proxy");
    let shared = Arc::clone(&faults);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { continue };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(requests(from_client, to_server, Arc::clone(&shared)));
            tokio::spawn(answers(from_server, to_client, Arc::clone(&shared)));
        }
    });
    faults
}

async fn requests(mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf, faults: Arc<Faults>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer).await {
        if count == 0 {
            return;
        }
        if faults.stall.load(Ordering::Relaxed) {
            continue;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Passes whole HTTP/2 frames: 3 bytes of length, type, flags, 4 bytes of stream id, then the payload. A data frame that is left out
/// whole leaves the rest of the conversation intact: etcd's answers are one frame each.
async fn answers(mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf, faults: Arc<Faults>) {
    loop {
        let mut frame = vec![0; 9];
        if from.read_exact(&mut frame).await.is_err() {
            return;
        }
        let length = usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
        frame.resize(9 + length, 0);
        if from.read_exact(&mut frame[9..]).await.is_err() {
            return;
        }
        if faults.stall.load(Ordering::Relaxed) || is_to_be_lost(&frame, &faults) {
            continue;
        }
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

fn is_to_be_lost(frame: &[u8], faults: &Faults) -> bool {
    const DATA: u8 = 0;
    let mut lose = faults.lose.lock().expect("no panic in the proxy");
    let hit = frame[3] == DATA && lose.as_ref().is_some_and(|marker| frame.windows(marker.len()).any(|window| window == marker));
    if hit {
        *lose = None;
        faults.lost.fetch_add(1, Ordering::Relaxed);
    }
    hit
}
