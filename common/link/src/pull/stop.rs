use std::fmt;

use metaq_types::Offset;

use super::FAULTS_MAX;

/// Why a partition is no longer copied. It is looked at again when the link next connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The master's own log is damaged inside: readers are led across, a copy would not be one.
    Damaged { own_end: Offset, master_goes_on: Offset },
    /// The slave's log goes on where the master's ends.
    Diverged { own_end: Offset, master_end: Offset },
    /// The master delivers a record that fails its checks, again and again.
    Corrupt { at: Offset, reason: String },
    /// The record is larger than what the master hands out at once.
    TooLarge { at: Offset, record_bytes: u32, delivered_bytes: u32 },
    /// The slave cannot store it.
    Local { at: Offset, reason: String },
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Damaged { own_end, master_goes_on } => write!(
                f,
                "damaged: the master's log is damaged from {own_end} to {master_goes_on}; if this slave holds more than \
                 others, promote it, else repair the master's log, then restart the slave"
            ),
            Stop::Diverged { own_end, master_end } => write!(
                f,
                "diverged: the slave's log ends at {own_end}, {} bytes beyond the master's end {master_end}; nothing was \
                 deleted; if the master is right, stop the slave, move the partition's directory away, start it",
                own_end.bytes_since(*master_end)
            ),
            Stop::Corrupt { at, reason } => write!(
                f,
                "corrupt: what the master delivers at {at} failed its checks {FAULTS_MAX} times ({reason}); check the \
                 master's disk, then restart the slave"
            ),
            Stop::TooLarge { at, record_bytes, delivered_bytes } => write!(
                f,
                "too large: the record at {at} has {record_bytes} bytes and the master delivers {delivered_bytes}; set \
                 maxTransferSize on the master to at least {record_bytes}"
            ),
            Stop::Local { at, reason } => write!(f, "local: cannot store what follows {at}: {reason}"),
        }
    }
}

impl Stop {
    /// One word for tables.
    pub fn word(&self) -> &'static str {
        match self {
            Stop::Damaged { .. } => "damaged",
            Stop::Diverged { .. } => "diverged",
            Stop::Corrupt { .. } => "corrupt",
            Stop::TooLarge { .. } => "too-large",
            Stop::Local { .. } => "local",
        }
    }
}
