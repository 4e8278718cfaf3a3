//! Field cases of the disk: F18, F24.

use anyhow::Result;
use metaq_harness::process::{Broker, Site, wait_until};
use metaq_harness::raw::Raw;
use std::fs;
use std::path::PathBuf;

/// F18: a torn last record is cut at its boundary, a copy of the rest is kept, and the log names both.
#[test]
fn f18_a_torn_last_record_is_set_aside() -> Result<()> {
    let site = Site::new()?;
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    for body in [&b"first"[..], b"second", b"third"] {
        raw.put("test", 0, body)?.stored()?;
    }
    drop(raw);
    broker.kill()?;
    let partition = site.data().join("test-0");
    let segment = partition.join("00000000000000000000.meta");
    let whole = fs::read(&segment)?;
    assert_eq!(whole.len(), 25 + 26 + 25);
    // Each cut of the last record, coarsely, as each start costs a process; the store's own test tries every byte.
    for cut in [1, 4, 5, 6, 20, 24] {
        fs::write(&segment, &whole[..whole.len() - cut])?;
        let broker = site.start_master(&[])?;
        let log = broker.log_text();
        let mut raw = Raw::connect(&broker.address)?;
        let bodies: Vec<_> = raw.read_all("test", 0, 0)?.into_iter().map(|r| r.body).collect();
        assert_eq!(bodies, [b"first".to_vec(), b"second".to_vec()]);
        assert_eq!(raw.put("test", 0, b"new")?.stored()?.offset, 51);
        let torn = newest_torn(&partition)?;
        assert_eq!(fs::read(&torn)?, whole[51..whole.len() - cut]);
        let name = torn.file_name().expect("a file").to_string_lossy().into_owned();
        let line = log.lines().find(|line| line.contains(&name)).expect("one line names the copy");
        assert!(line.contains(&(25 - cut).to_string()), "and how much was cut: {line}");
        drop(raw);
        broker.kill()?;
    }
    Ok(())
}

fn newest_torn(partition: &std::path::Path) -> Result<PathBuf> {
    let mut torn: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir(partition)? {
        let path = entry?.path();
        if let Some((_, number)) = path.to_string_lossy().rsplit_once(".torn-") {
            torn.push((number.parse()?, path.clone()));
        }
    }
    torn.sort();
    Ok(torn.pop().expect("a set-aside file").1)
}

/// F24: a full disk is answered, leaves nothing partial, and is over when there is room again.
#[test]
fn f24_a_full_disk_is_an_answer_and_passes() -> Result<()> {
    for threshold in ["0", "1000"] {
        let mut site = Site::new()?;
        site.set("unflushThreshold", threshold).data_on_tmpfs(16)?;
        let mut broker = site.start_master(&[])?;
        let filler = inside(&broker, &site.data()).join("filler");
        fs::write(&filler, vec![0; 8 << 20])?;
        let mut raw = Raw::connect(&broker.address)?;
        let body = vec![b'x'; 100_000];
        let mut stored = 0;
        let refusal = loop {
            let reply = raw.put("test", 0, &body)?;
            if reply.code != 200 {
                break reply;
            }
            stored += 1;
            assert!(stored < 1000, "the disk never fills");
        };
        assert!(refusal.code >= 500, "{}", refusal.text());
        assert!(refusal.text().contains("disk full"), "{}", refusal.text());
        assert_eq!(raw.put("test", 0, &body)?.code, refusal.code, "and again");
        broker.wait_for_line("the disk is full: appends are refused")?;
        assert_eq!(raw.ask("stats")?.code, 200);
        let end = stored * 100_020;
        wait_until("all of it to be readable", || {
            Ok((raw.read_all("test", 0, 0)?.len() as u64 == stored).then_some(()))
        })?;
        fs::remove_file(&filler)?;
        assert_eq!(raw.put("test", 0, &body)?.stored()?.offset, end, "the first put after space returns succeeds");
        broker.wait_for_line("there is space on the disk again")?;
        wait_until("the new one to be readable", || {
            Ok((raw.read_all("test", 0, 0)?.len() as u64 == stored + 1).then_some(()))
        })?;
        let segment = inside(&broker, &site.data()).join("test-0/00000000000000000000.meta");
        assert_eq!(fs::metadata(segment)?.len(), end + 100_020, "no partial record is left behind");
    }
    Ok(())
}

/// F24: with a floor for free space, puts are refused before the disk is full, and reads go on.
#[test]
fn f24_a_floor_of_free_space_refuses_before_the_disk_is_full() -> Result<()> {
    let mut site = Site::new()?;
    site.set("minFreeDiskBytes", "4*1024*1024").data_on_tmpfs(16)?;
    let mut broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    raw.put("test", 0, b"before")?.stored()?;
    let filler = inside(&broker, &site.data()).join("filler");
    fs::write(&filler, vec![0; 13 << 20])?;
    broker.wait_for_line("puts are refused")?;
    let reply = raw.put("test", 0, b"x")?;
    assert_eq!(reply.code, 503);
    assert!(reply.text().contains("minFreeDiskBytes"), "{}", reply.text());
    assert_eq!(raw.read_all("test", 0, 0)?.len(), 1);
    fs::remove_file(&filler)?;
    broker.wait_for_line("puts are accepted")?;
    raw.put("test", 0, b"after")?.stored()?;
    Ok(())
}

/// F24: a broker that is started again because its disk is full serves what it has, and goes on by itself.
#[test]
fn f24_a_start_on_a_full_disk_serves_reads_and_waits_for_room() -> Result<()> {
    let mut site = Site::new()?;
    let broker = site.start_master(&[])?;
    Raw::connect(&broker.address)?.put("test", 0, b"before")?.stored()?;
    broker.kill()?;
    let (data, seed) = (site.data(), site.path().join("seed"));
    fs::rename(&data, &seed)?;
    fs::create_dir(&data)?;
    let (data_text, seed_text) = (data.display(), seed.display());
    let script = format!(
        "mount -t tmpfs -o size=8m tmpfs {data_text} && cp -a {seed_text}/. {data_text} && \
         {{ head -c 64M /dev/zero > {data_text}/filler 2> {seed_text}/said; exec \"$0\" \"$@\"; }}"
    );
    site.launch_by(["unshare", "--map-root-user", "--mount", "sh", "-c", &script].map(String::from).to_vec());
    let mut broker = Broker::spawn(&site, "metaq-master", &[])?;
    let line = broker.wait_for_line("advertised address")?;
    broker.wait_for_line("the disk is full")?;
    let address = line.split("meta://").nth(1).and_then(|rest| rest.split('"').next()).expect("the line has it");
    let mut raw = Raw::connect(address)?;
    assert_eq!(raw.read_all("test", 0, 0)?.len(), 1);
    let reply = raw.put("test", 0, b"x")?;
    assert_eq!(reply.code, 503);
    assert!(reply.text().contains("not stored") && reply.text().contains("its disk is full"), "{}", reply.text());
    let other = Site::new()?;
    other.start_slave(&["--slave-id", "0", "--master", address])?.wait_for_line("its disk is full")?;
    fs::remove_file(inside(&broker, &data).join("filler"))?;
    broker.wait_for_line("serving as master")?;
    raw.put("test", 0, b"after")?.stored()?;
    Ok(())
}

/// A topic with a data path of its own is refused for the room there, and no other is.
#[test]
fn the_floor_of_free_space_is_that_of_a_topics_own_disk() -> Result<()> {
    let mut site = Site::new()?;
    let own = site.path().join("own");
    fs::create_dir(&own)?;
    let own_text = own.display().to_string();
    site.set("minFreeDiskBytes", "4*1024*1024").topic("own", &[("dataPath", &own_text)]);
    let script = format!("mount -t tmpfs -o size=8m tmpfs {own_text} && exec \"$0\" \"$@\"");
    site.launch_by(["unshare", "--map-root-user", "--mount", "sh", "-c", &script].map(String::from).to_vec());
    let mut broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    raw.put("own", 0, b"before")?.stored()?;
    fs::write(inside(&broker, &own).join("filler"), vec![0; 6 << 20])?;
    broker.wait_for_line("puts are refused")?;
    let reply = raw.put("own", 0, b"x")?;
    assert!(reply.code == 503 && reply.text().contains(&own_text), "{}", reply.text());
    raw.put("test", 0, b"elsewhere")?.stored()?;
    Ok(())
}

/// A path as the broker sees it in its own mount namespace.
fn inside(broker: &Broker, path: &std::path::Path) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{}", broker.pid(), path.display()))
}
