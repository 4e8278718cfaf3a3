use crate::keys;
use crate::values::Values;
use std::time::Duration;

/// How many members have to hold a message before its put is answered, and what happens when they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRules {
    /// Members, the master included; 1: the master alone, which is asynchronous replication.
    pub quorum: u32,
    /// A put is answered as unconfirmed after this.
    pub timeout: Duration,
    /// With fewer members than `quorum`, those that are there are enough.
    pub downgrade: bool,
}

impl AckRules {
    pub(crate) fn parse(values: &mut Values<'_>) -> AckRules {
        AckRules {
            quorum: values.unsigned(&keys::ACK_QUORUM),
            timeout: values.millis(&keys::ACK_TIMEOUT_IN_MILLS),
            downgrade: values.bool(&keys::ACK_QUORUM_DOWNGRADE),
        }
    }

    /// What is written, else as `inherited`.
    pub(crate) fn parse_or(values: &mut Values<'_>, inherited: AckRules) -> AckRules {
        let quorum = values.unsigned_or(&keys::ACK_QUORUM, inherited.quorum.into());
        AckRules {
            quorum: u32::try_from(quorum).expect("the key's range lies within 32 bits"),
            timeout: values.millis_or(&keys::ACK_TIMEOUT_IN_MILLS, inherited.timeout),
            downgrade: values.bool_or(&keys::ACK_QUORUM_DOWNGRADE, inherited.downgrade),
        }
    }

    /// Whether anybody but the master is asked.
    pub fn is_on(&self) -> bool {
        self.quorum > 1
    }
}
