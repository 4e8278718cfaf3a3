use clap::Parser;
use metaq_master::cli::CommonArgs;
use metaq_types::SlaveId;
use std::path::PathBuf;

/// A slave of a metaq broker id: copies the master, serves readers. Without --slave-id the same data is started as the
/// master: that is the promotion by hand.
#[derive(Parser, Clone, Debug)]
#[command(name = "metaq-slave", version, after_help = metaq_master::cli::EXIT_CODES)]
pub struct Args {
    #[command(flatten)]
    pub common: CommonArgs,

    /// Be this slave of the broker's master; without it, be the master
    #[arg(long, value_name = "N", env = "METAQ_SLAVE_ID", value_parser = parse_slave_id)]
    pub slave_id: Option<SlaveId>,

    /// The settings of a slave; a file that does not exist leaves every setting at its default
    #[arg(long, value_name = "FILE", env = "METAQ_SLAVE_CONFIG", default_value = "conf/async_slave.properties")]
    pub slave_config: PathBuf,

    /// Where the master has less than it once gave this slave (it was restored from an older copy): set that aside, cut it
    /// and go on; without this such partitions are left as they are and not copied
    #[arg(long)]
    pub accept_divergence: bool,

    /// Copy this master, whatever the registry says; needed where zk.zkEnable is false
    #[arg(long, value_name = "HOST:PORT", env = "METAQ_MASTER", value_parser = parse_master)]
    pub master: Option<String>,
}

fn parse_slave_id(text: &str) -> Result<SlaveId, String> {
    let number = text.parse().map_err(|_| format!("not a number from 0 to {}", i32::MAX))?;
    SlaveId::new(number).map_err(|error| error.to_string())
}

/// With the scheme that addresses have in ZooKeeper, or without.
fn parse_master(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("meta://").unwrap_or(text);
    let parts = address.rsplit_once(':');
    let named = parts.filter(|(host, _)| !host.is_empty() && (!host.contains(':') || host.ends_with(']')));
    match named.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(1..) => Ok(text.to_owned()),
        _ => Err("not HOST:PORT with a port from 1 to 65535; write for example 10.0.0.1:8123 or [::1]:8123".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        assert!(Args::try_parse_from(["metaq-slave", "--slave-id", "-1"]).is_err());
        let args = Args::try_parse_from(["metaq-slave", "--slave-id", "3"]).unwrap();
        assert_eq!(args.slave_id.map(SlaveId::get), Some(3));
        for good in ["a:1", "meta://10.0.0.1:8123", "[::1]:8123", "meta://[fe80::1]:65535"] {
            assert_eq!(Args::try_parse_from(["metaq-slave", "--master", good]).unwrap().master.as_deref(), Some(good));
        }
        for bad in ["", "a", ":1", "a:", "a:0", "a:65536", "::1:8123", "http://a:1/x", "a:1 "] {
            assert!(Args::try_parse_from(["metaq-slave", "--master", bad]).is_err(), "{bad}");
        }
    }
}
