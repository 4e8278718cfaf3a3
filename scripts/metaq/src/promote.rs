//! `metaq promote --dry-run`: what a promotion of this node would find, wait for and lose, before anything is changed.
//!
//! The promotion itself is the start of the slave's data without `--slave-id`; this only looks, by the same measure.

mod gather;
mod page;
mod quorum;
mod report;

use std::process::ExitCode;

use clap::Args;

use crate::EXIT_USAGE;
use crate::cluster::Place;
use crate::show::{self, Format};

#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 nothing is known to be missing; 10 something is or may be missing, the page says \
                        what; 20 the promotion would be refused, the page says why; 1 this could not be found out.\n\
                        The promotion itself is 'metaServer.sh restart' on the slave's machine, or 'metaq-slave --config \
                        FILE' without --slave-id, on the same data."
)]
pub(crate) struct PromoteArgs {
    /// Only look: nothing is changed by this command
    #[arg(long)]
    dry_run: bool,

    /// Judge as the start with --accept-loss would
    #[arg(long)]
    accept_loss: bool,

    /// Judge as the start with --accept-gap would
    #[arg(long)]
    accept_gap: bool,
}

/// What the operator would grant to the start.
#[derive(Clone, Copy, Debug, Default)]
struct Consent {
    loss: bool,
    gap: bool,
}

pub(crate) async fn run(place: &Place, args: &PromoteArgs, format: Format) -> anyhow::Result<ExitCode> {
    if !args.dry_run {
        show::say(
            "metaq: this command promotes nobody. What a promotion would find and lose: metaq promote --dry-run. To promote: \
             'scripts/metaServer.sh restart' on the slave's machine, or stop the slave and start 'metaq-slave --config FILE' \
             without --slave-id",
        );
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    let facts = gather::gather(place).await?;
    let report = report::judge(&facts, Consent { loss: args.accept_loss, gap: args.accept_gap });
    show::print(&match format {
        Format::Json => show::json(&report)?,
        Format::Table => page::text(&report),
    })?;
    Ok(ExitCode::from(report.exit_code))
}
