//! What a disk holds now and what it would hold after a power loss, as a pure function of what was asked of it.
//!
//! A write, a new length, a new name or a removed one is volatile until a sync of the file, or of the directory, has
//! answered. At a power loss each volatile change may be there, be missing, or be there in part, as on real disks: files
//! get their writes in order up to a torn one, or sectors in any order, with zeros where a length came before its bytes;
//! names get lost from the last change backwards.

use crate::fire::Rng;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::time::SystemTime;

pub(super) const ROOT: u64 = 1;

/// A disk writes these as a whole or not at all.
const SECTOR: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    NoEntry,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    /// A write or a sync that failed.
    Broken,
    Full,
}

/// What a power loss took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Files with bytes that no sync had made durable.
    pub files: usize,
    /// Bytes written to them since.
    pub bytes: u64,
    /// Names made, moved or removed.
    pub names: usize,
}

#[derive(Debug)]
pub(super) struct Image {
    nodes: HashMap<u64, Node>,
    next: u64,
    /// Changes of names that are volatile, in order.
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Node {
    Directory(Names),
    File(Content),
}

#[derive(Debug, Default)]
struct Names {
    now: BTreeMap<OsString, u64>,
    durable: BTreeMap<OsString, u64>,
}

#[derive(Debug)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// What turns one into the other, in order.
    steps: Vec<Step>,
    /// Steps ever taken.
    taken: u64,
    modified: SystemTime,
}

#[derive(Debug)]
enum Step {
    Write { at: u64, bytes: Vec<u8> },
    Length(u64),
}

/// One operation on names: they all change, or none.
#[derive(Debug)]
struct Change(Vec<Assignment>);

#[derive(Debug)]
struct Assignment {
    directory: u64,
    name: OsString,
    node: Option<u64>,
}

/// What the file system shows of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub(super) node: u64,
    /// `None`: a directory.
    pub(super) length: Option<u64>,
    pub(super) modified: SystemTime,
}

impl Default for Image {
    fn default() -> Image {
        Image { nodes: [(ROOT, Node::Directory(Names::default()))].into(), next: ROOT + 1, changes: Vec::new() }
    }
}

impl Image {
    pub(super) fn attributes(&self, node: u64) -> Result<Attributes, Fault> {
        Ok(match self.nodes.get(&node).ok_or(Fault::NoEntry)? {
            Node::Directory(_) => Attributes { node, length: None, modified: SystemTime::UNIX_EPOCH },
            Node::File(content) => {
                Attributes { node, length: Some(content.now.len() as u64), modified: content.modified }
            }
        })
    }

    pub(super) fn lookup(&self, directory: u64, name: &OsStr) -> Result<u64, Fault> {
        self.names(directory)?.now.get(name).copied().ok_or(Fault::NoEntry)
    }

    pub(super) fn list(&self, directory: u64) -> Result<Vec<(OsString, u64)>, Fault> {
        Ok(self.names(directory)?.now.iter().map(|(name, node)| (name.clone(), *node)).collect())
    }

    pub(super) fn create_file(&mut self, directory: u64, name: &OsStr) -> Result<u64, Fault> {
        let (now, durable, steps) = (Vec::new(), Vec::new(), Vec::new());
        self.create(directory, name, Node::File(Content { now, durable, steps, taken: 0, modified: SystemTime::now() }))
    }

    pub(super) fn create_directory(&mut self, directory: u64, name: &OsStr) -> Result<u64, Fault> {
        self.create(directory, name, Node::Directory(Names::default()))
    }

    fn create(&mut self, directory: u64, name: &OsStr, node: Node) -> Result<u64, Fault> {
        if self.names(directory)?.now.contains_key(name) {
            return Err(Fault::Exists);
        }
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        self.change([(directory, name, Some(number))])?;
        Ok(number)
    }

    pub(super) fn remove(&mut self, directory: u64, name: &OsStr, wants_directory: bool) -> Result<(), Fault> {
        let node = self.lookup(directory, name)?;
        match &self.nodes[&node] {
            Node::Directory(_) if !wants_directory => return Err(Fault::IsDirectory),
            Node::File(_) if wants_directory => return Err(Fault::NotDirectory),
            Node::Directory(names) if !names.now.is_empty() => return Err(Fault::NotEmpty),
            _ => {}
        }
        self.change([(directory, name, None)])
    }

    pub(super) fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), may_replace: bool) -> Result<(), Fault> {
        let node = self.lookup(from.0, from.1)?;
        let target = self.names(to.0)?.now.get(to.1).copied();
        if target.is_some() && !may_replace {
            return Err(Fault::Exists);
        }
        if target == Some(node) {
            return Ok(());
        }
        self.change([(from.0, from.1, None), (to.0, to.1, Some(node))])
    }

    fn change<const N: usize>(&mut self, assignments: [(u64, &OsStr, Option<u64>); N]) -> Result<(), Fault> {
        let assignments = assignments.map(|(directory, name, node)| Assignment { directory, name: name.into(), node });
        for assignment in &assignments {
            assignment.apply(&mut self.names_mut(assignment.directory)?.now);
        }
        self.changes.push(Change(assignments.into()));
        Ok(())
    }

    pub(super) fn read(&self, file: u64, range: Range<u64>) -> Result<&[u8], Fault> {
        let now = &self.content(file)?.now;
        let within = |offset: u64| offset.min(now.len() as u64) as usize;
        Ok(&now[within(range.start)..within(range.end)])
    }

    pub(super) fn write(&mut self, file: u64, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.step(file, Step::Write { at, bytes: bytes.to_vec() })
    }

    pub(super) fn set_length(&mut self, file: u64, length: u64) -> Result<(), Fault> {
        self.step(file, Step::Length(length))
    }

    fn step(&mut self, file: u64, step: Step) -> Result<(), Fault> {
        let content = self.content_mut(file)?;
        step.apply(&mut content.now, u64::MAX);
        content.steps.push(step);
        content.taken += 1;
        content.modified = SystemTime::now();
        Ok(())
    }

    /// Up to where a sync of the file that begins now reaches; to be handed to [`Image::sync_file`] when it has ended.
    pub(super) fn taken(&self, file: u64) -> Result<u64, Fault> {
        Ok(self.content(file)?.taken)
    }

    /// The first steps of the file are durable, so many as had been taken by then.
    pub(super) fn sync_file(&mut self, file: u64, taken: u64) -> Result<(), Fault> {
        let content = self.content_mut(file)?;
        let volatile = content.taken - content.steps.len() as u64;
        let reached = taken.saturating_sub(volatile) as usize;
        for step in content.steps.drain(..reached.min(content.steps.len())) {
            step.apply(&mut content.durable, u64::MAX);
        }
        Ok(())
    }

    /// A sync of the file failed: its steps are dropped and never become durable, whatever a later sync answers.
    pub(super) fn fail_sync(&mut self, file: u64) -> Result<(), Fault> {
        self.content_mut(file)?.steps.clear();
        Ok(())
    }

    /// The names in a directory are durable, and with them whatever was renamed along with one of them.
    pub(super) fn sync_directory(&mut self, directory: u64) -> Result<(), Fault> {
        let mut reached = BTreeSet::from([directory]);
        for change in self.changes.iter().rev() {
            if change.directories().any(|one| reached.contains(&one)) {
                reached.extend(change.directories());
            }
        }
        let (durable, volatile) = std::mem::take(&mut self.changes)
            .into_iter()
            .partition(|change: &Change| change.directories().any(|one| reached.contains(&one)));
        self.changes = volatile;
        self.settle(durable)
    }

    fn settle(&mut self, changes: Vec<Change>) -> Result<(), Fault> {
        for assignment in changes.into_iter().flat_map(|change| change.0) {
            assignment.apply(&mut self.names_mut(assignment.directory)?.durable);
        }
        Ok(())
    }

    /// What is volatile is there afterwards or not, as chance will have it. Every node but the root has another number
    /// then, so that nobody who remembers one finds anything.
    pub(super) fn lose_power(&mut self, rng: &mut Rng) -> Loss {
        let mut loss = Loss { names: self.changes.len(), ..Loss::default() };
        let mut changes = std::mem::take(&mut self.changes);
        changes.truncate(some_of(changes.len(), rng));
        self.settle(changes).expect("a directory that was changed is there, also when it was removed");
        let old = std::mem::take(&mut self.nodes);
        let mut numbers: Vec<u64> = old.keys().copied().collect();
        numbers.sort_unstable();
        let first = self.next;
        let renumbered: HashMap<u64, u64> =
            numbers.iter().enumerate().map(|(place, number)| (*number, first + place as u64)).collect();
        let renumber = |number: u64| if number == ROOT { ROOT } else { renumbered[&number] };
        self.next += numbers.len() as u64;
        let mut nodes: Vec<(u64, Node)> = old.into_iter().collect();
        nodes.sort_unstable_by_key(|(number, _)| *number);
        for (number, node) in nodes {
            let node = match node {
                Node::Directory(names) => {
                    let durable: BTreeMap<_, _> =
                        names.durable.into_iter().map(|(name, node)| (name, renumber(node))).collect();
                    Node::Directory(Names { now: durable.clone(), durable })
                }
                Node::File(content) => Node::File(content.lose_power(rng, &mut loss)),
            };
            self.nodes.insert(renumber(number), node);
        }
        self.forget_unreachable();
        loss
    }

    fn forget_unreachable(&mut self) {
        let (mut reached, mut next) = (BTreeSet::from([ROOT]), vec![ROOT]);
        while let Some(node) = next.pop() {
            if let Node::Directory(names) = &self.nodes[&node] {
                next.extend(names.now.values().filter(|node| reached.insert(**node)));
            }
        }
        self.nodes.retain(|number, _| reached.contains(number));
    }

    fn names(&self, directory: u64) -> Result<&Names, Fault> {
        match self.nodes.get(&directory).ok_or(Fault::NoEntry)? {
            Node::Directory(names) => Ok(names),
            Node::File(_) => Err(Fault::NotDirectory),
        }
    }

    fn names_mut(&mut self, directory: u64) -> Result<&mut Names, Fault> {
        match self.nodes.get_mut(&directory).ok_or(Fault::NoEntry)? {
            Node::Directory(names) => Ok(names),
            Node::File(_) => Err(Fault::NotDirectory),
        }
    }

    fn content(&self, file: u64) -> Result<&Content, Fault> {
        match self.nodes.get(&file).ok_or(Fault::NoEntry)? {
            Node::File(content) => Ok(content),
            Node::Directory(_) => Err(Fault::IsDirectory),
        }
    }

    fn content_mut(&mut self, file: u64) -> Result<&mut Content, Fault> {
        match self.nodes.get_mut(&file).ok_or(Fault::NoEntry)? {
            Node::File(content) => Ok(content),
            Node::Directory(_) => Err(Fault::IsDirectory),
        }
    }
}

impl Change {
    fn directories(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(|assignment| assignment.directory)
    }
}

impl Assignment {
    fn apply(&self, names: &mut BTreeMap<OsString, u64>) {
        match self.node {
            Some(node) => names.insert(self.name.clone(), node),
            None => names.remove(&self.name),
        };
    }
}

impl Step {
    /// At most so many bytes of a write.
    fn apply(&self, to: &mut Vec<u8>, most: u64) {
        match self {
            Step::Length(length) => to.resize(*length as usize, 0),
            Step::Write { at, bytes } => {
                let bytes = &bytes[..bytes.len().min(most as usize)];
                let (at, end) = (*at as usize, *at as usize + bytes.len());
                if to.len() < end {
                    to.resize(end, 0);
                }
                to[at..end].copy_from_slice(bytes);
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Step::Length(_) => 0,
            Step::Write { bytes, .. } => bytes.len() as u64,
        }
    }
}

impl Content {
    fn lose_power(mut self, rng: &mut Rng, loss: &mut Loss) -> Content {
        if !self.steps.is_empty() {
            loss.files += 1;
            loss.bytes += self.steps.iter().map(Step::bytes).sum::<u64>();
            self.modified = SystemTime::now();
            if rng.within(0, 3) == 0 { self.keep_sectors(rng) } else { self.keep_first(rng) }
        }
        let now = self.durable.clone();
        Content { now, steps: Vec::new(), ..self }
    }

    /// The first steps are there, the one after them in part.
    fn keep_first(&mut self, rng: &mut Rng) {
        let kept = some_of(self.steps.len(), rng);
        for step in &self.steps[..kept] {
            step.apply(&mut self.durable, u64::MAX);
        }
        if let Some(torn) = self.steps.get(kept).filter(|step| step.bytes() > 0) {
            torn.apply(&mut self.durable, rng.within(0, torn.bytes()));
        }
    }

    /// Sectors are there in any order, and the length apart from them.
    fn keep_sectors(&mut self, rng: &mut Rng) {
        let mut touched = BTreeSet::new();
        for step in &self.steps {
            if let Step::Write { at, bytes } = step {
                touched.extend(at / SECTOR..(at + bytes.len() as u64).div_ceil(SECTOR));
            }
        }
        if rng.within(0, 4) > 0 {
            self.durable.resize(self.now.len(), 0);
        }
        let length = self.durable.len().min(self.now.len());
        for sector in touched {
            let range = (sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize;
            let range = range.start.min(length)..range.end.min(length);
            if rng.within(0, 2) == 0 {
                self.durable[range.clone()].copy_from_slice(&self.now[range]);
            }
        }
    }
}

/// None, all, or any number of them.
fn some_of(count: usize, rng: &mut Rng) -> usize {
    match rng.within(0, 4) {
        0 => 0,
        1 => count,
        _ => rng.within(0, count as u64 + 1) as usize,
    }
}

#[cfg(test)]
mod tests;
