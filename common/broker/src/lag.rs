//! Watches how far the slaves are behind, says when the bound breaks and holds again, and holds producers back.

use crate::node::Shared;
use metaq_config::SlaveLagAction;
use metaq_link::replicas::Verdict;
use metaq_link::standing::Standing;
use metaq_link::throttle::next_delay;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Within a bound it is looked this often, and within these.
const LOOKS: u32 = 5;
const STEP_MIN: Duration = Duration::from_millis(20);
const STEP_MAX: Duration = Duration::from_secs(1);

/// Until the node stops.
pub(crate) async fn watch(node: Arc<Shared>) {
    let mut delay = Duration::ZERO;
    loop {
        let (bound, action) = {
            let config = node.config.current();
            (config.system.slave_max_delay, config.system.slave_lag_action)
        };
        tokio::select! {
            () = tokio::time::sleep((bound / LOOKS).clamp(STEP_MIN, STEP_MAX)) => {}
            () = node.stopping() => return,
        }
        let verdicts = node.replicas.lock().judge(bound, |id| node.log_end(id), Instant::now());
        for verdict in &verdicts {
            say(verdict, bound);
        }
        if action == SlaveLagAction::Throttle {
            let was = delay;
            delay = next_delay(delay, worst(&verdicts), bound);
            node.throttle.set_delay(delay);
            say_throttle(was, delay);
        }
    }
}

/// Of the slaves that had caught up: one that has just come, is gone or frozen must not stop the producers.
fn worst(verdicts: &[Verdict]) -> Option<Duration> {
    let counts = |verdict: &&Verdict| matches!(verdict.standing, Standing::Following | Standing::Lagging);
    verdicts.iter().filter(counts).map(|verdict| verdict.behind).max()
}

/// One line when the bound breaks, one when it holds again.
fn say(verdict: &Verdict, bound: Duration) {
    let Verdict { slave, address, standing, before, lasted, breaks, holds_after, behind, worst } = verdict;
    let (behind_ms, bound_ms, lasted_ms) = (millis(*behind), millis(bound), millis(*lasted));
    if *breaks {
        let partition = worst.as_ref().map(ToString::to_string).unwrap_or_default();
        let what = "the slave is lagging: what was acknowledged lately is not on it yet";
        warn!(%slave, address, partition, behind_ms, bound_ms, "{what}");
    }
    if let Some(after) = holds_after {
        info!(%slave, address, bound_ms, lagged_ms = millis(*after), "the slave keeps up again");
        return;
    }
    match (before, standing) {
        (Standing::Silent, Standing::Silent) => {}
        (_, Standing::Silent) => warn!(%slave, address, "the slave holds its connection and asks for nothing"),
        (Standing::Silent, Standing::CatchingUp | Standing::Following) => {
            info!(%slave, address, lasted_ms, "the slave asks again");
        }
        // Of one that had nothing to catch up there is nothing to say.
        (Standing::CatchingUp, Standing::Following) if *lasted > bound => {
            info!(%slave, address, lasted_ms, "the slave has caught up");
        }
        _ => {}
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn say_throttle(was: Duration, is: Duration) {
    if was.is_zero() && !is.is_zero() {
        warn!("producers are held back until the slaves keep up (slaveLagAction=throttle)");
    } else if !was.is_zero() && is.is_zero() {
        info!("producers are no longer held back");
    }
}
