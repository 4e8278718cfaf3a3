//! The slave: a broker that copies the master of its broker id and serves reads.
//!
//! [`run`] is the whole life of `metaq-slave`. With a slave id it is a read-only node with a link to the master (`serve`);
//! without one it is a promotion: the master's library runs on the same data, and says first what may be lost.
//!
//! It uses the master's steps for all that both do alike. Must never know: how bytes are stored, sent or fetched.

mod args;
mod config_sync;
mod serve;

pub use args::Args;

use metaq_config::{BrokerConfig, ConfigErrors, SlaveConfig};
use metaq_master::cli::{EXIT_CONFIG, in_words, report_config, start_logging, tell};
use metaq_types::SlaveId;
use std::process::ExitCode;
use tracing::error;

/// A slave, or a promotion, from its command line to its exit code.
pub fn run(args: &Args) -> ExitCode {
    if args.common.check_config {
        return check_config(args.common.load_config(), SlaveConfig::load(&args.slave_config), args.slave_id.is_some());
    }
    let Some(slave_id) = args.slave_id else { return metaq_master::run(&args.common) };
    let config = args.common.load_config();
    let slave = slave_config(args, slave_id);
    start_logging(args.common.log_format);
    let (config, slave) = match (config, slave) {
        (Ok(config), Ok(slave)) => (config, slave),
        (config, slave) => return check_config(config, slave, true),
    };
    for warning in &slave.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!(%error, "cannot start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve::serve(config, slave_id, slave, args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}

fn slave_config(args: &Args, slave_id: SlaveId) -> Result<SlaveConfig, ConfigErrors> {
    Ok(SlaveConfig::load(&args.slave_config)?.with_slave_id(slave_id))
}

/// Says what is wrong with either file. A start as the master does not read the second: its errors keep nobody from a
/// promotion.
fn check_config(
    config: Result<BrokerConfig, ConfigErrors>,
    slave: Result<SlaveConfig, ConfigErrors>,
    as_slave: bool,
) -> ExitCode {
    let verdict = report_config(config);
    match slave {
        Ok(slave) => {
            for warning in &slave.warnings {
                tell(&mut std::io::stderr(), format_args!("{warning}"));
            }
            verdict
        }
        Err(errors) => {
            tell(&mut std::io::stderr(), format_args!("{errors}"));
            if as_slave { ExitCode::from(EXIT_CONFIG) } else { verdict }
        }
    }
}
