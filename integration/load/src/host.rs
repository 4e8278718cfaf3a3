//! What the kernel says about this machine and about a broker's process.

use serde::Serialize;
use std::fs;

/// Ticks a second in `/proc/PID/stat`; the same on every Linux of the last twenty years.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Serialize)]
pub(crate) struct Host {
    pub(crate) processors: usize,
    processor: String,
    memory_megabytes: u64,
    kernel: String,
}

impl Host {
    pub(crate) fn look() -> Host {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
        let kernel = rustix::system::uname();
        Host {
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            processor: model.map_or_else(String::new, |(_, name)| name.to_owned()),
            memory_megabytes: kilobytes("/proc/meminfo", "MemTotal:") / 1024,
            kernel: format!("{} {}", kernel.sysname().to_string_lossy(), kernel.release().to_string_lossy()),
        }
    }
}

/// Processes running or waiting over the last 1, 5 and 15 minutes: how alone we are on this machine.
pub(crate) fn load_average() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// Processor time a process has used so far; 0 when it is gone.
pub(crate) fn busy_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program's name comes second, in parentheses, and may hold blanks.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: f64 = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SECOND
}

/// Processor time all programs of this machine have used so far, waits not counted, stolen time counted: it is no more
/// ours than what a neighbour uses.
pub(crate) fn machine_busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let times: Vec<f64> =
        stat.lines().next().unwrap_or("").split_whitespace().skip(1).filter_map(|time| time.parse().ok()).collect();
    let [user, nice, system, _idle, _disk, interrupts, soft_interrupts, stolen, ..] = times[..] else { return 0.0 };
    (user + nice + system + interrupts + soft_interrupts + stolen) / TICKS_PER_SECOND
}

pub(crate) fn resident_megabytes(pid: u32) -> f64 {
    kilobytes(&format!("/proc/{pid}/status"), "VmRSS:") as f64 / 1024.0
}

fn kilobytes(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_this_process() {
        let pid = std::process::id();
        assert!(resident_megabytes(pid) > 0.1);
        let (before, machine_before) = (busy_seconds(pid), machine_busy_seconds());
        while busy_seconds(pid) - before < 0.02 {
            std::hint::black_box(load_average());
        }
        assert!(machine_before > 0.0 && machine_busy_seconds() > machine_before);
        let host = Host::look();
        assert!(host.processors > 0 && host.memory_megabytes > 0 && host.kernel.starts_with("Linux "));
        assert_eq!(busy_seconds(u32::MAX), 0.0);
    }
}
