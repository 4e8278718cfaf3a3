//! What compilers do not check: the layers, words that have no place in the tree, files that have grown too long, and
//! names of files in ARCHITECTURE.md that are no longer there.

use crate::layers::{Layers, packages};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A file beyond it is told, and does not fail the check: sometimes one noun needs the room.
const LINES_MAX: usize = 600;

/// Directories without sources of ours.
const LEFT_OUT: [&str; 4] = ["target", ".git", "data", "logs"];

/// Texts that may stand nowhere, and why. Split in two, so that this list does not find itself.
const NOWHERE: [(&str, &str, &str); 2] =
    [("../", "shared", "the repository stands alone"), ("/work", "/main", "no path of one particular machine")];

/// Texts that may not stand in Rust code, and what to write instead.
const NOT_IN_RUST: [(&str, &str, &str); 8] = [
    ("#[", "allow(", "write #[expect(…, reason = \"…\")]"),
    ("#![", "allow(", "write #![expect(…, reason = \"…\")]"),
    ("#[", "ignore", "a test runs or is deleted"),
    ("dbg", "!(", "log it, or leave it out"),
    ("todo", "!(", "finish it, or return an error that says so"),
    ("unimplemented", "!(", "finish it, or return an error that says so"),
    ("unbounded", "_channel", "every queue has a bound"),
    ("lazy", "_static", "no global state"),
];

/// Ends of type and module names that name no noun.
const EMPTY_NAMES: [&str; 5] = ["Manager", "Processor", "Utils", "Helper", "Helpers"];

/// Prints what it finds; `true` when there is nothing to mend.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let mut files = Vec::new();
    walk(root, &mut files)?;
    let mut findings = Vec::new();
    for path in &files {
        // Recorded data and jars are no text.
        let Ok(text) = fs::read_to_string(path) else { continue };
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        findings.extend(in_text(&name, &text));
        let lines = text.lines().count();
        if name.ends_with(".rs") && lines > LINES_MAX {
            println!("tidy: note: {name} has {lines} lines; does it hold a second noun?");
        }
    }
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).context("ARCHITECTURE.md cannot be read")?;
    findings.extend(Layers::parse(&map).context("ARCHITECTURE.md")?.contradictions(&packages(root)?));
    findings.extend(missing_files(&map, &files));
    for finding in &findings {
        eprintln!("tidy: {finding}");
    }
    Ok(findings.is_empty())
}

fn walk(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("{} cannot be read", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        let left_out = LEFT_OUT.iter().any(|name| entry.file_name() == *name);
        if kind.is_dir() && !left_out {
            walk(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn in_text(name: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut found = |what: &str, why: &str| findings.push(format!("{name}:{}: `{what}`: {why}", number + 1));
        for (first, second, why) in NOWHERE {
            if contains(line, first, second) {
                found(&format!("{first}{second}"), why);
            }
        }
        if !name.ends_with(".rs") {
            continue;
        }
        for (first, second, instead) in NOT_IN_RUST {
            if contains(line, first, second) && !(second == "allow(" && shared_by_tests(name, line)) {
                found(&format!("{first}{second}"), instead);
            }
        }
        if let Some(empty) = empty_name(line) {
            found(empty, "name the noun");
        }
    }
    findings
}

/// A module that several test files include is used by each of them in part: what one expects, another does not.
fn shared_by_tests(name: &str, line: &str) -> bool {
    name.contains("/tests/") && name.ends_with("/mod.rs") && line.contains("reason =")
}

fn contains(line: &str, first: &str, second: &str) -> bool {
    line.match_indices(first).any(|(at, _)| line[at + first.len()..].starts_with(second))
}

/// The declared name of the line, where it says nothing.
fn empty_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
    let (keyword, rest) = line.split_once(' ')?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let name = &rest[..end];
    let empty = match keyword {
        "struct" | "enum" | "trait" => EMPTY_NAMES.iter().any(|end| name.ends_with(end)),
        "mod" => ["util", "utils", "helper", "helpers", "misc"].contains(&name),
        _ => false,
    };
    empty.then_some(name)
}

/// The Rust files that the map names and that are nowhere in the tree.
fn missing_files(map: &str, files: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<&str> = map
        .split(|c: char| !c.is_alphanumeric() && !"_-./".contains(c))
        .filter(|word| word.ends_with(".rs") && *word != ".rs" && !word.contains("NAME"))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| {
        let (directory, file) = name.rsplit_once('/').unwrap_or(("", name));
        !files.iter().any(|path| {
            path.file_name().is_some_and(|it| it == file)
                && path.components().any(|part| directory.is_empty() || part.as_os_str() == directory)
        })
    });
    names.iter().map(|name| format!("ARCHITECTURE.md names {name}, and there is no such file")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, line: &str, expect: &str) {
        let found = in_text(name, line).join("\n");
        assert!(found.contains(expect) && found.is_empty() == expect.is_empty(), "{line}: {found}");
    }

    #[test]
    fn words_are_found_where_they_may_not_stand() {
        check("README.md", concat!("see ..", "/shared/x"), "README.md:1:");
        check("a.rs", concat!("#[all", "ow(dead_code)]"), "#[expect(");
        check("x/tests/common/mod.rs", concat!("#![all", "ow(dead_code, reason = \"shared\")]"), "");
        check("a.md", concat!("#[all", "ow(dead_code)]"), "");
        check("a.rs", "pub struct TopicManager {", "`TopicManager`");
        check("a.rs", "pub(crate) mod helpers;", "`helpers`");
        check("a.rs", "struct Managers;", "");
        check("a.rs", "// a Manager", "");
    }

    #[test]
    fn file_names_of_the_map_are_looked_up() {
        let files = [PathBuf::from("/r/common/wire/src/decode.rs"), PathBuf::from("/r/master/src/lib.rs")];
        assert!(missing_files("`wire/decode.rs`, lib.rs, *.rs", &files[..]).is_empty());
        assert_eq!(missing_files("`store/decode.rs`; gone.rs", &files[..]).len(), 2);
    }
}
