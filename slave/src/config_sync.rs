//! `autoSyncMasterConfig`: what the slave's `server.ini` shares with its master's follows it.

use anyhow::{Context, Result};
use bytes::Bytes;
use metaq_config::{BrokerConfig, merge};
use metaq_link::driver::ConfigSource;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::{debug, error, info, warn};

/// A file that could not be written is tried again after this.
const RETRY: Duration = Duration::from_secs(5);

/// What messages call the file that came over the network.
const MASTERS: &str = "the master's server.ini";

/// Why the slave's file stays as it is.
enum Refusal {
    /// One of the files is not good: nothing helps but another file.
    Content(String),
    /// The disk: the same may go well later.
    Disk(anyhow::Error),
}

/// A running follower of the master's configuration, or none where the slave is not to follow it.
pub(crate) struct ConfigSync(Option<Running>);

struct Running {
    source: ConfigSource,
    changed: Arc<Notify>,
    task: JoinHandle<()>,
}

impl ConfigSync {
    pub(crate) fn off() -> ConfigSync {
        ConfigSync(None)
    }

    /// Follows what the link fetches, and changes the file at `path`.
    pub(crate) fn start(source: ConfigSource, path: PathBuf) -> ConfigSync {
        let changed = Arc::new(Notify::new());
        let task = tokio::spawn(follow(path, source.follow(), Arc::clone(&changed)));
        ConfigSync(Some(Running { source, changed, task }))
    }

    /// The registry tells of a change, where the master itself may not be able to.
    pub(crate) fn ask_again(&self) {
        if let Some(running) = &self.0 {
            running.source.ask_again();
        }
    }

    /// Returns when the file has changed and is to be loaded again. May be cancelled.
    pub(crate) async fn changed(&self) {
        match &self.0 {
            Some(running) => running.changed.notified().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for ConfigSync {
    fn drop(&mut self) {
        if let Some(running) = &self.0 {
            running.task.abort();
        }
    }
}

/// Takes over each configuration of the master that comes, and tells `changed` to load the file again; returns when none
/// can come any more. Cancelled, it leaves the old file or the new one.
async fn follow(path: PathBuf, mut masters: watch::Receiver<Option<Bytes>>, changed: Arc<Notify>) {
    let mut retry = false;
    loop {
        let patience = if retry { RETRY } else { Duration::MAX };
        if let Ok(Err(_)) = tokio::time::timeout(patience, masters.changed()).await {
            return;
        }
        let Some(text) = masters.borrow_and_update().clone() else { continue };
        let own = path.clone();
        let taken = match tokio::task::spawn_blocking(move || take_over(&own, &text)).await {
            Ok(taken) => taken,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        retry = matches!(taken, Err(Refusal::Disk(_)));
        match taken {
            Ok(changes) if changes.is_empty() => debug!("the master's configuration says nothing new"),
            Ok(changes) => {
                for change in &changes {
                    info!("taken over from the master: {change}");
                }
                info!(
                    path = %path.display(), changes = changes.len(),
                    "the configuration follows the master's; the file before is kept with .previous behind its name"
                );
                changed.notify_one();
            }
            Err(Refusal::Content(reason)) => {
                for line in reason.lines() {
                    error!("{line}");
                }
                error!(path = %path.display(), "the master's configuration is not taken over: nothing was changed");
            }
            Err(Refusal::Disk(error)) => {
                warn!("the master's configuration is not taken over yet, trying again: {error:#}");
            }
        }
    }
}

/// What was taken over into the file at `path`; nothing when it says the same already. The file changes whole, or not at
/// all, and only into one that can be used.
fn take_over(path: &Path, masters: &[u8]) -> Result<Vec<String>, Refusal> {
    // An edit that is not in force yet must survive, so what is merged is the file, not what runs.
    let own = BrokerConfig::load(path).map_err(|errors| Refusal::Content(errors.to_string()))?;
    let master =
        BrokerConfig::parse(Path::new(MASTERS), masters).map_err(|errors| Refusal::Content(errors.to_string()))?;
    if own.system.broker_id != master.system.broker_id {
        let (own, master) = (own.system.broker_id, master.system.broker_id);
        return Err(Refusal::Content(format!("it is the configuration of broker {master}, this is broker {own}")));
    }
    let merged = merge(&own.text, masters);
    if merged.changes.is_empty() {
        return Ok(merged.changes);
    }
    BrokerConfig::parse(path, merged.text.as_slice())
        .map_err(|errors| Refusal::Content(format!("{errors}\n(in what the two files come to)")))?;
    replace(path, &own.text, &merged.text).map_err(Refusal::Disk)?;
    Ok(merged.changes)
}

/// Puts `text` in the place of the file, durably, and keeps what was there beside it.
fn replace(path: &Path, previous: &[u8], text: &[u8]) -> Result<()> {
    // A link stays one, and what it names is replaced.
    let path = fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))?;
    put(&with_suffix(&path, ".previous"), previous, &path)?;
    put(&path, text, &path)
}

/// Writes a file whole: under another name in the same directory, synced, renamed, and the directory synced. It may be
/// read by whoever may read `like`.
fn put(path: &Path, text: &[u8], like: &Path) -> Result<()> {
    let part = with_suffix(path, ".new");
    let permissions = fs::metadata(like).with_context(|| format!("cannot read {}", like.display()))?.permissions();
    let written = File::create(&part).and_then(|mut file| {
        file.set_permissions(permissions)?;
        file.write_all(text)?;
        file.sync_all()
    });
    written.with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot rename {} to {}", part.display(), path.display()))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.with_context(|| format!("cannot sync {}", directory.display()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn ini(broker: u32, own: &str, topics: &str) -> String {
        format!(
            "[system]\nbrokerId={broker}\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\n\
             maxSegmentSize=1048576\nmaxTransferSize=1048576\n{own}\n[zookeeper]\nzk.zkEnable=false\n{topics}"
        )
    }

    struct Case {
        directory: tempfile::TempDir,
    }

    impl Case {
        fn new(text: &str) -> Case {
            let case = Case { directory: tempfile::tempdir().unwrap() };
            fs::write(case.path(), text).unwrap();
            case
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("server.ini")
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.directory.path()).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        }

        /// The reason why nothing was taken over, and nothing was.
        fn refused(&self, masters: &str) -> String {
            let before = fs::read(self.path()).unwrap();
            let Err(Refusal::Content(reason)) = take_over(&self.path(), masters.as_bytes()) else {
                panic!("taken over")
            };
            assert_eq!(fs::read(self.path()).unwrap(), before);
            assert_eq!(self.names(), ["server.ini"]);
            reason
        }
    }

    #[test]
    fn the_file_changes_and_the_one_before_is_kept() {
        let own = ini(3, "serverPort=9000", "[topic=a]\n");
        let case = Case::new(&own);
        fs::set_permissions(case.path(), fs::Permissions::from_mode(0o640)).unwrap();
        let masters = ini(3, "serverPort=8000", "; 订单\n[topic=a]\n[topic=b]\n");
        let changes = take_over(&case.path(), masters.as_bytes()).ok().unwrap();
        assert_eq!(changes, ["topic b added"]);
        let text = fs::read_to_string(case.path()).unwrap();
        assert_eq!(text, ini(3, "serverPort=9000", "; 订单\n[topic=a]\n[topic=b]\n"));
        assert_eq!(case.names(), ["server.ini", "server.ini.previous"]);
        assert_eq!(fs::read_to_string(case.directory.path().join("server.ini.previous")).unwrap(), own);
        assert_eq!(fs::metadata(case.path()).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(take_over(&case.path(), masters.as_bytes()).ok().unwrap().is_empty());
    }

    #[test]
    fn a_link_stays_a_link() {
        let case = Case::new(&ini(0, "", "[topic=a]\n"));
        let link = case.directory.path().join("link.ini");
        symlink("server.ini", &link).unwrap();
        take_over(&link, ini(0, "", "[topic=b]\n").as_bytes()).ok().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(case.path()).unwrap().ends_with("[topic=b]\n"));
    }

    #[test]
    fn a_bad_file_goes_nowhere() {
        let case = Case::new(&ini(0, "", "[topic=a]\n"));
        let reason = case.refused(&ini(0, "", "[topic=a]\nnumPartition=2\n"));
        assert!(reason.starts_with("the master's server.ini:12: unknown key numPartition"), "{reason}");
        assert!(case.refused("").contains("[system] is missing"));
        let reason = case.refused(&ini(1, "", "[topic=a]\n"));
        assert_eq!(reason, "it is the configuration of broker 1, this is broker 0");
        // Nor is a file of the slave that somebody is in the middle of editing overwritten.
        let case = Case::new(&ini(0, "serverport=1", "[topic=a]\n"));
        assert!(case.refused(&ini(0, "", "[topic=b]\n")).contains("serverport"));
    }
}
