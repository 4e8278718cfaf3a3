use std::fmt;
use std::path::{Path, PathBuf};

/// Something to tell the person who wrote the file, at the line it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub file: PathBuf,
    /// Counted from 1; `None` when no single line is at fault.
    pub line: Option<u32>,
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file.display(), self.message),
            None => write!(f, "{}: {}", self.file.display(), self.message),
        }
    }
}

/// Everything that is wrong with a file, in the order of its lines; never empty. Displayed as one line a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<Finding>);

impl ConfigErrors {
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            finding.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// A longer message quotes something endless, and is shown with its begin and its end.
const MESSAGE_CHARS_MAX: usize = 2 * SHOWN_CHARS;
const SHOWN_CHARS: usize = 300;

/// Collects what is found while a file is read, so that one run reports every fault.
#[derive(Debug)]
pub(crate) struct Findings {
    file: PathBuf,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
}

impl Findings {
    pub(crate) fn new(file: &Path) -> Findings {
        Findings { file: file.to_owned(), errors: Vec::new(), warnings: Vec::new() }
    }

    pub(crate) fn error(&mut self, line: impl Into<Option<u32>>, message: impl AsRef<str>) {
        let finding = self.finding(line.into(), message.as_ref());
        self.errors.push(finding);
    }

    pub(crate) fn warn(&mut self, line: impl Into<Option<u32>>, message: impl AsRef<str>) {
        let finding = self.finding(line.into(), message.as_ref());
        self.warnings.push(finding);
    }

    /// Text of the file that is quoted in a message may hold any character, and a finding is one line that one can read.
    fn finding(&self, line: Option<u32>, message: &str) -> Finding {
        let mut shown = String::new();
        let chars = message.chars().count();
        for (place, c) in message.chars().enumerate() {
            match place {
                _ if chars <= MESSAGE_CHARS_MAX || place < SHOWN_CHARS || place >= chars - SHOWN_CHARS => {
                    if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
                }
                SHOWN_CHARS => shown.push('…'),
                _ => {}
            }
        }
        Finding { file: self.file.clone(), line, message: shown }
    }

    /// The warnings when there was no error, else the errors in the order of their lines.
    pub(crate) fn into_result(mut self) -> Result<Vec<Finding>, ConfigErrors> {
        if self.errors.is_empty() {
            self.warnings.sort_by_key(|finding| finding.line);
            return Ok(self.warnings);
        }
        self.errors.sort_by_key(|finding| finding.line);
        Err(ConfigErrors(self.errors))
    }
}
