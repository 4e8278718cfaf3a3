use crate::line::{int32, shown};
use crate::text::Text;
use std::fmt;

/// The name of a transaction as it travels (wire-protocol, "6.1"); two keys are equal when all their parts are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransactionKey {
    /// `TX:SESSION:NUMBER`
    Local { session: Text, number: i32 },
    /// `XID:FORMAT:GLOBAL:BRANCH:QUALIFIER`, the two ids in hexadecimal.
    Xa { format_id: i32, global: Vec<u8>, branch: Vec<u8>, qualifier: Text },
}

/// Why a word is not a transaction key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(String);

impl TransactionKey {
    /// `Ok(None)` for the word `null`, which stands for "no transaction".
    pub fn parse(key: &Text) -> Result<Option<TransactionKey>, KeyError> {
        let word = key.as_str();
        if word == "null" {
            return Ok(None);
        }
        if !word.starts_with("TX:") && !word.starts_with("XID:") {
            return Err(KeyError(format!(
                "transaction key {} begins with neither TX: nor XID: and is not null",
                shown(word.as_bytes())
            )));
        }
        // Empty parts at the end do not count, as in the original's splitting; those in the middle do.
        let mut parts = [""; 5];
        let mut count = 0;
        for part in word.trim_end_matches(':').split(':') {
            if let Some(slot) = parts.get_mut(count) {
                *slot = part;
            }
            count += 1;
        }
        match (parts, count) {
            (["TX", session, number, ..], 3) => Ok(Some(TransactionKey::Local {
                session: key.share(session),
                number: number32("number", number, word)?,
            })),
            (["XID", format_id, global, branch, qualifier], 5) => Ok(Some(TransactionKey::Xa {
                format_id: number32("format id", format_id, word)?,
                global: from_hex("global id", global, word)?,
                branch: from_hex("branch id", branch, word)?,
                qualifier: key.share(qualifier),
            })),
            _ => Err(KeyError(format!(
                "transaction key {} has {count} parts, expected TX:SESSION:NUMBER or XID:FORMAT:GLOBAL:BRANCH:QUALIFIER",
                shown(word.as_bytes())
            ))),
        }
    }
}

fn number32(name: &str, part: &str, key: &str) -> Result<i32, KeyError> {
    int32(part.as_bytes()).ok_or_else(|| {
        KeyError(format!(
            "{name} {} of transaction key {} is not a whole number from {} to {}",
            shown(part.as_bytes()),
            shown(key.as_bytes()),
            i32::MIN,
            i32::MAX
        ))
    })
}

/// Two digits a byte, either case; an odd last digit is ignored, as in the original.
fn from_hex(name: &str, digits: &str, key: &str) -> Result<Vec<u8>, KeyError> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|n| n as u8);
    digits
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?))
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| {
            KeyError(format!(
                "{name} {} of transaction key {} is not hexadecimal",
                shown(digits.as_bytes()),
                shown(key.as_bytes())
            ))
        })
}

/// The wire form, in lower case.
impl fmt::Display for TransactionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransactionKey::Local { session, number } => write!(f, "TX:{session}:{number}"),
            TransactionKey::Xa { format_id, global, branch, qualifier } => {
                write!(f, "XID:{format_id}:{}:{}:{qualifier}", Hex(global), Hex(branch))
            }
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(key: &str) -> Result<Option<TransactionKey>, KeyError> {
        TransactionKey::parse(&Text::from(key))
    }

    #[test]
    fn keys_are_printed_as_they_came() {
        for key in [
            "TX:10.0.0.9-1373700000000-1:1",
            "TX:s:-7",
            "TX::1",
            "XID:4660:01ab:02:uq-1",
            "XID:-1:::q",
            "XID:100:02ff00:0a0b:XAMessageProducer-host1",
        ] {
            assert_eq!(parse(key).unwrap().unwrap().to_string(), key);
        }
        assert_eq!(parse("null"), Ok(None));
    }

    #[test]
    fn habits_of_the_original_are_kept() {
        let cases = [
            ("XID:+5:AB:0:q", "XID:5:ab::q"),
            ("XID:1:abc:d:q", "XID:1:ab::q"),
            ("TX:s:1:", "TX:s:1"),
            ("XID:1:aa:bb:q::", "XID:1:aa:bb:q"),
        ];
        for (key, printed) in cases {
            assert_eq!(parse(key).unwrap().unwrap().to_string(), printed, "{key}");
        }
    }

    #[test]
    fn what_is_no_key_says_why() {
        let cases = [
            ("foo", "begins with neither"),
            ("", "begins with neither"),
            ("NULL", "begins with neither"),
            ("TXs:1", "begins with neither"),
            ("TX:", "has 1 parts"),
            ("TX:s", "has 2 parts"),
            ("TX:s:", "has 2 parts"),
            ("TX:fe80::1:1", "has 5 parts"),
            ("TX:s:1:2", "has 4 parts"),
            ("TX:s:x", "number 'x'"),
            ("TX:s:2147483648", "number '2147483648'"),
            ("XID:1:00", "has 3 parts"),
            ("XID:1:aa:bb:", "has 4 parts"),
            ("XID:1:aa:bb:q:r", "has 6 parts"),
            ("XID:x:aa:bb:q", "format id 'x'"),
            ("XID:1:zz:bb:q", "global id 'zz'"),
            ("XID:1:aa:b+bb:q", "branch id 'b+bb'"),
        ];
        for (key, reason) in cases {
            let error = parse(key).unwrap_err().to_string();
            assert!(error.contains(reason), "{key}: {error}");
        }
    }
}
