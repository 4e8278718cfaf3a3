//! A master and its slave, and what must hold between their directories.

use crate::process::{Broker, Site, wait_until};
use crate::raw::Raw;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// A slave's site with the master's topics and settings, and its own directory.
pub fn slave_site(configure: impl FnOnce(&mut Site)) -> Result<Site> {
    let mut site = Site::new()?;
    configure(&mut site);
    Ok(site)
}

/// Starts a slave that finds its master by address, as pairs without ZooKeeper do.
pub fn start_slave(site: &Site, slave_id: u32, master: &Broker) -> Result<Broker> {
    site.start_slave(&["--slave-id", &slave_id.to_string(), "--master", &master.address])
}

/// Waits until the slave can be read up to where the master can be read now.
pub fn wait_level(master: &Broker, slave: &Broker, topic: &str, partitions: i32) -> Result<()> {
    let (mut m, mut s) = (Raw::connect(&master.address)?, Raw::connect(&slave.address)?);
    for partition in 0..partitions {
        let end = match m.get(topic, partition, i64::MAX, 1024)? {
            reply if reply.code == 404 => continue,
            reply => reply.text(),
        };
        wait_until(&format!("the slave to hold {topic}-{partition} up to {end}"), || {
            let there = s.get(topic, partition, i64::MAX, 1024)?;
            Ok((there.code == 301 && there.text() == end).then_some(()))
        })?;
    }
    Ok(())
}

/// Every segment of every partition below a data path: (partition directory, file name) → bytes.
pub fn segments(data: &Path) -> Result<BTreeMap<(String, String), Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(data).with_context(|| data.display().to_string())? {
        let partition = entry?;
        let directory = partition.file_name().to_string_lossy().into_owned();
        if !partition.file_type()?.is_dir() || !directory.contains('-') {
            continue;
        }
        for file in fs::read_dir(partition.path())? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            if name.ends_with(".meta") {
                match fs::read(file.path()) {
                    Ok(bytes) => drop(all.insert((directory.clone(), name), bytes)),
                    // Retention took it between its listing and here.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error).with_context(|| file.path().display().to_string()),
                }
            }
        }
    }
    Ok(all)
}

/// The slave's segments are a prefix of the master's: same names, same bytes, no more.
pub fn assert_prefix(master: &Path, slave: &Path) -> Result<()> {
    let (master, slave) = (segments(master)?, segments(slave)?);
    for ((partition, name), bytes) in &slave {
        let Some(original) = master.get(&(partition.clone(), name.clone())) else {
            bail!("{partition}/{name} exists on the slave only");
        };
        if !original.starts_with(bytes) {
            let at = original.iter().zip(bytes).position(|(a, b)| a != b);
            bail!("{partition}/{name} differs at {at:?} (master {} bytes, slave {})", original.len(), bytes.len());
        }
        let is_last = !slave.keys().any(|(p, n)| p == partition && n > name);
        if !is_last && original.len() != bytes.len() {
            bail!("{partition}/{name} is not the slave's last segment, but shorter than the master's");
        }
    }
    Ok(())
}

/// A prefix, and nothing missing.
pub fn assert_same(master: &Path, slave: &Path) -> Result<()> {
    assert_prefix(master, slave)?;
    let bytes = |data: &Path| -> Result<usize> { Ok(segments(data)?.values().map(Vec::len).sum()) };
    let (all, copied) = (bytes(master)?, bytes(slave)?);
    if all != copied {
        bail!("the master holds {all} bytes, the slave {copied}");
    }
    Ok(())
}

/// Waits until nothing is missing any more; for logs into which nobody puts.
pub fn wait_same(master: &Path, slave: &Path) -> Result<()> {
    let mut difference = None;
    wait_until("both to hold the same", || {
        difference = assert_same(master, slave).err();
        Ok(difference.is_none().then_some(()))
    })
    .with_context(|| format!("{difference:?}"))
}
