//! The layers that ARCHITECTURE.md draws, compared with what the crates use.
//!
//! The block begins with "```layers"; each of its lines has a number and the crates of that layer, separated by blanks:
//!
//! ```text
//! 7   slave ──► master     metaq (tool)
//! 0   types
//! ```
//!
//! A crate may use what stands on lower lines. Inside a line only along an arrow, which points at what is used. The
//! tests of any crate may use `harness`, which starts processes and knows none of our crates' insides.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const TEST_SUPPORT: &str = "harness";

const RIGHT: &str = "──►";
const LEFT: &str = "◄──";

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Layers {
    /// Crate → its line, counted from below.
    line_of: BTreeMap<String, u32>,
    /// (user, used) inside one line.
    arrows: BTreeSet<(String, String)>,
}

/// One package of the workspace and the packages of the workspace that it uses, tests included.
#[derive(Debug, PartialEq)]
pub(crate) struct Package {
    name: String,
    uses: Vec<String>,
}

impl Layers {
    pub(crate) fn parse(text: &str) -> Result<Layers> {
        let mut layers = Layers::default();
        let (_, block) = text.split_once("```layers\n").context("no block that begins with ```layers")?;
        let (block, _) = block.split_once("```").context("the block ```layers has no end")?;
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            layers.add(line).with_context(|| format!("in the line `{line}`"))?;
        }
        Ok(layers)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let mut words = line.split_whitespace().filter(|word| !word.starts_with('('));
        let number = words.next().context("it is empty")?.parse().context("it begins with no number")?;
        let mut previous: Option<&str> = None;
        let mut arrow = None;
        for word in words {
            if word == RIGHT || word == LEFT {
                arrow = Some(word);
                continue;
            }
            if self.line_of.insert(word.to_owned(), number).is_some() {
                bail!("{word} stands there twice");
            }
            if let Some(arrow) = arrow.take() {
                let previous = previous.context("an arrow has nothing on its left")?;
                let (user, used) = if arrow == RIGHT { (previous, word) } else { (word, previous) };
                self.arrows.insert((user.to_owned(), used.to_owned()));
            }
            previous = Some(word);
        }
        Ok(())
    }

    /// What contradicts the drawing, one sentence each.
    pub(crate) fn contradictions(&self, packages: &[Package]) -> Vec<String> {
        let mut found = Vec::new();
        for package in packages {
            let Some(line) = self.line_of.get(&package.name) else {
                found.push(format!("{} is in no layer of ARCHITECTURE.md", package.name));
                continue;
            };
            for used in &package.uses {
                let lower = self.line_of.get(used).is_some_and(|other| other < line);
                if !lower && !self.arrows.contains(&(package.name.clone(), used.clone())) {
                    found.push(format!("{} uses {used}, which does not lie below it in ARCHITECTURE.md", package.name));
                }
            }
        }
        let known: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
        for name in self.line_of.keys().filter(|name| !known.contains(name.as_str())) {
            found.push(format!("ARCHITECTURE.md has the layer entry `{name}`, and there is no such crate"));
        }
        found
    }
}

/// The packages of the workspace, by the names that the drawing uses: without `metaq-` in front.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked", "--offline"])
        .current_dir(root)
        .output()
        .context("cargo metadata could not be started")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    read_packages(&metadata).context("cargo metadata has changed its form")
}

fn read_packages(metadata: &Value) -> Option<Vec<Package>> {
    let mut packages = Vec::new();
    for package in metadata["packages"].as_array()? {
        let mut uses = BTreeSet::new();
        for dependency in package["dependencies"].as_array()? {
            let name = short(dependency["name"].as_str()?);
            let supports_tests = name == TEST_SUPPORT && dependency["kind"] == "dev";
            // Only crates of the workspace have a path.
            if dependency["path"].is_string() && !supports_tests {
                uses.insert(name);
            }
        }
        packages.push(Package { name: short(package["name"].as_str()?), uses: uses.into_iter().collect() });
    }
    Some(packages)
}

fn short(name: &str) -> String {
    name.strip_prefix("metaq-").unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, uses: &[&str]) -> Package {
        Package { name: name.to_owned(), uses: uses.iter().map(|used| (*used).to_owned()).collect() }
    }

    fn check(block: &str, packages: &[Package], expect: &[&str]) {
        let layers = Layers::parse(&format!("text\n```layers\n{block}\n```\n")).unwrap();
        assert_eq!(layers.contradictions(packages), expect, "for {block}");
    }

    #[test]
    fn uses_go_down_or_along_an_arrow() {
        let block = "2 slave ──► master   metaq (tool)\n1 store ◄── txn\n0 types";
        let good = [
            package("slave", &["master", "store", "types"]),
            package("master", &["store"]),
            package("metaq", &["types"]),
            package("txn", &["store"]),
            package("store", &["types"]),
            package("types", &[]),
        ];
        check(block, &good, &[]);
    }

    #[test]
    fn every_contradiction_is_named() {
        check(
            "1 store ◄── txn\n0 types",
            &[package("store", &["txn"]), package("txn", &[]), package("types", &[])],
            &["store uses txn, which does not lie below it in ARCHITECTURE.md"],
        );
        check(
            "1 store\n0 types",
            &[package("store", &[]), package("types", &["store"])],
            &["types uses store, which does not lie below it in ARCHITECTURE.md"],
        );
        check(
            "1 store\n0 types",
            &[package("store", &["net"]), package("net", &[])],
            &[
                "store uses net, which does not lie below it in ARCHITECTURE.md",
                "net is in no layer of ARCHITECTURE.md",
                "ARCHITECTURE.md has the layer entry `types`, and there is no such crate",
            ],
        );
    }

    #[test]
    fn a_malformed_block_is_an_error() {
        for text in ["no block", "```layers\n1 a", "```layers\nx a\n```", "```layers\n1 a\n0 a\n```"] {
            assert!(Layers::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_lose_their_prefix_and_test_support_does_not_count() {
        let metadata = serde_json::json!({"packages": [{"name": "metaq-store", "dependencies": [
            {"name": "metaq-types", "path": "/x"}, {"name": "metaq-harness", "path": "/x", "kind": "dev"},
            {"name": "bytes", "path": null}]}, {"name": "metaq", "dependencies": []}]});
        assert_eq!(read_packages(&metadata), Some(vec![package("store", &["types"]), package("metaq", &[])]));
    }
}
