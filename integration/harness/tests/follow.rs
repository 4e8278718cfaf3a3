//! `metaq consume --follow` when its broker comes back without what was read there, as after a promotion that lost it.

use anyhow::Result;
use metaq_harness::process::{Broker, Site, binary_path};
use metaq_harness::raw::Raw;
use std::process::Command;

/// A site whose log holds these messages, and its end.
fn holding(bodies: &[&str]) -> Result<(Site, u64)> {
    let site = Site::new()?;
    let broker = site.start_master(&[])?;
    let mut raw = Raw::connect(&broker.address)?;
    for body in bodies {
        raw.put("test", 0, body.as_bytes())?.stored()?;
    }
    let end = raw.end("test", 0)?;
    broker.stop()?;
    Ok((site, end))
}

/// Starts on `address`, where another has been.
fn start_at(mut site: Site, address: &str) -> Result<Broker> {
    let port = address.rsplit(':').next().unwrap_or_default();
    site.set("serverPort", port).start_master(&[])
}

/// What it prints and what it says come together in its log.
fn follow(site: &Site, address: &str, format: &str) -> Result<Broker> {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" >&2"]).arg(binary_path("metaq")?);
    command.args(["--broker", address, "--format", format, "consume", "--topic", "test", "--follow"]);
    Broker::watch(site, "consume", &mut command)
}

#[test]
fn a_follower_says_what_was_taken_away_and_goes_on_at_the_end() -> Result<()> {
    for format in ["table", "json"] {
        let (before, read_to) = holding(&["first", "second", "third"])?;
        let (after, end) = holding(&["first"])?;
        let broker = before.start_master(&[])?;
        let address = broker.address.clone();
        let mut follower = follow(&before, &address, format)?;
        follower.wait_for_line("third")?;
        broker.kill()?;
        let broker = start_at(after, &address)?;
        let said = follower.wait_for_line("metaq: ")?;
        for part in [
            "test-0 of broker 0",
            &format!("{read_to}"),
            &format!("ends at {end}"),
            &format!("{} bytes", read_to - end),
        ] {
            assert!(said.contains(part), "{part:?} in {said:?}");
        }
        Raw::connect(&broker.address)?.put("test", 0, b"fourth")?.stored()?;
        let line = follower.wait_for_line("fourth")?;
        assert!(format == "table" || line.contains(&format!("\"offset\":{end},")), "{line}");
        assert_eq!(follower.log_text().matches("first").count(), 1, "nothing is read twice: {}", follower.log_text());
    }
    Ok(())
}

/// Messages that came meanwhile may have carried the log past the follower's position, which then means nothing in it.
#[test]
fn a_follower_in_the_middle_of_a_message_goes_on_at_the_next() -> Result<()> {
    let (before, read_to) = holding(&["first", "second", "third"])?;
    let (after, end) = holding(&["first", "something longer than before, over the old end", "fifth", "sixth"])?;
    let broker = before.start_master(&[])?;
    let address = broker.address.clone();
    let mut follower = follow(&before, &address, "table")?;
    follower.wait_for_line("third")?;
    broker.kill()?;
    let _broker = start_at(after, &address)?;
    let said = follower.wait_for_line("metaq: ")?;
    let next = end - 2 * 25;
    for part in ["test-0 of broker 0", &format!("{read_to}"), &format!("going on at {next}")] {
        assert!(said.contains(part), "{part:?} in {said:?}");
    }
    follower.wait_for_line("fifth")?;
    follower.wait_for_line("sixth")?;
    Ok(())
}
