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
        for verdict in verdicts.iter().filter(|verdict| verdict.standing != verdict.before) {
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

fn say(verdict: &Verdict, bound: Duration) {
    let Verdict { slave, address, standing, before, behind, worst, lasted } = verdict;
    let (behind_ms, bound_ms, lasted_ms) =
        (behind.as_millis() as u64, bound.as_millis() as u64, lasted.as_millis() as u64);
    let partition = worst.as_ref().map(ToString::to_string).unwrap_or_default();
    match (before, standing) {
        (_, Standing::Lagging) => warn!(
            %slave, address, partition, behind_ms, bound_ms,
            "the slave is lagging: what was acknowledged lately is not on it yet"
        ),
        (_, Standing::Silent) => warn!(%slave, address, "the slave holds its connection and asks for nothing"),
        (Standing::Lagging, Standing::Following) => {
            info!(%slave, address, behind_ms, bound_ms, lasted_ms, "the slave keeps up again");
        }
        (Standing::Silent, Standing::CatchingUp | Standing::Following) => {
            info!(%slave, address, lasted_ms, "the slave asks again");
        }
        // Of one that has nothing to catch up there is nothing to say.
        (Standing::CatchingUp, Standing::Following) if *lasted > bound => {
            info!(%slave, address, lasted_ms, "the slave has caught up");
        }
        _ => {}
    }
}

fn say_throttle(was: Duration, is: Duration) {
    if was.is_zero() && !is.is_zero() {
        warn!("producers are held back until the slaves keep up (slaveLagAction=throttle)");
    } else if !was.is_zero() && is.is_zero() {
        info!("producers are no longer held back");
    }
}
