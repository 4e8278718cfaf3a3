//! The image as a file system.

use super::image::{Attributes, Fault};
use super::{SOURCE, Shared, State};
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Nothing is remembered by the kernel: a power loss changes everything behind its back.
const FORGET: Duration = Duration::ZERO;

const BLOCK: u64 = 4096;

/// Of a disk that is not full.
const BLOCKS: u64 = 1 << 24;

const FALLOCATE_KEEP_SIZE: i32 = 1;
const FALLOCATE_PUNCH_HOLE: i32 = 2;
const FALLOCATE_ZERO_RANGE: i32 = 16;

#[derive(Debug)]
struct Served(Arc<Shared>);

pub(super) fn serve(shared: Arc<Shared>, at: &Path) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName(SOURCE.to_owned()), MountOption::DefaultPermissions];
    fuser::spawn_mount(Served(shared), at, &config)
}

impl From<Fault> for Errno {
    fn from(fault: Fault) -> Errno {
        match fault {
            Fault::NoEntry => Errno::ENOENT,
            Fault::Exists => Errno::EEXIST,
            Fault::NotDirectory => Errno::ENOTDIR,
            Fault::IsDirectory => Errno::EISDIR,
            Fault::NotEmpty => Errno::ENOTEMPTY,
            Fault::Broken => Errno::EIO,
            Fault::Full => Errno::ENOSPC,
        }
    }
}

fn shown(Attributes { node, length, modified }: Attributes) -> FileAttr {
    let size = length.unwrap_or(0);
    FileAttr {
        ino: INodeNo(node),
        size,
        blocks: size.div_ceil(512),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: kind(length),
        perm: if length.is_some() { 0o644 } else { 0o755 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK as u32,
        flags: 0,
    }
}

fn kind(length: Option<u64>) -> FileType {
    if length.is_some() { FileType::RegularFile } else { FileType::Directory }
}

impl State {
    fn shown(&self, node: u64) -> Result<FileAttr, Fault> {
        self.image.attributes(node).map(shown)
    }

    /// Takes room for a file that is to reach at least to `end`; how far it may reach.
    fn grow(&mut self, file: u64, end: u64) -> Result<u64, Fault> {
        let length = self.image.attributes(file)?.length.ok_or(Fault::IsDirectory)?;
        let (Some(room), Some(wanted)) = (&mut self.faults.room, end.checked_sub(length)) else { return Ok(end) };
        let given = wanted.min(*room);
        *room -= given;
        if given == 0 && wanted > 0 { Err(Fault::Full) } else { Ok(length + given) }
    }

    fn new_name(&self) -> Result<(), Fault> {
        if self.faults.room == Some(0) { Err(Fault::Full) } else { Ok(()) }
    }

    fn write(&mut self, file: u64, at: u64, bytes: &[u8]) -> Result<u32, Fault> {
        let end = self.grow(file, at + bytes.len() as u64)?;
        let written = end.saturating_sub(at).min(bytes.len() as u64);
        self.image.write(file, at, &bytes[..written as usize])?;
        Ok(written as u32)
    }

    fn set_length(&mut self, file: u64, length: u64) -> Result<FileAttr, Fault> {
        if self.grow(file, length)? < length {
            return Err(Fault::Full);
        }
        self.image.set_length(file, length)?;
        self.shown(file)
    }

    fn allocate(&mut self, file: u64, at: u64, length: u64, mode: i32) -> Result<(), Fault> {
        let end = at + length;
        let held = self.image.attributes(file)?.length.ok_or(Fault::IsDirectory)?;
        if mode & (FALLOCATE_PUNCH_HOLE | FALLOCATE_ZERO_RANGE) != 0 && at < held {
            self.image.write(file, at, &vec![0; (end.min(held) - at) as usize])?;
        }
        if mode & FALLOCATE_KEEP_SIZE == 0 && end > held { self.set_length(file, end).map(drop) } else { Ok(()) }
    }
}

/// What is to be made durable.
#[derive(Clone, Copy)]
enum Sync {
    /// Of a file, as far as this.
    File(u64, u64),
    Directory(u64),
}

impl Served {
    /// Answers when the disk's time for a sync is over.
    fn sync(&self, sync: Result<Sync, Fault>, reply: ReplyEmpty) {
        let sync = match sync {
            Ok(sync) => sync,
            Err(fault) => return reply.error(fault.into()),
        };
        let shared = Arc::clone(&self.0);
        let interruptions = shared.lock().interruptions;
        std::thread::spawn(move || answer(reply, finish(&shared, sync, interruptions)));
    }
}

fn finish(shared: &Shared, sync: Sync, interruptions: u64) -> Result<(), Fault> {
    let begun = Instant::now();
    let mut state = shared.lock();
    while state.interruptions == interruptions {
        let left = state.faults.sync_time.saturating_sub(begun.elapsed());
        if left.is_zero() {
            break;
        }
        state = shared.changed.wait_timeout(state, left).expect("nobody panics with the image in hand").0;
    }
    let (fails, lies) = (state.faults.syncs_fail, state.faults.syncs_lie);
    match sync {
        _ if state.interruptions != interruptions => Err(Fault::Broken),
        _ if lies => Ok(()),
        Sync::File(file, _) if fails => state.image.fail_sync(file).and(Err(Fault::Broken)),
        Sync::File(file, taken) => state.image.sync_file(file, taken),
        Sync::Directory(_) if fails => Err(Fault::Broken),
        Sync::Directory(directory) => state.image.sync_directory(directory),
    }
}

fn answer(reply: ReplyEmpty, done: Result<(), Fault>) {
    match done {
        Ok(()) => reply.ok(),
        Err(fault) => reply.error(fault.into()),
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.0.lock();
        match state.image.lookup(parent.0, name).and_then(|node| state.shown(node)) {
            Ok(attributes) => reply.entry(&FORGET, &attributes, Generation(0)),
            Err(fault) => reply.error(fault.into()),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.lock().shown(node.0) {
            Ok(attributes) => reply.attr(&FORGET, &attributes),
            Err(fault) => reply.error(fault.into()),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.0.lock();
        let done = match size {
            Some(size) => state.set_length(node.0, size),
            None => state.shown(node.0),
        };
        match done {
            Ok(attributes) => reply.attr(&FORGET, &attributes),
            Err(fault) => reply.error(fault.into()),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        let mut state = self.0.lock();
        let made = state.new_name().and_then(|()| state.image.create_directory(parent.0, name));
        match made.and_then(|node| state.shown(node)) {
            Ok(attributes) => reply.entry(&FORGET, &attributes, Generation(0)),
            Err(fault) => reply.error(fault.into()),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.0.lock();
        let made = state.new_name().and_then(|()| state.image.create_file(parent.0, name));
        match made.and_then(|node| state.shown(node)) {
            Ok(attributes) => {
                reply.created(&FORGET, &attributes, Generation(0), FileHandle(0), FopenFlags::empty());
            }
            Err(fault) => reply.error(fault.into()),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.0.lock().image.remove(parent.0, name, false));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.0.lock().image.remove(parent.0, name, true));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            return reply.error(Errno::EINVAL);
        }
        let may_replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        answer(reply, self.0.lock().image.rename((parent.0, name), (new_parent.0, new_name), may_replace));
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.lock().image.read(node.0, offset..offset + u64::from(size)) {
            Ok(bytes) => reply.data(bytes),
            Err(fault) => reply.error(fault.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.lock().write(node.0, offset, bytes) {
            Ok(written) => reply.written(written),
            Err(fault) => reply.error(fault.into()),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.0.lock().allocate(node.0, offset, length, mode));
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, _only_data: bool, reply: ReplyEmpty) {
        let sync = self.0.lock().image.taken(node.0).map(|taken| Sync::File(node.0, taken));
        self.sync(sync, reply);
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, _only_data: bool, reply: ReplyEmpty) {
        self.sync(Ok(Sync::Directory(node.0)), reply);
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let state = self.0.lock();
        let names = match state.image.list(node.0) {
            Ok(names) => names,
            Err(fault) => return reply.error(fault.into()),
        };
        let own = [".", ".."].map(|name| (name.into(), node.0));
        for (place, (name, node)) in (1..).zip(own.into_iter().chain(names)).skip(offset as usize) {
            let Ok(attributes) = state.image.attributes(node) else { continue };
            if reply.add(INodeNo(node), place, kind(attributes.length), name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let free = self.0.lock().faults.room.map_or(BLOCKS, |room| room / BLOCK);
        reply.statfs(BLOCKS, free, free, BLOCKS, BLOCKS, BLOCK as u32, 255, BLOCK as u32);
    }
}
