//! Before a slave's data is started as the master: what may be lost, in numbers.

use metaq_config::{BrokerConfig, Live};
use metaq_link::promotion::{Record, measure as measure_record};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::{error, info, warn};

/// Says what is known to be missing, if the data has been a slave's, and sets the record of that aside. Never stands in
/// the way of the start: whoever starts a master has decided.
pub(crate) fn measure(config: &Path) {
    // A configuration with errors is reported by the master's own start.
    let Ok(config) = BrokerConfig::load(config) else { return };
    let data_path = config.system.data_path.clone();
    let record = match Record::load(&data_path) {
        Ok(Some(record)) => record,
        Ok(None) => return,
        Err(error) => {
            error!("promotion: what the old master had more is not known: {error}");
            set_aside(&data_path);
            return;
        }
    };
    // Opening repairs torn tails, so that what is measured is what will be served; the master's start finds it clean.
    let live = Live::new(config);
    let ends = metaq_master::assembly::open_store(&live).and_then(|store| {
        let ends: BTreeMap<_, _> = store
            .partitions()
            .iter()
            .map(|partition| (partition.id().clone(), partition.positions().written))
            .collect();
        store.close()?;
        Ok(ends)
    });
    let ends = match ends {
        Ok(ends) => ends,
        Err(error) => {
            error!("promotion: cannot be measured: {error:#}");
            return;
        }
    };
    let now_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let measurement = measure_record(&record, &ends, now_unix_ms);
    for line in measurement.to_string().lines() {
        if measurement.is_level() {
            info!("{line}");
        } else {
            warn!("{line}");
        }
    }
    set_aside(&data_path);
}

fn set_aside(data_path: &Path) {
    match Record::set_aside(data_path) {
        Ok(aside) => info!("promotion: the record of it is kept as {}", aside.display()),
        Err(error) => warn!("promotion: the record of it stays where it was: {error}"),
    }
}
