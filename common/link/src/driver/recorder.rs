use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::board::Board;
use crate::promotion::{Record, RecordError};

const INTERVAL: Duration = Duration::from_secs(1);

/// While nothing but the time of the last answer changes, the record is written this seldom.
const HEARD_STEP_MS: u64 = 10_000;

/// Keeps the record for a promotion on disk, at most once a second.
pub(super) struct Recorder {
    finish: CancellationToken,
    task: JoinHandle<()>,
}

impl Recorder {
    pub(super) fn start(data_path: PathBuf, board: Arc<Board>) -> Recorder {
        let finish = CancellationToken::new();
        Recorder { finish: finish.clone(), task: tokio::spawn(run(data_path, board, finish)) }
    }

    /// Writes the last state and ends.
    pub(super) async fn finish(self) {
        self.finish.cancel();
        if let Err(error) = self.task.await {
            warn!(%error, "the record of replication ended badly");
        }
    }
}

async fn run(data_path: PathBuf, board: Arc<Board>, finish: CancellationToken) {
    let mut tick = tokio::time::interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut saved_heard_unix_ms = 0;
    let mut failed = false;
    loop {
        let last = tokio::select! {
            _ = tick.tick() => false,
            () = board.save.notified() => false,
            () = finish.cancelled() => true,
        };
        board.sample_rate();
        let heard_unix_ms = board.heard_unix_ms();
        // Once the master is silent the time of its last answer will not change again, and is worth keeping exactly.
        let step_ms = if board.is_following() && !last { HEARD_STEP_MS } else { 1 };
        let changed = board.take_changed() || heard_unix_ms.saturating_sub(saved_heard_unix_ms) >= step_ms;
        if heard_unix_ms > 0 && (changed || failed) {
            let number = board.begin_save();
            let record = board.record();
            let roll = record.roll;
            match save(&data_path, record).await {
                Ok(()) => {
                    (saved_heard_unix_ms, failed) = (heard_unix_ms, false);
                    board.on_saved(number, roll);
                }
                Err(error) => {
                    if !failed {
                        warn!(%error, "a promotion will not know how far the master was");
                    }
                    failed = true;
                }
            }
        }
        if last {
            return;
        }
    }
}

async fn save(data_path: &std::path::Path, record: Record) -> Result<(), RecordError> {
    let data_path = data_path.to_owned();
    match tokio::task::spawn_blocking(move || record.save(&data_path)).await {
        Ok(saved) => saved,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
