use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use metaq_link::promotion::Record;
use metaq_store::{Holder, holder, path_content, unreplayed};
use metaq_types::PartitionId;
use serde::Serialize;

use crate::cluster::Place;

/// Which files are meant.
#[derive(Args)]
pub(super) struct FilesArgs {
    /// A data path to look into, instead of all that the configuration names; may be given again
    #[arg(long, value_name = "DIR")]
    data_path: Vec<PathBuf>,

    /// Only this topic ('$journal' is the transaction journal)
    #[arg(long, value_name = "NAME")]
    pub(super) topic: Option<String>,

    /// Only this partition of it
    #[arg(long, value_name = "N", requires = "topic")]
    pub(super) partition: Option<u32>,
}

/// Whether a broker runs on a data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Broker {
    Running,
    Stopped,
    Unknown,
}

#[derive(Serialize)]
pub(super) struct PathLine {
    pub(super) path: PathBuf,
    pub(super) broker: Broker,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
    /// What is known of the broker, for people.
    #[serde(skip)]
    pub(super) words: String,
}

/// A partition's directory.
pub(super) struct Directory {
    pub(super) id: PartitionId,
    pub(super) directory: PathBuf,
    pub(super) broker: Broker,
    /// Bytes that only the write-ahead log has.
    pub(super) unreplayed: u64,
}

type Expects = Box<dyn Fn(&PartitionId) -> bool>;

/// All that was found where the command line says.
#[derive(Default)]
pub(super) struct Site {
    pub(super) paths: Vec<PathLine>,
    pub(super) partitions: Vec<Directory>,
    /// What cannot be served as it is.
    pub(super) faults: Vec<String>,
    pub(super) notes: Vec<String>,
    /// Its last broker was a slave.
    pub(super) is_slave: bool,
    /// Whether the configuration says that there is such a partition; without one nobody does.
    expects: Option<Expects>,
}

impl FilesArgs {
    /// Finds the partitions that are meant; none of them is an error.
    pub(super) fn find(&self, place: &Place) -> anyhow::Result<Site> {
        let mut site = Site::default();
        for roots in self.groups(place, &mut site)? {
            site.look_into(&roots)?;
        }
        let there: Vec<String> = site.partitions.iter().map(|found| found.id.to_string()).collect();
        site.partitions.retain(|found| self.names(&found.id));
        if site.partitions.is_empty() && (self.topic.is_some() || there.is_empty()) {
            let wanted = match (&self.topic, self.partition) {
                (Some(topic), Some(number)) => format!("no partition {topic}-{number}"),
                (Some(topic), None) => format!("no partition of the topic '{topic}'"),
                (None, _) => "no partition".to_owned(),
            };
            let paths: Vec<_> = site.paths.iter().map(|line| line.path.display().to_string()).collect();
            let there = if there.is_empty() { "nothing".to_owned() } else { some(&there) };
            bail!("there is {wanted} in {}; there is {there}", paths.join(", "));
        }
        site.partitions.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(site)
    }

    pub(super) fn names(&self, id: &PartitionId) -> bool {
        self.topic.as_deref().is_none_or(|topic| topic == id.topic.as_str())
            && self.partition.is_none_or(|number| number == id.number)
    }

    /// Data paths, those of one broker's store together, the system's first.
    fn groups(&self, place: &Place, site: &mut Site) -> anyhow::Result<Vec<Vec<PathBuf>>> {
        if !self.data_path.is_empty() {
            let mut groups = Vec::new();
            for path in &self.data_path {
                check_data_path(path)?;
                groups.extend(with_journal(path));
            }
            return Ok(groups);
        }
        let config = place.broker_config().context("give --config FILE, or --data-path DIR")?;
        let mut roots = vec![config.system.data_path.clone()];
        for topic in config.topics.values() {
            if !roots.contains(&topic.data_path) && topic.data_path.exists() {
                roots.push(topic.data_path.clone());
            }
        }
        check_data_path(&roots[0])?;
        let journal = metaq_broker::journal_path(&config);
        site.expects =
            Some(Box::new(move |id| config.topic(&id.topic).is_some_and(|topic| id.number < topic.num_partitions)));
        Ok([roots, vec![journal]].into_iter().filter(|roots| roots[0].exists()).collect())
    }
}

/// A data path, and the journal's where it lies in it.
pub(super) fn with_journal(path: &Path) -> Vec<Vec<PathBuf>> {
    let journal = path.join(".metaq").join("journal");
    let mut groups = vec![vec![path.to_owned()]];
    groups.extend(journal.is_dir().then(|| vec![journal]));
    groups
}

pub(super) fn check_data_path(path: &Path) -> anyhow::Result<()> {
    if !path.is_dir() {
        bail!("{} is no directory; a data path is one with TOPIC-PARTITION directories in it", path.display());
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let holds_segment = || std::fs::read_dir(path).is_ok_and(|mut all| all.any(|entry| is_segment(entry.ok())));
    if let Ok(id) = name.parse::<PartitionId>()
        && holds_segment()
    {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (parent, PartitionId { topic, number }) = (parent.display(), id);
        bail!(
            "{} is the directory of one partition: name the data path around it, with --data-path {parent} --topic {topic} \
             --partition {number}",
            path.display()
        );
    }
    Ok(())
}

fn is_segment(entry: Option<std::fs::DirEntry>) -> bool {
    entry.is_some_and(|entry| entry.file_name().to_string_lossy().ends_with(".meta"))
}

impl Site {
    pub(super) fn look_into(&mut self, roots: &[PathBuf]) -> anyhow::Result<()> {
        let mut found: BTreeMap<PartitionId, Directory> = BTreeMap::new();
        let mut stands_still = true;
        for root in roots {
            let line = path_line(root);
            let broker = line.broker;
            stands_still &= broker != Broker::Running;
            self.paths.push(line);
            self.is_slave |= Record::load(root).is_ok_and(|record| record.is_some());
            let content = path_content(root).with_context(|| format!("cannot read {}", root.display()))?;
            for misplaced in content.misplaced {
                // A core dump may be called so, too.
                let counts = misplaced.is_link || self.expects.as_ref().is_some_and(|expects| expects(&misplaced.id));
                if counts { &mut self.faults } else { &mut self.notes }.push(misplaced.reason);
            }
            self.notes.extend(content.misnamed);
            self.notes
                .extend(content.foreign.iter().map(|path| format!("{} is none of ours: passed over", path.display())));
            for (id, directory) in content.partitions {
                if let Some(first) = found.get(&id) {
                    let (here, there) = (directory.display(), first.directory.display());
                    self.faults.push(format!("{here} is not served, since {there} is: move one of them elsewhere"));
                    continue;
                }
                found.insert(id.clone(), Directory { id, directory, broker, unreplayed: 0 });
            }
        }
        if stands_still {
            match unreplayed(roots) {
                Ok(lacking) => lacking.into_iter().for_each(|(id, bytes)| {
                    if let Some(place) = found.get_mut(&id) {
                        place.unreplayed = bytes;
                    }
                }),
                Err(error) => self.faults.push(format!("the write-ahead log: {error}")),
            }
        }
        self.partitions.extend(found.into_values());
        Ok(())
    }
}

fn path_line(root: &Path) -> PathLine {
    let (broker, pid, words) = match holder(root) {
        Holder::Running { pid } => (
            Broker::Running,
            Some(pid),
            format!("a broker runs on it (pid {pid}); its newest messages are still on their way"),
        ),
        Holder::Stopped => (Broker::Stopped, None, "no broker runs on it".to_owned()),
        Holder::Unmarked => {
            let words = "no broker of ours has opened it; whether a Java broker runs on it is not known";
            (Broker::Unknown, None, words.to_owned())
        }
        Holder::Unknown => {
            let words = "no broker is seen to run on it, and /proc/locks does not tell of those in other containers";
            (Broker::Unknown, None, words.to_owned())
        }
    };
    PathLine { path: root.to_owned(), broker, pid, words }
}

/// The first few of a list.
pub(super) fn some(all: &[String]) -> String {
    const SHOWN_MAX: usize = 10;
    match all.len().checked_sub(SHOWN_MAX) {
        Some(more) if more > 0 => format!("{} and {more} more", all[..SHOWN_MAX].join(", ")),
        _ => all.join(", "),
    }
}
