//! Certificates for brokers under test, made by the operator's tool.

use crate::process::{Site, binary_path};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cluster's authority, in a directory of its own.
#[derive(Debug)]
pub struct Authority {
    dir: tempfile::TempDir,
}

/// What a node is configured with.
#[derive(Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authorities: PathBuf,
}

impl Authority {
    pub fn new(cluster: &str) -> Result<Authority> {
        let authority = Authority { dir: tempfile::tempdir()? };
        authority.cert(&["init", "--cluster", cluster])?;
        Ok(authority)
    }

    /// The certificate and key of a node on this machine.
    pub fn issue(&self, name: &str) -> Result<Files> {
        self.issue_at(name, "127.0.0.1")
    }

    /// The certificate and key of a node that is reached at `host`.
    pub fn issue_at(&self, name: &str, host: &str) -> Result<Files> {
        self.cert(&["issue", "--host", host, "--name", name])?;
        Ok(self.files(name))
    }

    /// Where a node's files are, or will be.
    pub fn files(&self, name: &str) -> Files {
        Files {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            authorities: self.path("ca.pem"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn cert(&self, arguments: &[&str]) -> Result<()> {
        let (verb, rest) = arguments.split_first().context("a verb")?;
        let output = Command::new(binary_path("metaq")?)
            .args(["cert", verb, "--dir"])
            .arg(self.dir.path())
            .args(rest)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Files {
    pub fn configure(&self, site: &mut Site) {
        let shown = |path: &Path| path.display().to_string();
        site.set("tlsCertFile", &shown(&self.certificate));
        site.set("tlsKeyFile", &shown(&self.key));
        site.set("tlsCaFile", &shown(&self.authorities));
    }
}
