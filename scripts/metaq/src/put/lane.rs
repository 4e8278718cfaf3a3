use std::sync::Arc;
use std::time::Duration;

use metaq_client::ClientError;
use metaq_types::{BrokerId, Status};
use tokio::time::Instant;

use super::Line;
use super::ledger::{Attempt, Ledger};
use super::masters::Masters;
use crate::show;

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The way of messages into one partition.
pub(super) struct Lane {
    pub(super) masters: Arc<Masters>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) topic: String,
    pub(super) broker: BrokerId,
    /// -1 leaves the choice to the broker.
    pub(super) partition: i32,
    pub(super) give_up: Duration,
    pub(super) resend: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Stored,
    Refused,
    Unknown,
}

pub(super) struct Sent {
    pub(super) outcome: Outcome,
    /// Tries that may have stored the message although no answer says so.
    pub(super) lost_answers: u32,
    pub(super) waited: Duration,
    /// Tried in vain until the time was over: the next line would not fare better.
    pub(super) given_up: bool,
}

/// What an answer that is not success means for the message.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// Surely not stored, and it would not be another time either.
    Final,
    /// Surely not stored, but it may be in a moment or on another broker.
    Temporary,
    Unknown,
}

impl Lane {
    /// Sends one line until it is stored, refused for good, or given up.
    pub(super) async fn send(&self, line: &Line) -> anyhow::Result<Sent> {
        let started = Instant::now();
        let mut pause = PAUSE_MIN;
        let mut lost_answers = 0;
        let mut number = 0;
        loop {
            number += 1;
            let (failure, broker, text) = match self.masters.get(self.broker).await {
                Err(error) => (Failure::Temporary, String::new(), format!("{error:#}")),
                Ok(master) => {
                    let put = master.client.put(&self.topic, self.partition, 0, line.body.clone()).await;
                    match put {
                        Ok(stored) => {
                            let attempt = self.attempt(line, &master.address, number);
                            self.ledger.stored(&attempt, &stored)?;
                            let waited = started.elapsed();
                            return Ok(Sent { outcome: Outcome::Stored, lost_answers, waited, given_up: false });
                        }
                        Err(error) => {
                            let failure = classify(&error);
                            if failure != Failure::Final {
                                self.masters.forget(self.broker).await;
                            }
                            (failure, master.address, error.to_string())
                        }
                    }
                }
            };
            let attempt = self.attempt(line, &broker, number);
            let over = started.elapsed() >= self.give_up;
            let given_up = over && failure != Failure::Final;
            let outcome = match failure {
                Failure::Unknown => {
                    lost_answers += 1;
                    self.ledger.unknown(&attempt, &text)?;
                    (over || !self.resend).then_some(Outcome::Unknown)
                }
                Failure::Temporary if !over => None,
                Failure::Temporary if lost_answers > 0 => Some(Outcome::Unknown),
                Failure::Temporary | Failure::Final => {
                    self.ledger.refused(&attempt, &text)?;
                    Some(if lost_answers > 0 { Outcome::Unknown } else { Outcome::Refused })
                }
            };
            if let Some(outcome) = outcome {
                show::say(&format!("metaq: line {}: {}", line.number, show::escape(text.as_bytes())));
                return Ok(Sent { outcome, lost_answers, waited: started.elapsed(), given_up });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn attempt<'a>(&'a self, line: &'a Line, broker: &'a str, number: u32) -> Attempt<'a> {
        Attempt { line, topic: &self.topic, broker, number }
    }
}

/// The broker says in words whether the message may be stored; the code alone does not tell.
fn classify(error: &ClientError) -> Failure {
    match error {
        ClientError::Connect { .. } | ClientError::Stuck { .. } => Failure::Temporary,
        ClientError::Closed { .. } | ClientError::Timeout { .. } => Failure::Unknown,
        ClientError::Protocol(_) => Failure::Final,
        ClientError::Answer { text, .. } if text.contains("may or may not be stored") => Failure::Unknown,
        ClientError::Answer { code, .. } if Status::from_code(*code) == Some(Status::ServiceUnavailable) => {
            Failure::Temporary
        }
        // What was the master is a slave now.
        ClientError::Answer { text, .. } if text.contains("send them to its master") => Failure::Temporary,
        ClientError::Answer { .. } => Failure::Final,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_is_not_unknown() {
        let answer = |code, text: &str| ClientError::Answer { code, text: text.to_owned() };
        let closed = ClientError::Closed { addr: String::new(), reason: String::new() };
        assert_eq!(classify(&closed), Failure::Unknown);
        assert_eq!(classify(&answer(500, "Detail:the message may or may not be stored: x")), Failure::Unknown);
        assert_eq!(classify(&answer(503, "Detail:not stored: disk full")), Failure::Temporary);
        assert_eq!(classify(&answer(500, "no messages; send them to its master: x")), Failure::Temporary);
        assert_eq!(classify(&answer(500, "The server do not accept topic x")), Failure::Final);
        assert_eq!(classify(&answer(403, "closed")), Failure::Final);
        assert_eq!(classify(&ClientError::Protocol("x".into())), Failure::Final);
    }
}
