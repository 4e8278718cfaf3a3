//! The original Java broker, from its published artefacts, as a child process on a free port.
//!
//! `integration/original` says how it is run; its jars are fetched once into `target/original-run` (or
//! `METAQ_ORIGINAL_DIR`) and used from there by every test.

use crate::ports::free_port;
use crate::process::{Broker, Site};
use crate::zookeeper::ZooKeeper;
use anyhow::{Context, Result, ensure};
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The session time-out of every broker beside the original: how long a killed one stays registered.
pub const SESSION_MS: u32 = 2000;

/// The old libraries look into these packages of the JDK.
const OPENED: [&str; 6] = ["java.lang", "java.util", "java.nio", "sun.nio.ch", "jdk.internal.ref", "java.net"];

/// A site for the original: fixed ports, as it registers the configured one, and its journal beside the data, as it
/// would not load all partitions otherwise (storage, "19. Hazards", H5).
pub fn site(zookeeper: &ZooKeeper) -> Result<Site> {
    let mut site = Site::new()?;
    let journal = site.path().join("journal").display().to_string();
    site.set("serverPort", &free_port()?.to_string()).set("dashboardHttpPort", &free_port()?.to_string());
    site.set("dataLogPath", &journal).set("deletePolicy", "delete,168");
    register(&mut site, zookeeper);
    Ok(site)
}

/// Lets a site, ours or the original's, share the registry with the others.
pub fn register(site: &mut Site, zookeeper: &ZooKeeper) {
    site.set_zookeeper("zk.zkEnable", "true")
        .set_zookeeper("zk.zkConnect", &zookeeper.connect())
        .set_zookeeper("zk.zkRoot", "/meta")
        .set_zookeeper("zk.zkSessionTimeoutMs", &SESSION_MS.to_string())
        .set_zookeeper("zk.zkConnectionTimeoutMs", "10000");
}

/// Starts the original on a site and returns when it serves. It does not start while a dead one is registered.
pub fn start(site: &Site) -> Result<Broker> {
    let prepared = prepare()?;
    site.write_ini()?;
    fs::create_dir_all(site.data())?;
    let show = |path: &Path| path.display().to_string();
    let classpath = format!("{}:{}/*", show(&prepared.join("classes")), show(&prepared.join("lib")));
    let log = format!("-Dlog4j.configuration=file:{}", show(&write_log_settings(site)?));
    let opened = OPENED.iter().map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED"));
    let mut command = Command::new("sh");
    // Its standard output is where it says that it is ready, and all it says belongs into one log.
    command.args(["-c", "exec java \"$@\" >&2", "java", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
    command.args(opened).arg(log).args(["-cp", &classpath, "OriginalLauncher"]).arg(site.ini_path());
    let mut broker = Broker::watch(site, "original", &mut command)?;
    let ready = broker.wait_for_line("READY port=")?;
    let port = ready.split_ascii_whitespace().find_map(|word| word.strip_prefix("port=")).context("no port")?;
    broker.address = format!("127.0.0.1:{port}");
    Ok(broker)
}

/// The directory with its jars and the launcher's classes. Tests of several processes may ask at once.
fn prepare() -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../original");
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/original-run");
    let directory = env::var_os("METAQ_ORIGINAL_DIR").map_or(target, PathBuf::from);
    fs::create_dir_all(&directory)?;
    let lock = File::create(directory.join("prepare.lock"))?;
    lock.lock()?;
    if is_prepared(&sources, &directory)? {
        return Ok(fs::canonicalize(directory)?);
    }
    let output = Command::new(sources.join("run-original.sh"))
        .arg("--dir")
        .arg(&directory)
        .arg("prepare")
        .output()
        .context("running integration/original/run-original.sh")?;
    ensure!(
        output.status.success(),
        "the original cannot be prepared: it needs mvn and javac, and Maven Central for the first time\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(fs::canonicalize(directory)?)
}

/// Preparing again would write classes that a running test may be reading.
fn is_prepared(sources: &Path, directory: &Path) -> Result<bool> {
    let compiled = fs::metadata(directory.join("classes/OriginalLauncher.class"));
    let source = fs::metadata(sources.join("launcher/OriginalLauncher.java"))?;
    let has_jars = directory.join("lib/metamorphosis-server-1.4.6.2.jar").exists();
    Ok(has_jars && compiled.is_ok_and(|compiled| compiled.modified().ok() >= source.modified().ok()))
}

fn write_log_settings(site: &Site) -> Result<PathBuf> {
    let path = site.path().join("log4j.properties");
    let settings = "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n\
                    log4j.appender.out.layout=org.apache.log4j.PatternLayout\n\
                    log4j.appender.out.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1} %m%n\n";
    fs::write(&path, settings)?;
    Ok(path)
}
