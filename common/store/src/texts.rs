//! What our own texts in `.metaq` have in common: each begins with a word of its own and the number of its format.

use crate::errors::OpenError;
use crate::kind;
use std::fs;
use std::path::Path;

/// Digits of a format's number that are believed to be one.
const FORMAT_DIGITS_MAX: usize = 30;

/// A kind of text of ours.
pub(crate) struct Form {
    /// Its first word.
    pub(crate) word: &'static str,
    /// The newest format that this version knows; it follows the word.
    pub(crate) format: u64,
    /// What to do with a damaged one.
    pub(crate) advice: &'static str,
}

impl Form {
    /// What a text of it begins with: the word and the number.
    pub(crate) fn head(&self) -> String {
        format!("{} {}", self.word, self.format)
    }

    /// The text, of a format that is known; `None` where there is no file. Its content is for the caller to judge.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<String>, OpenError> {
        let Some(bytes) = read(path)? else { return Ok(None) };
        if let Some(found) = self.newer(&bytes) {
            return Err(OpenError::newer(path, found, self.format));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| self.damaged(path, "it is not UTF-8 text"))
    }

    pub(crate) fn damaged(&self, path: &Path, reason: impl Into<String>) -> OpenError {
        OpenError::Damaged { path: path.to_path_buf(), reason: reason.into(), advice: self.advice }
    }

    /// The number of a text's format, if that is beyond those which are known. Nothing else of it can be relied on then,
    /// no checksum either.
    pub(crate) fn newer<'a>(&self, text: &'a [u8]) -> Option<&'a str> {
        let rest = text.strip_prefix(self.word.as_bytes())?.strip_prefix(b" ")?;
        let digits = rest.split(|byte| matches!(byte, b' ' | b'\n' | b'\r')).next()?;
        let is_number = digits.len() <= FORMAT_DIGITS_MAX && digits.iter().all(u8::is_ascii_digit);
        let digits = std::str::from_utf8(digits).ok().filter(|digits| is_number && !digits.is_empty())?;
        digits.parse::<u64>().map_or(true, |format| format > self.format).then_some(digits)
    }
}

/// The bytes of a file of ours; `None` where there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    match kind::file(path).map_err(OpenError::Misplaced)? {
        Some(_) => fs::read(path).map(Some).map_err(OpenError::io("read", path)),
        None => Ok(None),
    }
}
