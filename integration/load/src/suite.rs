use crate::args::SuiteArgs;
use anyhow::Result;
use std::process::ExitCode;
pub(crate) fn run(_args: &SuiteArgs, _json: bool) -> Result<ExitCode> {
    anyhow::bail!("later")
}
