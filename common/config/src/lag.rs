//! What a master does about a slave that is behind.

use std::fmt;
use std::str::FromStr;

/// `slaveLagAction`: what follows when a slave is further behind than `slaveMaxDelayInMills`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlaveLagAction {
    /// It is said in the log, in `stats` and in the metrics.
    Report,
    /// Producers are held back as well, until the slave is within the bound again.
    Throttle,
}

impl FromStr for SlaveLagAction {
    type Err = String;

    fn from_str(text: &str) -> Result<SlaveLagAction, String> {
        match text {
            "report" => Ok(SlaveLagAction::Report),
            "throttle" => Ok(SlaveLagAction::Throttle),
            _ => Err("is none of report, throttle".to_owned()),
        }
    }
}

impl fmt::Display for SlaveLagAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlaveLagAction::Report => "report",
            SlaveLagAction::Throttle => "throttle",
        })
    }
}
