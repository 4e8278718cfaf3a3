//! A disk that takes its time: every sync of one process is held back, by strace, for as long as told.

use crate::process::wait_until;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The process is as it was once this is dropped.
#[derive(Debug)]
pub struct SlowDisk(Child);

impl SlowDisk {
    /// Returns when every sync of the process takes at least this long.
    pub fn attach(pid: u32, sync: Duration) -> Result<SlowDisk> {
        let delay = format!("inject=fdatasync,fsync:delay_exit={}", sync.as_micros());
        let child = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", &delay])
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run strace: apt-get install strace (scripts/test.sh does)")?;
        let mut disk = SlowDisk(child);
        let tracer = format!("TracerPid:\t{}\n", disk.0.id());
        wait_until("strace to hold the process", || {
            if let Some(status) = disk.0.try_wait()? {
                let mut said = String::new();
                if let Some(mut stderr) = disk.0.stderr.take() {
                    std::io::Read::read_to_string(&mut stderr, &mut said)?;
                }
                bail!("strace ended with {status}: {said}");
            }
            let mut threads = fs::read_dir(format!("/proc/{pid}/task"))?;
            let is_held = |thread: std::io::Result<fs::DirEntry>| {
                // A thread that has ended meanwhile needs no holding.
                let status = thread.and_then(|thread| fs::read_to_string(thread.path().join("status")));
                status.map_or(true, |status| status.contains(&tracer))
            };
            Ok(threads.all(is_held).then_some(()))
        })?;
        Ok(disk)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // On TERM it lets go of the process and ends.
        if let Some(pid) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}
