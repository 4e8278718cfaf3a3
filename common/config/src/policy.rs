use chrono::{DateTime, Local, SecondsFormat, Utc};
use cron::Schedule;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// `deletePolicy`: what becomes of a sealed segment that is older than `age` (storage, "12. Retention: policy").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletePolicy {
    pub action: DeleteAction,
    pub age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteAction {
    Delete,
    Archive { compress: bool },
}

/// The error reads on after the text: "'delete' is not …".
impl FromStr for DeletePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<DeletePolicy, String> {
        let words: Vec<&str> = text.split(',').collect();
        let action = match words[..] {
            ["delete", _] => DeleteAction::Delete,
            ["archive", _] => DeleteAction::Archive { compress: false },
            ["archive", _, compress] if compress.eq_ignore_ascii_case("true") => {
                DeleteAction::Archive { compress: true }
            }
            ["archive", _, compress] if compress.eq_ignore_ascii_case("false") => {
                DeleteAction::Archive { compress: false }
            }
            _ if text.contains(char::is_whitespace) => return Err("must be written without blanks".into()),
            _ => {
                return Err("is not delete,AGE or archive,AGE or archive,AGE,true; write for example delete,168".into());
            }
        };
        Ok(DeletePolicy { action, age: parse_age(words[1])? })
    }
}

/// An age with `s`, `m` or `h` behind it; without one it counts hours.
fn parse_age(text: &str) -> Result<Duration, String> {
    let (digits, seconds) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1),
        Some(b'm') => (&text[..text.len() - 1], 60),
        Some(b'h') => (&text[..text.len() - 1], 3600),
        _ => (text, 3600),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!(
            "has no age: '{text}' is not a number with s, m or h behind it; a number alone counts hours"
        ));
    }
    let age = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    // Ages are compared as milliseconds in 64 bits.
    age.filter(|seconds| *seconds <= i64::MAX as u64 / 1000)
        .map(Duration::from_secs)
        .ok_or_else(|| format!("has an age beyond the numbers of 64 bits: '{text}'"))
}

impl fmt::Display for DeletePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.age.as_secs();
        let (name, compress) = match self.action {
            DeleteAction::Delete => ("delete", ""),
            DeleteAction::Archive { compress: false } => ("archive", ""),
            DeleteAction::Archive { compress: true } => ("archive", ",true"),
        };
        match (seconds % 3600, seconds % 60) {
            (0, _) => write!(f, "{name},{}{compress}", seconds / 3600),
            (_, 0) => write!(f, "{name},{}m{compress}", seconds / 60),
            _ => write!(f, "{name},{seconds}s{compress}"),
        }
    }
}

/// `deleteWhen`: a Quartz cron expression in the local time zone (storage, "13. Retention: schedule").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteWhen {
    schedule: Schedule,
}

impl DeleteWhen {
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// When it is next due after `time`, by the machine's time zone; `None`: never again.
    pub fn next_after(&self, time: SystemTime) -> Option<SystemTime> {
        self.schedule.after(&DateTime::<Local>::from(time)).next().map(SystemTime::from)
    }
}

/// A time as the machine's time zone has it, with the zone's distance from UTC.
pub fn in_local_time(time: SystemTime) -> String {
    DateTime::<Local>::from(time).to_rfc3339_opts(SecondsFormat::Secs, false)
}

/// The error reads on after the text: "'x' is not …".
impl FromStr for DeleteWhen {
    type Err = String;

    fn from_str(text: &str) -> Result<DeleteWhen, String> {
        let schedule = Schedule::from_str(text).map_err(|_| {
            "is not 'seconds minutes hours day-of-month month day-of-week', with ? for one of the days; \
             write for example 0 0 6,18 * * ? (L, W and # are not supported)"
                .to_owned()
        })?;
        if schedule.after(&DateTime::<Utc>::UNIX_EPOCH).next().is_none() {
            return Err("never comes, so nothing would ever be deleted; write for example 0 0 6,18 * * ?".to_owned());
        }
        Ok(DeleteWhen { schedule })
    }
}

impl fmt::Display for DeleteWhen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.schedule.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, action: DeleteAction, age_seconds: u64) {
        let policy: DeletePolicy = text.parse().unwrap();
        assert_eq!(policy, DeletePolicy { action, age: Duration::from_secs(age_seconds) }, "{text}");
        assert_eq!(policy.to_string().parse(), Ok(policy), "{text} written again");
    }

    #[test]
    fn policies_are_an_action_and_an_age() {
        check("delete,168", DeleteAction::Delete, 168 * 3600);
        check("delete,10s", DeleteAction::Delete, 10);
        check("delete,10m", DeleteAction::Delete, 600);
        check("delete,10h", DeleteAction::Delete, 36_000);
        check("delete,0s", DeleteAction::Delete, 0);
        check("archive,24", DeleteAction::Archive { compress: false }, 86_400);
        check("archive,24,false", DeleteAction::Archive { compress: false }, 86_400);
        check("archive,90m,TRUE", DeleteAction::Archive { compress: true }, 5400);
    }

    #[test]
    fn a_policy_that_is_not_understood_deletes_nothing() {
        let refused = [
            "",
            "delete",
            "delete,",
            "Delete,1",
            "remove,1",
            "delete,10d",
            "delete,1.5h",
            "delete,-1",
            "delete,s",
            "delete, 168",
            "delete,168 ",
            "delete,1,true",
            "archive,1,yes",
            "archive,1, true",
            "archive,1,true,x",
            "delete,9223372036854775807",
            "delete,99999999999999999999",
        ];
        for text in refused {
            assert!(text.parse::<DeletePolicy>().is_err(), "{text}");
        }
    }

    #[test]
    fn schedules_are_quartz_expressions() {
        for text in ["0 0 6,18 * * ?", "0 0/5 * * * ?", "0 15 10 ? * MON-FRI", "0 0 12 1 JUL ? 2030", "0 0 1 ? * 1"] {
            let when: DeleteWhen = text.parse().unwrap_or_else(|error| panic!("{text} {error}"));
            assert_eq!(when.to_string(), text);
        }
        for text in ["", "* * * * *", "0 0 6,18 * *", "0 0 25 * * ?", "0 0 6 L * ?", "0 0 6 ? * 6#3", "daily"] {
            assert!(text.parse::<DeleteWhen>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_next_time_is_after_the_one_given() {
        let when: DeleteWhen = "0/2 * * * * ?".parse().unwrap();
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        assert_eq!(when.next_after(at(1_800_000_000_000)), Some(at(1_800_000_002_000)));
        assert_eq!(when.next_after(at(1_800_000_001_999)), Some(at(1_800_000_002_000)));
        let past: DeleteWhen = "0 0 12 1 JUL ? 2020".parse().unwrap();
        assert_eq!(past.next_after(at(1_800_000_000_000)), None);
    }

    #[test]
    fn sunday_is_the_first_day() {
        let numbers: DeleteWhen = "0 0 1 ? * 1".parse().unwrap();
        let names: DeleteWhen = "0 0 1 ? * SUN".parse().unwrap();
        assert!(numbers.schedule().timeunitspec_eq(names.schedule()));
    }

    #[test]
    fn a_day_that_never_comes_is_an_error() {
        for never in ["0 0 0 31 2 ?", "0 0 6 30 2 ?", "0 0 6 31 4,6,9,11 ?"] {
            let error = never.parse::<DeleteWhen>().unwrap_err();
            assert!(error.starts_with("never comes"), "{never}: {error}");
        }
        for rare in ["0 0 6 29 2 ?", "0 0 6 31 * ?"] {
            assert!(rare.parse::<DeleteWhen>().is_ok(), "{rare}");
        }
    }
}
