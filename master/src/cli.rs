//! The command line that master and slave share, and the exit codes.

use crate::reign::Consent;
use clap::error::ErrorKind;
use clap::{Args, Parser, ValueEnum};
use metaq_config::{BrokerConfig, ConfigErrors};
use metaq_types::limits::ACK_QUORUM_MAX;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// A configuration that cannot be used (EX_CONFIG of sysexits.h).
pub const EXIT_CONFIG: u8 = 78;

pub const EXIT_CODES: &str = "\
Signals: SIGTERM and SIGINT stop in order (unregister, let clients leave, sync); SIGHUP reloads the topics of the \
configuration; SIGQUIT, SIGUSR1 and SIGUSR2 change nothing.
Exit codes: 0 stopped in order; 1 could not start or go on (the last lines say why and what to do); 2 the command line \
is wrong; 78 the configuration has errors, each printed as file:line: message.
What stands behind env: can be given in the environment; an option wins. METAQ_LOG there chooses what is logged: info, \
debug, or levels for parts of the program, as in metaq_store=debug,info.";

#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// The broker's configuration
    #[arg(long, value_name = "FILE", env = "METAQ_CONFIG", default_value = "conf/server.ini")]
    pub config: PathBuf,

    /// Check the configuration, print every error, and exit: 0 when it is good, 78 when not
    #[arg(long)]
    pub check_config: bool,

    /// Serve a registry of our own on the loopback port that zk.zkConnect names; for a first look, not for production
    #[arg(long, env = "METAQ_LOCAL")]
    pub local: bool,

    /// Reign although another node reigned last that this data does not know: what was stored there is lost
    #[arg(long)]
    pub accept_loss: bool,

    /// Reign although ranges are missing inside the logs
    #[arg(long)]
    pub accept_gap: bool,

    /// Members that must hold a message before it is acknowledged, this one included; stands in for ackQuorum of the system section
    #[arg(long, value_name = "N", env = "METAQ_ACK_QUORUM", value_parser = clap::value_parser!(u32).range(1..=i64::from(ACK_QUORUM_MAX)))]
    pub ack_quorum: Option<u32>,

    /// How log lines are written to standard error
    #[arg(long, value_enum, env = "METAQ_LOG_FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

impl CommonArgs {
    pub fn consent(&self) -> Consent {
        Consent { loss: self.accept_loss, gap: self.accept_gap }
    }

    /// The configuration as the command line changes it.
    pub fn load_config(&self) -> Result<BrokerConfig, ConfigErrors> {
        let config = BrokerConfig::load(&self.config)?;
        Ok(match self.ack_quorum {
            Some(quorum) => config.with_ack_quorum(quorum),
            None => config,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Without METAQ_LOG. The ZooKeeper library tells at `info` what its connection does; what it means for the broker we say.
const LEVELS: &str = "info,zookeeper_client=warn";

/// Log lines go to standard error; METAQ_LOG chooses levels, `info` for example (`debug`, `metaq_store=debug,info`).
pub fn start_logging(format: LogFormat) {
    let asked = std::env::var("METAQ_LOG").unwrap_or_default();
    let (levels, wrong) = match tracing_subscriber::EnvFilter::try_new(if asked.is_empty() { LEVELS } else { &asked }) {
        Ok(levels) => (levels, None),
        Err(error) => (tracing_subscriber::EnvFilter::new(LEVELS), Some(error)),
    };
    // A line that cannot be written is lost: telling so, on the same full disk, would end the process.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(levels)
        .with_writer(std::io::stderr)
        .with_target(false)
        .log_internal_errors(false);
    // A second start in one process (tests) keeps the first subscriber.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    if let Some(error) = wrong {
        tracing::warn!(
            "METAQ_LOG={asked} is not understood ({error}) and means info; write for example metaq_store=debug,info"
        );
    }
}

/// The command line; an error is the exit code of a process that has nothing more to do.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        let printed = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => printed_all(printed),
            _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX)),
        }
    })
}

/// The exit code of who was asked to print something, and did nothing else. A reader that has gone had what it wanted.
fn printed_all(printed: io::Result<()>) -> ExitCode {
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            tell(&mut io::stderr(), format_args!("standard output cannot be written: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Prints the verdict of `--check-config`.
pub fn report_config(checked: Result<metaq_config::BrokerConfig, metaq_config::ConfigErrors>) -> ExitCode {
    match checked {
        Ok(config) => {
            for warning in &config.warnings {
                tell(&mut io::stderr(), format_args!("{warning}"));
            }
            let (path, topics, checksum) = (config.path.display(), config.topics.len(), config.checksum);
            let mut out = io::stdout().lock();
            let printed = writeln!(out, "{path}: ok, {topics} topics, checksum {checksum}").and_then(|()| out.flush());
            printed_all(printed)
        }
        Err(errors) => {
            tell(&mut io::stderr(), format_args!("{errors}"));
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

/// One line; with nobody to read it, or no room where it goes, the exit code alone has to do.
pub fn tell(to: &mut impl Write, line: fmt::Arguments<'_>) {
    let _ = writeln!(to, "{line}");
}

/// An error with its causes, less those that the text before tells already.
pub fn in_words(error: &anyhow::Error) -> String {
    let mut words = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !words.ends_with(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words
}
