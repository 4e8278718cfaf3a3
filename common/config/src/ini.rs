use crate::finding::Findings;
use crate::lines::{LogicalLine, logical_lines, trim, unescape};
use std::borrow::Cow;
use std::collections::HashMap;

/// `server.ini` as sections and entries with their lines, nothing interpreted (configuration, "1. server.ini: file
/// syntax").
#[derive(Debug, Default)]
pub(crate) struct Ini {
    /// In the order of the file; a section that is opened again goes on where it was.
    pub(crate) sections: Vec<Section>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    /// Of its first header.
    pub(crate) line: u32,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) line: u32,
}

impl Ini {
    /// Reads what can be read; each fault becomes an error in `findings`, with its line.
    pub(crate) fn parse(bytes: &[u8], findings: &mut Findings) -> Ini {
        let text = String::from_utf8_lossy(bytes);
        let damaged = matches!(text, Cow::Owned(_));
        let mut ini = Ini::default();
        let mut current = Current::None;
        for line in logical_lines(&text, &[';', '#']) {
            warn_of_damage(damaged, &line, findings);
            if line.cut {
                findings.warn(line.number, "the file ends inside this line, which a \\ continues; the line is ignored");
            } else if line.text.starts_with('[') {
                current = ini.open_section(&line, findings);
            } else {
                ini.add_entry(&line, &current, findings);
            }
        }
        ini
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.by_name.get(name).map(|index| &self.sections[*index])
    }

    fn open_section(&mut self, line: &LogicalLine, findings: &mut Findings) -> Current {
        match parse_header(&line.text) {
            Ok(name) => Current::Section(self.index_of(name, line.number)),
            Err(message) => {
                findings.error(line.number, message);
                Current::Unreadable
            }
        }
    }

    fn index_of(&mut self, name: String, line: u32) -> usize {
        if let Some(index) = self.by_name.get(&name) {
            return *index;
        }
        self.by_name.insert(name.clone(), self.sections.len());
        self.sections.push(Section { name, line, entries: Vec::new() });
        self.sections.len() - 1
    }

    fn add_entry(&mut self, line: &LogicalLine, current: &Current, findings: &mut Findings) {
        let entry = match parse_entry(&line.text) {
            Ok((key, value)) => Entry { key, value, line: line.number },
            Err(message) => return findings.error(line.number, message),
        };
        match current {
            Current::Section(index) => self.sections[*index].entries.push(entry),
            Current::None => {
                findings.error(line.number, format!("{} stands before the first section, [system]", entry.key));
            }
            // The header is already reported; where its entries belong is unknown.
            Current::Unreadable => {}
        }
    }
}

/// Where entries go.
enum Current {
    None,
    Unreadable,
    Section(usize),
}

/// `[name]`, and nothing behind it.
pub(crate) fn parse_header(text: &str) -> Result<String, String> {
    let name = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match name.map(|name| unescape(trim(name))) {
        None => {
            Err("a section header ends with ] and nothing may follow it; put a comment on a line of its own".into())
        }
        Some(Ok(name)) if name.is_empty() => Err("a section needs a name, for example [system]".to_owned()),
        Some(result) => result,
    }
}

/// `key = value`: the first operator splits, then both sides are unescaped and trimmed.
pub(crate) fn parse_entry(text: &str) -> Result<(String, String), String> {
    let Some((key, value)) = text.split_once(['=', ':']) else {
        return Err(format!("'{text}' is neither key=value, nor [section], nor a comment (; or #)"));
    };
    let (key, value) = (unescape(key)?, unescape(value)?);
    let key = trim(&key);
    if key.is_empty() {
        return Err(format!("'{text}' has no key; write key=value"));
    }
    Ok((key.to_owned(), trim(&value).to_owned()))
}

fn warn_of_damage(damaged: bool, line: &LogicalLine, findings: &mut Findings) {
    if damaged && line.text.contains('\u{fffd}') {
        findings.warn(
            line.number,
            "this line holds bytes that are not UTF-8 (GBK?) and is read with � in their place; save the file as UTF-8",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Sections as `[name]` and entries as `key=value`, or the errors; then the warnings.
    fn read(bytes: impl AsRef<[u8]>) -> (String, String) {
        let mut findings = Findings::new(Path::new("f"));
        let ini = Ini::parse(bytes.as_ref(), &mut findings);
        match findings.into_result() {
            Err(errors) => (errors.to_string(), String::new()),
            Ok(warnings) => {
                let mut out = Vec::new();
                for section in &ini.sections {
                    out.push(format!("[{}]", section.name));
                    out.extend(section.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)));
                }
                (out.join(" "), warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
            }
        }
    }

    #[track_caller]
    fn check(bytes: impl AsRef<[u8]>, expect: &str) {
        let (got, warnings) = read(bytes);
        assert_eq!((got.as_str(), warnings.as_str()), (expect, ""));
    }

    #[track_caller]
    fn check_fault(bytes: impl AsRef<[u8]>, expect: &str) {
        let (got, warnings) = read(bytes);
        assert!(got.contains(expect) || warnings.contains(expect), "{got}\n{warnings}");
    }

    #[test]
    fn entries_are_split_at_the_first_operator_and_trimmed() {
        check("[s]\na=1\nb : 2\nc = x=y:z\nd =\ne: \"q\"\n", "[s] a=1 b=2 c=x=y:z d= e=\"q\"");
        check("[s]\na=1 ; c", "[s] a=1 ; c");
        check("[s]\na = \\t1\\t", "[s] a=1");
        check("[s]\np=C:\\temp", "[s] p=C:\temp");
        check("[s]\na=1 \\\n + \\\n 2", "[s] a=1 + 2");
    }

    #[test]
    fn sections_are_merged_and_keep_their_case() {
        check("[a]\nx=1\n[b]\ny=2\n[a]\nx=3", "[a] x=1 x=3 [b] y=2");
        check("[ A ]\n[topic= b]\n[a/b]", "[A] [topic= b] [a/b]");
    }

    #[test]
    fn a_byte_order_mark_and_any_line_end_are_read() {
        check("\u{feff}[s]\r\na=1\rb=2\n", "[s] a=1 b=2");
    }

    #[test]
    fn bytes_that_are_not_utf8_do_no_harm_in_comments_and_are_named_in_values() {
        check(b"; \xb6\xa9\xb5\xa5 \\\n[s]\na=1", "[s] a=1");
        let (got, warnings) = read(b"[s]\na=\xb6\xa9");
        assert!(got.contains('\u{fffd}'), "{got}");
        assert!(warnings.starts_with("f:2: this line holds bytes that are not UTF-8"), "{warnings}");
        // A replacement character that was written as such is not damage.
        check("[s]\na=\u{fffd}", "[s] a=\u{fffd}");
    }

    #[test]
    fn faults_name_their_line() {
        check_fault("[s]\na", "f:2: 'a' is neither key=value");
        check_fault("[s]\n! no comment", "f:2: '! no comment' is neither");
        check_fault("[s]\n = 1", "f:2: '= 1' has no key");
        check_fault("a=1\n[s]", "f:1: a stands before the first section");
        check_fault("[a] ; c", "f:1: a section header ends with ]");
        check_fault("[]", "f:1: a section needs a name");
        check_fault("[s]\na\\=b=c", "f:2: 'a\\' ends in a single");
        check_fault("[s]\na=\\u12", "f:2: \\u12 is not");
        check_fault("[s]\na=1 \\\n", "f:2: the file ends inside this line");
    }

    #[test]
    fn every_fault_is_reported_but_not_what_follows_from_it() {
        let (errors, _) = read("[s\nx=1\n[t]\ny\n=2");
        assert_eq!(errors.lines().count(), 3, "{errors}");
    }
}
