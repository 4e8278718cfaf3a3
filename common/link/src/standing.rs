//! Whether a slave keeps within the bound, as its master judges it; a plain function with hysteresis.

use std::fmt;
use std::time::Duration;

/// What a master thinks of a slave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Standing {
    /// It holds no connection.
    #[default]
    Absent,
    /// It holds a connection and has not asked for anything for long: frozen, or cut off without a word.
    Silent,
    /// It has not been within the bound since it connected.
    CatchingUp,
    /// Within the bound (`slaveMaxDelayInMills`).
    Following,
    /// It was within the bound, and is above it.
    Lagging,
}

impl Standing {
    pub const ALL: [Standing; 5] =
        [Standing::Absent, Standing::Silent, Standing::CatchingUp, Standing::Following, Standing::Lagging];

    pub fn of_word(word: &str) -> Option<Standing> {
        Standing::ALL.into_iter().find(|standing| standing.word() == word)
    }

    /// One word, for texts that are read back and for labels.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Absent => "absent",
            Standing::Silent => "silent",
            Standing::CatchingUp => "catching-up",
            Standing::Following => "following",
            Standing::Lagging => "lagging",
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What is seen of a slave at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    pub connected: bool,
    pub silent: bool,
    /// Some of its partitions have not been within the bound since it connected.
    pub joining: bool,
    /// The worst of the others.
    pub behind: Duration,
}

/// The standing after `before`. What has broken the bound has to come down to half of it before it holds again, so that
/// a slave at the bound does not fill the log.
pub fn judge(before: Standing, sight: Sight, bound: Duration) -> Standing {
    let limit = if before == Standing::Lagging { bound / 2 } else { bound };
    match sight {
        Sight { connected: false, .. } => Standing::Absent,
        Sight { silent: true, .. } => Standing::Silent,
        Sight { behind, .. } if behind > limit => Standing::Lagging,
        Sight { joining: true, .. } => Standing::CatchingUp,
        _ => Standing::Following,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_millis(500);

    fn check(before: Standing, behind_ms: u64, expect: Standing) {
        let behind = Duration::from_millis(behind_ms);
        let sight = Sight { connected: true, silent: false, joining: false, behind };
        assert_eq!(judge(before, sight, BOUND), expect, "{before} and {behind_ms} ms behind");
    }

    #[test]
    fn the_bound_breaks_at_once_and_holds_again_at_half_of_it() {
        check(Standing::Absent, 0, Standing::Following);
        check(Standing::Following, 500, Standing::Following);
        check(Standing::Following, 501, Standing::Lagging);
        check(Standing::Lagging, 300, Standing::Lagging);
        check(Standing::Lagging, 250, Standing::Following);
        check(Standing::Silent, 501, Standing::Lagging);
    }

    #[test]
    fn a_slave_that_joins_is_not_lagging() {
        let joining = Sight { connected: true, silent: false, joining: true, behind: Duration::ZERO };
        assert_eq!(judge(Standing::Absent, joining, BOUND), Standing::CatchingUp);
        let lagging_too = Sight { behind: BOUND * 2, ..joining };
        assert_eq!(judge(Standing::CatchingUp, lagging_too, BOUND), Standing::Lagging);
        let gone = Sight { connected: false, ..lagging_too };
        assert_eq!(judge(Standing::Lagging, gone, BOUND), Standing::Absent);
        assert_eq!(judge(Standing::Lagging, Sight { silent: true, ..lagging_too }, BOUND), Standing::Silent);
    }
}
