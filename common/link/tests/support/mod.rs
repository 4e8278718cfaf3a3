//! A master for the link to follow: a real store behind a listener on a free port, with the faults a test asks for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use metaq_store::{
    Ack, AckSink, AppendError, Appended, Flush, PartitionRules, Reader, Slice, SliceAt, Store, StoreOptions,
};
use metaq_types::{BrokerId, Offset, Opaque, PartitionId, Status};
use metaq_wire::{Decoded, Get, Greeting, Request, ValueExtra, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

/// Small, so that logs roll often.
const SEGMENT_BYTES: u32 = 4096;

pub(crate) fn rules(data_path: &Path) -> PartitionRules {
    PartitionRules {
        retention: metaq_store::Retention::FOREVER,
        flush: Flush { threshold: 0, interval: Duration::from_secs(10) },
        segment_bytes_max: SEGMENT_BYTES,
        data_path: data_path.to_owned(),
    }
}

pub(crate) fn open_store(data_path: &Path) -> Arc<Store> {
    let path = data_path.to_owned();
    let options = StoreOptions::new(data_path, BrokerId::new(0).unwrap(), Arc::new(move |_| rules(&path)));
    Arc::new(Store::open(options).unwrap())
}

/// What the master does wrong.
#[derive(Default)]
pub(crate) struct Faults {
    /// Ends the connection in the middle of every n-th value; 0 for never.
    pub(crate) cut_every: AtomicU32,
    /// Flips a bit in this many of the next values.
    pub(crate) corrupt_next: AtomicU32,
    /// Knows nothing of greetings, waiting and segments, as the original.
    pub(crate) original: bool,
    pub(crate) values: AtomicU32,
    /// Not a fault: what its configuration is, by a number that stands for the checksum as well.
    pub(crate) config: AtomicU32,
    /// Not a fault: it heeds what a get says of what is held.
    pub(crate) ahead: bool,
    /// Gets that said so.
    pub(crate) gets_ahead: AtomicU32,
    /// The store of the slave that is looked after, and its gets that promised more than that held durably.
    pub(crate) slave: OnceLock<Arc<Store>>,
    pub(crate) overstated: AtomicU32,
}

pub(crate) struct Master {
    pub(crate) store: Arc<Store>,
    pub(crate) faults: Arc<Faults>,
    data_path: PathBuf,
    address: SocketAddr,
    task: JoinHandle<()>,
}

struct NoSink;

impl AckSink for NoSink {
    fn acked(&self, _: u64, outcome: Result<Appended, AppendError>) {
        outcome.unwrap();
    }
}

impl Master {
    pub(crate) async fn start(data_path: &Path, faults: Faults) -> Master {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (store, faults) = (open_store(data_path), Arc::new(faults));
        let task = tokio::spawn(accept(listener, Arc::clone(&store), Arc::clone(&faults)));
        Master { store, faults, data_path: data_path.to_owned(), address, task }
    }

    pub(crate) fn uri(&self) -> String {
        format!("meta://{}", self.address)
    }

    /// Appends messages and returns when they are durable; a missing partition is created at `first`.
    pub(crate) async fn put_at(&self, name: &str, first: u64, bodies: impl IntoIterator<Item = Vec<u8>>) {
        let id: PartitionId = name.parse().unwrap();
        let first = Offset::new(first).unwrap();
        let partition = self.store.get_or_create(&id, &rules(&self.data_path), first).unwrap();
        let before = partition.positions().written;
        let mut bytes = 0;
        for body in bodies {
            bytes += 20 + body.len() as u64;
            let body = Bytes::from(body);
            partition.append(0, metaq_wire::checksum(&body), body, Ack::new(Arc::new(NoSink), 0));
        }
        until("the puts are durable", || partition.positions().durable == before + bytes).await;
    }

    pub(crate) async fn put(&self, name: &str, bodies: impl IntoIterator<Item = Vec<u8>>) {
        self.put_at(name, 0, bodies).await;
    }

    /// Stops listening, ends every connection and closes the store.
    pub(crate) async fn stop(self) {
        self.task.abort();
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || store.close()).await.unwrap().unwrap();
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Messages of different lengths.
pub(crate) fn messages(range: std::ops::Range<usize>) -> impl Iterator<Item = Vec<u8>> {
    range.map(|n| format!("{n}:").repeat(1 + n * 7 % 40).into_bytes())
}

/// Waits for a condition, with a deadline.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Every segment file of every partition below a data path.
pub(crate) fn segments(data_path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for partition in std::fs::read_dir(data_path).unwrap() {
        let partition = partition.unwrap();
        let name = partition.file_name().into_string().unwrap();
        if !name.contains('-') {
            continue;
        }
        for file in std::fs::read_dir(partition.path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "meta") {
                let file = path.file_name().unwrap().to_str().unwrap().to_owned();
                match std::fs::read(path) {
                    Ok(bytes) => _ = all.insert(format!("{name}/{file}"), bytes),
                    // Retention takes files away while we look.
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{file}: {error}"),
                }
            }
        }
    }
    all
}

async fn accept(listener: TcpListener, store: Arc<Store>, faults: Arc<Faults>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (store, faults) = (Arc::clone(&store), Arc::clone(&faults));
        connections.spawn(async move {
            let _ = serve(stream, store, faults).await;
        });
    }
}

struct Conversation {
    store: Arc<Store>,
    faults: Arc<Faults>,
    writer: Mutex<OwnedWriteHalf>,
}

async fn serve(stream: TcpStream, store: Arc<Store>, faults: Arc<Faults>) -> std::io::Result<()> {
    let (mut reader, writer) = stream.into_split();
    let conversation = Arc::new(Conversation { store, faults, writer: Mutex::new(writer) });
    let mut answers = JoinSet::new();
    let mut buf = BytesMut::new();
    while reader.read_buf(&mut buf).await? > 0 {
        while let Some(decoded) = metaq_wire::decode(&mut buf).unwrap() {
            let Decoded::Request(request) = decoded else { panic!("a link sends no puts") };
            answers.spawn(Arc::clone(&conversation).answer(request));
        }
    }
    Ok(())
}

impl Conversation {
    async fn answer(self: Arc<Self>, request: Request) {
        match request {
            Request::Get(get) => self.get(get).await,
            Request::Version(version) => self.version(version).await,
            Request::Stats(stats) if &*stats.item == "config" => {
                let text = self.faults.config.load(Ordering::SeqCst).to_string();
                self.result(Status::Success, stats.opaque, &text).await;
            }
            Request::Stats(stats) if &*stats.item == "lineage" => {
                let text = format!("STATS\r\n{}END\r\n", self.store.lineage().unwrap());
                self.result(Status::Success, stats.opaque, &text).await;
            }
            Request::Stats(stats) => {
                assert_eq!(&*stats.item, "offsets");
                let mut text = String::from("STATS\r\n");
                for partition in self.store.partitions() {
                    let (id, at) = (partition.id(), partition.positions());
                    text += &format!(
                        "{} part {} min_offset {} max_offset {}\r\n",
                        id.topic, id.number, at.kept, at.readable
                    );
                }
                self.result(Status::Success, stats.opaque, &(text + "END\r\n")).await;
            }
            Request::Offset(query) => {
                let partition = self.store.get(&query.topic, query.partition).unwrap();
                let nearest = partition.nearest(query.offset).to_string();
                self.result(Status::Success, query.opaque, &nearest).await;
            }
            _ => panic!("not a request of a link"),
        }
    }

    async fn version(&self, version: Version) {
        let generation = self.store.catalog_generation();
        if self.faults.original {
            return self.result(Status::Success, version.opaque, "1.4.6.2").await;
        }
        let greeting = version.greeting.unwrap();
        if let (Some(wait), Some(known)) = (greeting.wait, greeting.catalog)
            && known == generation
        {
            let _ = tokio::time::timeout(wait, self.store.catalog_beyond(generation)).await;
        }
        let welcome = Greeting {
            node: self.store.node_id().into(),
            epoch: self.store.epoch().0,
            catalog: Some(self.store.catalog_generation()),
            ids: Some(self.store.ids().high_mark().0),
            config: Some(self.faults.config.load(Ordering::SeqCst)),
            ahead: self.faults.ahead,
            ..Greeting::new(metaq_wire::Role::Master)
        };
        self.result(Status::Success, version.opaque, &format!("test {welcome}")).await;
    }

    /// A get tells what the slave holds, which its store knows better.
    fn check_held(&self, get: &Get) {
        self.faults.gets_ahead.fetch_add(u32::from(get.held.is_some()), Ordering::SeqCst);
        let Some(store) = self.faults.slave.get() else { return };
        let durable = store.get(&get.topic, get.partition).map_or(Offset::ZERO, |log| log.positions().durable);
        let told = get.held.unwrap_or(Offset::from_wire(get.offset).unwrap());
        self.faults.overstated.fetch_add(u32::from(told > durable), Ordering::SeqCst);
    }

    async fn get(&self, get: Get) {
        self.check_held(&get);
        let wait = get.wait.filter(|_| !self.faults.original).unwrap_or_default();
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let generation = self.store.catalog_generation();
            let partition = self.store.get(&get.topic, get.partition);
            let found = partition.as_ref().map(|p| p.slice(get.offset, get.max_bytes as u32, Reader::Replica));
            match found {
                Some(SliceAt::Bytes(slice)) => return self.value(get.opaque, &slice).await,
                Some(SliceAt::Trimmed { oldest }) => {
                    return self.result(Status::Moved, get.opaque, &oldest.to_string()).await;
                }
                _ if tokio::time::Instant::now() >= deadline => break,
                _ => {}
            }
            let _ = tokio::time::timeout_at(deadline, async {
                match partition {
                    Some(p) => p.readable_beyond(Offset::from_wire(get.offset).unwrap(), Reader::Replica).await,
                    None => {
                        self.store.catalog_beyond(generation).await;
                    }
                }
            })
            .await;
        }
        let text = match self.store.get(&get.topic, get.partition) {
            Some(_) => "Could not find message at position",
            None => "The topic is not exists",
        };
        self.result(Status::NotFound, get.opaque, text).await;
    }

    async fn value(&self, opaque: Opaque, slice: &Slice) {
        let mut body = vec![0; slice.len() as usize];
        let mut at = 0;
        while at < body.len() {
            at += slice.read_at(at as u32, &mut body[at..]).unwrap();
        }
        let taken = |left: u32| left.checked_sub(1);
        if self.faults.corrupt_next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok() {
            body[20] ^= 0x40;
        }
        let epoch = self.store.epoch().0;
        let extra = ValueExtra { segment: slice.segment(), end: slice.end(), epoch, journal: None, confirmed: None };
        let extra = (!self.faults.original).then_some(extra);
        let mut bytes = BytesMut::new();
        metaq_wire::encode_value_head(&mut bytes, slice.len(), opaque, extra.as_ref());
        bytes.extend_from_slice(&body);
        let number = self.faults.values.fetch_add(1, Ordering::SeqCst) + 1;
        let every = self.faults.cut_every.load(Ordering::SeqCst);
        let mut writer = self.writer.lock().await;
        if every > 0 && number.is_multiple_of(every) {
            let _ = writer.write_all(&bytes[..bytes.len() / 2]).await;
            let _ = writer.shutdown().await;
            return;
        }
        let _ = writer.write_all(&bytes).await;
    }

    async fn result(&self, status: Status, opaque: Opaque, text: &str) {
        let mut bytes = BytesMut::new();
        metaq_wire::encode_result(&mut bytes, status, opaque, text.as_bytes());
        let _ = self.writer.lock().await.write_all(&bytes).await;
    }
}
