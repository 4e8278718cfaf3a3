//! A slave that has much before it, beside producers of its master.

use anyhow::Result;
use metaq_harness::pair::{assert_same, slave_site, wait_level};
use metaq_harness::process::Site;
use metaq_harness::raw::Raw;
use metaq_harness::relay::{Flow, Relay};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Of 1 MB.
const HELD_MESSAGES: usize = 64;

/// Of each piece on its way to the slave: it is far from level when it knows that producers send, however fast the machine is.
const DELAY: Duration = Duration::from_millis(2);

fn topics(site: &mut Site) {
    site.topic("held", &[]);
}

/// It says so, does not stand still, and takes all it can once they rest.
#[test]
fn a_slave_that_is_far_behind_leaves_room_while_producers_send() -> Result<()> {
    let (mut site, slaves) = (Site::new()?, slave_site(topics)?);
    topics(&mut site);
    let master = site.start_master(&[])?;
    let mut raw = Raw::connect(&master.address)?;
    for _ in 0..HELD_MESSAGES {
        raw.put("held", 0, &[b'h'; 1_000_000])?.stored()?;
    }
    let way = Relay::start("127.0.0.1:0".parse()?, master.address.parse()?)?;
    way.set(Flow::default(), Flow { delay: DELAY, ..Flow::default() });
    let stop = AtomicBool::new(false);
    let slave = std::thread::scope(|scope| {
        let producer = scope.spawn(|| -> Result<()> {
            let mut raw = Raw::connect(&master.address)?;
            while !stop.load(Ordering::Relaxed) {
                raw.put("test", 0, &[b'p'; 1000])?.stored()?;
            }
            Ok(())
        });
        let slave =
            slaves.start_slave(&["--slave-id", "0", "--master", &way.address.to_string()]).and_then(|mut slave| {
                slave.wait_for_line("copying leaves room")?;
                Ok(slave)
            });
        stop.store(true, Ordering::Relaxed);
        producer.join().expect("the producer does not panic")?;
        slave
    });
    let mut slave = slave?;
    slave.wait_for_line("copying no longer leaves room")?;
    wait_level(&master, &slave, "held", 1)?;
    wait_level(&master, &slave, "test", 1)?;
    assert_same(&site.data(), &slaves.data())
}
