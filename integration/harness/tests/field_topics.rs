//! A topic that is removed and comes again: F35.

use anyhow::Result;
use metaq_harness::process::{Site, wait_until};
use metaq_harness::raw::Raw;
use rustix::process::Signal;
use std::fs;

/// F35: the new topic's offsets begin where the old one's ended. A group at that end gets the new messages; one below
/// it is told where they begin. Nobody waits in silence, whatever updateConsumerOffsets says.
#[test]
fn f35_a_topic_that_comes_again_goes_on_where_it_ended() -> Result<()> {
    for moves in ["true", "false"] {
        let mut site = Site::new()?;
        site.set("updateConsumerOffsets", moves).topic("other", &[]);
        let broker = site.start_master(&[])?;
        let mut raw = Raw::connect(&broker.address)?;
        for _ in 0..100 {
            raw.put("test", 0, b"before")?.stored()?;
        }
        let end = raw.end("test", 0)?;
        site.remove_topic("test").write_ini()?;
        broker.signal(Signal::HUP)?;
        wait_until("puts to be refused", || Ok((raw.put("test", 0, b"x")?.code == 403).then_some(())))?;
        let end = end.max(raw.end("test", 0)?);
        assert!(broker.stop()?.success());
        fs::remove_dir_all(site.data().join("test-0"))?;
        let broker = site.start_master(&[])?;
        site.topic("test", &[]).write_ini()?;
        broker.signal(Signal::HUP)?;
        let mut raw = Raw::connect(&broker.address)?;
        let first = wait_until("the topic to be back", || Ok(raw.put("test", 0, b"again")?.stored().ok()))?;
        assert_eq!(first.offset, end);
        for _ in 0..4 {
            raw.put("test", 0, b"again")?.stored()?;
        }
        assert_eq!(raw.read_all("test", 0, end)?.len(), 5, "the group that had read everything");
        for behind in [0, end - 26] {
            let reply = raw.get("test", 0, behind as i64, 1024)?;
            assert_eq!((reply.code, reply.text()), (301, end.to_string()));
        }
    }
    Ok(())
}
