//! A certificate authority for a cluster, in files, and certificates for its nodes. Nothing here talks to a broker.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use metaq_net::certs::{is_host, now_unix, read_certificates, verify};
use metaq_net::{Facts, cluster_id, facts};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::Serialize;
use time::{Duration, OffsetDateTime};

use crate::show::{self, Format, escape, json};

/// Clocks of nodes may differ by this.
const BACKDATED: Duration = Duration::hours(1);

const CA_CERTIFICATE: &str = "ca.pem";
const CA_KEY: &str = "ca.key";

#[derive(Subcommand)]
pub(crate) enum CertCommand {
    /// Make the authority of a cluster: ca.pem, which every node gets, and ca.key, which none does
    Init(InitArgs),
    /// Make the certificate and key of one node
    Issue(IssueArgs),
    /// What a certificate says, and for how long
    Show(ShowArgs),
}

#[derive(Args)]
pub(crate) struct InitArgs {
    /// Where ca.pem and ca.key are written; keep it away from the nodes
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,

    /// What the cluster is called; it stands in every certificate
    #[arg(long, value_name = "NAME")]
    cluster: String,

    /// How long the authority is good for
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

#[derive(Args)]
pub(crate) struct IssueArgs {
    /// Where ca.pem and ca.key are
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,

    /// Where NAME.pem and NAME.key are written; the directory of the authority by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// A host name or address the node is reached by; every one, the advertised above all
    #[arg(long = "host", value_name = "HOST", required = true)]
    hosts: Vec<String>,

    /// What the node is called; names the files
    #[arg(long, value_name = "NAME")]
    name: String,

    /// How long the certificate is good for, and no longer than its authority
    #[arg(long, value_name = "DAYS", default_value_t = 397, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// A certificate in PEM
    file: PathBuf,

    /// The authority to check it against; ca.pem beside FILE by default
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

pub(crate) fn run(command: &CertCommand, format: Format) -> anyhow::Result<()> {
    match command {
        CertCommand::Init(args) => init(args, format),
        CertCommand::Issue(args) => issue(args, format),
        CertCommand::Show(args) => show(&args.file, args.ca.as_deref(), format),
    }
}

fn init(args: &InitArgs, format: Format) -> anyhow::Result<()> {
    check_name("--cluster", &args.cluster)?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = name(&format!("{} authority", args.cluster), &args.cluster);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - BACKDATED, now + Duration::days(args.days.into()));
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    std::fs::create_dir_all(&args.dir).with_context(|| format!("cannot make {}", args.dir.display()))?;
    let file = args.dir.join(CA_CERTIFICATE);
    write_pair(&file, &certificate.pem(), &args.dir.join(CA_KEY), &key.serialize_pem())?;
    show(&file, Some(&file), format)
}

fn issue(args: &IssueArgs, format: Format) -> anyhow::Result<()> {
    check_name("--name", &args.name)?;
    if args.name == "ca" {
        bail!("'ca' is the name of the authority's own files; choose another --name");
    }
    if let Some(host) = args.hosts.iter().find(|host| !is_host(host)) {
        bail!(
            "--host {host:?}: write a name as in node-a.example.org or an address as in 10.0.0.1 or fd00::1, without \
             brackets, scheme or port; give --host again for each"
        );
    }
    let (ca_file, ca_key_file) = (args.dir.join(CA_CERTIFICATE), args.dir.join(CA_KEY));
    let ca_pem = std::fs::read_to_string(&ca_file)
        .with_context(|| format!("cannot read {}; make it with 'metaq cert init'", ca_file.display()))?;
    let ca_key = std::fs::read_to_string(&ca_key_file).with_context(|| {
        format!("cannot read {}; certificates are issued where the authority's key is kept", ca_key_file.display())
    })?;
    let ca_facts = first_facts(&ca_file)?;
    let issuer = Issuer::from_ca_cert_pem(&ca_pem, KeyPair::from_pem(&ca_key)?)?;

    let hosts: BTreeSet<&String> = args.hosts.iter().collect();
    let mut params = CertificateParams::new(hosts.into_iter().cloned().collect::<Vec<_>>())?;
    params.distinguished_name = name(&args.name, cluster_name(&ca_facts));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let (now, ca_end) = (OffsetDateTime::now_utc(), OffsetDateTime::from_unix_timestamp(ca_facts.not_after_unix)?);
    if ca_end <= now {
        bail!("the authority in {} has expired: a new one has to be made and spread first", ca_file.display());
    }
    (params.not_before, params.not_after) = (now - BACKDATED, (now + Duration::days(args.days.into())).min(ca_end));
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    let out = args.out.as_ref().unwrap_or(&args.dir);
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let file = out.join(format!("{}.pem", args.name));
    write_pair(&file, &certificate.pem(), &out.join(format!("{}.key", args.name)), &key.serialize_pem())?;
    show(&file, Some(&ca_file), format)
}

fn name(common: &str, organization: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, organization);
    name.push(DnType::CommonName, common);
    name
}

/// The organization in the authority's subject, where `init` put it.
fn cluster_name(ca: &Facts) -> &str {
    ca.subject.split(", ").find_map(|part| part.strip_prefix("O=")).unwrap_or("metaq")
}

/// Names go into files and subjects.
fn check_name(option: &str, name: &str) -> anyhow::Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(fits) {
        bail!("{option} {name:?}: write up to 64 letters, digits, '-', '_' and '.', not beginning with '.'");
    }
    Ok(())
}

/// Writes both files, neither of which may exist.
fn write_pair(certificate_file: &Path, certificate: &str, key_file: &Path, key: &str) -> anyhow::Result<()> {
    for file in [certificate_file, key_file] {
        if file.exists() {
            bail!("{} exists and is not overwritten; choose another --out or --name, or move it away", file.display());
        }
    }
    write_new(key_file, key, 0o600)?;
    write_new(certificate_file, certificate, 0o644)
}

fn write_new(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).and_then(|mut file: File| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// What `show` says.
#[derive(Serialize)]
struct Shown {
    file: String,
    subject: String,
    issuer: String,
    names: Vec<String>,
    authority: bool,
    not_before: String,
    not_after: String,
    days_left: i64,
    /// `None` when no authority could be read.
    cluster_id: Option<String>,
    /// Why the authority does not vouch for it.
    fault: Option<String>,
}

fn show(file: &Path, ca: Option<&Path>, format: Format) -> anyhow::Result<()> {
    let chain = read_certificates(file)?;
    let facts = first_facts(file)?;
    let beside = file.with_file_name(CA_CERTIFICATE);
    let ca = ca.map(Path::to_owned).or_else(|| beside.exists().then_some(beside));
    let (mut id, mut fault) = (None, None);
    if facts.is_authority {
        id = Some(cluster_id(&chain[0]).map_err(anyhow::Error::msg)?);
    } else if let Some(ca) = ca {
        let authorities = read_certificates(&ca)?;
        match authorities.iter().find(|authority| verify(&chain, authority, now_unix()).is_ok()) {
            Some(authority) => id = Some(cluster_id(authority).map_err(anyhow::Error::msg)?),
            None => fault = authorities.first().and_then(|authority| verify(&chain, authority, now_unix()).err()),
        }
    }
    let shown = Shown {
        file: file.display().to_string(),
        days_left: facts.days_left(now_unix()),
        subject: facts.subject,
        issuer: facts.issuer,
        names: facts.names,
        authority: facts.is_authority,
        not_before: date(facts.not_before_unix),
        not_after: date(facts.not_after_unix),
        cluster_id: id,
        fault,
    };
    print(&shown, format)
}

fn print(shown: &Shown, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return show::print(&json(shown)?);
    }
    let mut lines = Vec::new();
    let mut line = |title: &str, text: &str| lines.push(format!("{title:<12}{}", escape(text.as_bytes())));
    line("file", &shown.file);
    line("subject", &shown.subject);
    line("issuer", &shown.issuer);
    line("names", if shown.names.is_empty() { "-".to_owned() } else { shown.names.join(", ") }.as_str());
    line("valid", &format!("{} to {}, {} days left", shown.not_before, shown.not_after, shown.days_left));
    line("cluster id", shown.cluster_id.as_deref().unwrap_or("-"));
    if let Some(fault) = &shown.fault {
        line("fault", &format!("the authority does not vouch for it: {fault}"));
    }
    show::print(&lines.join("\n"))
}

fn date(unix: i64) -> String {
    OffsetDateTime::from_unix_timestamp(unix).map_or_else(|_| unix.to_string(), |at| at.date().to_string())
}

fn first_facts(file: &Path) -> anyhow::Result<Facts> {
    let certificates = read_certificates(file)?;
    facts(&certificates[0]).map_err(|reason| anyhow::anyhow!("{} is no certificate: {reason}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn init_in(dir: &Path) -> anyhow::Result<()> {
        init(&InitArgs { dir: dir.to_owned(), cluster: "orders".to_owned(), days: 3650 }, Format::Json)
    }

    fn issue_in(dir: &Path, name: &str, days: u32) -> anyhow::Result<()> {
        let hosts = vec!["node-a".to_owned(), "10.0.0.1".to_owned(), "::1".to_owned()];
        issue(&IssueArgs { dir: dir.to_owned(), out: None, hosts, name: name.to_owned(), days }, Format::Json)
    }

    #[test]
    fn what_is_issued_is_what_nodes_take() {
        let dir = tempfile::tempdir().unwrap();
        init_in(dir.path()).unwrap();
        issue_in(dir.path(), "node-a", 397).unwrap();
        let at = |name: &str| dir.path().join(name);
        let files = metaq_net::certs::CertFiles {
            certificate: at("node-a.pem"),
            key: at("node-a.key"),
            authorities: at(CA_CERTIFICATE),
        };
        let identity = metaq_net::certs::Identity::load(files).unwrap();
        let current = identity.current();
        assert_eq!(current.facts.names, ["10.0.0.1", "::1", "node-a"]);
        assert_eq!(current.facts.subject, "O=orders, CN=node-a");
        assert!((396..=397).contains(&current.facts.days_left(now_unix())));
        let authority = read_certificates(&at(CA_CERTIFICATE)).unwrap();
        assert_eq!(current.cluster_id, cluster_id(&authority[0]).unwrap());
    }

    #[test]
    fn keys_are_private_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        init_in(dir.path()).unwrap();
        issue_in(dir.path(), "n", 10).unwrap();
        for key in [CA_KEY, "n.key"] {
            let mode = std::fs::metadata(dir.path().join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        for again in [init_in(dir.path()), issue_in(dir.path(), "n", 10)] {
            let error = again.unwrap_err().to_string();
            assert!(error.contains("not overwritten"), "{error}");
        }
        assert!(issue_in(dir.path(), "ca", 10).is_err());
        assert!(issue_in(dir.path(), "../n", 10).is_err());
    }

    #[test]
    fn hosts_that_nobody_can_ask_for_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        init_in(dir.path()).unwrap();
        let issue_for = |host: &str| {
            let (out, name) = (Some(dir.path().join("out")), "n".to_owned());
            issue(
                &IssueArgs { dir: dir.path().to_owned(), out, hosts: vec![host.to_owned()], name, days: 1 },
                Format::Json,
            )
        };
        for host in ["", "a b", "https://a", "a:8123", "[::1]", "10.0.0.1/8", "10.0.0.1,10.0.0.2", "a..b"] {
            let error = issue_for(host).unwrap_err().to_string();
            assert!(error.contains(&format!("--host {host:?}")) && error.contains("fd00::1"), "{error}");
        }
        assert!(!dir.path().join("out").exists());
        issue_for("*.example.org").unwrap();
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let dir = tempfile::tempdir().unwrap();
        init(&InitArgs { dir: dir.path().to_owned(), cluster: "c".to_owned(), days: 5 }, Format::Table).unwrap();
        issue_in(dir.path(), "n", 100).unwrap();
        let end = |name: &str| first_facts(&dir.path().join(name)).unwrap().not_after_unix;
        assert_eq!(end("n.pem"), end(CA_CERTIFICATE));
    }
}
