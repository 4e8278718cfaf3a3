//! What a reload changes and what it says about it.

use metaq_config::{BrokerConfig, Live};
use std::path::Path;

fn config(system: &str, topics: &str) -> BrokerConfig {
    let text = format!(
        "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\nmaxSegmentSize=1048576\n\
         maxTransferSize=1048576\ndataPath=data\n{system}\n[zookeeper]\nzk.zkConnect=localhost:2181\n{topics}"
    );
    BrokerConfig::parse(Path::new("server.ini"), text).unwrap_or_else(|errors| panic!("{errors}"))
}

#[track_caller]
fn check(old: &BrokerConfig, new: &BrokerConfig, expect: &[&str]) {
    assert_eq!(old.differences(new), expect);
}

#[test]
fn topics_that_come_go_and_change_are_named() {
    let old = config("", "[topic=a]\n[topic=b]\n[topic=c]");
    let new = config("", "[topic=b]\nnumPartitions=4\nacceptPublish=false\ndataPath=/d\n[topic=c]\n[topic=d]\n");
    check(
        &old,
        &new,
        &[
            "topic a removed",
            "topic b numPartitions 1 → 4",
            "topic b dataPath data → /d (for partitions made from now on)",
            "topic b acceptPublish true → false",
            "topic d added, numPartitions=1",
        ],
    );
    check(&old, &old, &[]);
}

#[test]
fn a_comment_or_a_value_written_otherwise_is_no_change() {
    let old = config("", "[topic=a]");
    check(&old, &config("; more\nserverPort=8000+123", "[topic=a]\nnumPartitions=1"), &[]);
}

#[test]
fn system_and_zookeeper_need_a_restart_and_topics_keep_inheriting_what_runs() {
    let old = config("", "[topic=a]");
    let new = config("numPartitions=2\nhostName=mq1\n[zookeeper]\nzk.zkRoot=/other", "[topic=a]\n[topic=b]");
    check(
        &old,
        &new,
        &[
            "[system] hostName (empty) → mq1 (needs a restart)",
            "[system] numPartitions 1 → 2 (needs a restart)",
            "[zookeeper] zk.zkRoot /meta → /other (needs a restart)",
            "topic b added, numPartitions=1",
        ],
    );
    let running = old.with_topics_of(new.clone());
    assert_eq!((&running.system, &running.zookeeper), (&old.system, &old.zookeeper));
    assert_eq!(running.topic("b").unwrap().num_partitions, 1);
    assert_eq!((running.checksum, &running.text), (new.checksum, &new.text));
    // The restart stays due: the next reload says so again.
    assert_eq!(running.differences(&new).len(), 3);
}

/// How safe an acknowledgement is can be changed without a restart; what the command line says stays in force.
#[test]
fn the_quorum_of_the_system_section_is_reloaded() {
    let old = config("", "[topic=a]\n[topic=b]\nackQuorum=3");
    let new = config("ackQuorum=2\nackTimeoutInMills=500", "[topic=a]\n[topic=b]\nackQuorum=3");
    check(
        &old,
        &new,
        &[
            "[system] ackQuorum 1 → 2",
            "[system] ackTimeoutInMills 2000 → 500",
            "topic a ackQuorum 1 → 2",
            "topic a ackTimeoutInMills 2000 → 500",
            "topic b ackTimeoutInMills 2000 → 500",
        ],
    );
    let running = old.with_topics_of(new.clone());
    let quorum = |config: &BrokerConfig, topic| config.topic(topic).unwrap().ack.quorum;
    assert_eq!((running.system.ack.quorum, quorum(&running, "a"), quorum(&running, "b")), (2, 2, 3));
    check(&running, &new, &[]);

    let told = old.with_ack_quorum(4);
    assert_eq!((told.system.ack.quorum, quorum(&told, "a"), quorum(&told, "b")), (4, 4, 3));
    let told = told.with_topics_of(new.clone());
    assert_eq!((quorum(&told, "a"), quorum(&told, "b")), (4, 3));
    check(&told, &new, &[]);
}

#[test]
fn patterns_follow_a_reload() {
    let old = config("", "[topic=a-*]\nnumPartitions=2");
    let new = config("", "[topic=b-*]\nnumPartitions=3");
    let running = old.with_topics_of(new);
    assert!(running.topic("a-x").is_none());
    assert_eq!(running.topic("b-x").unwrap().num_partitions, 3);
}

#[test]
fn a_snapshot_outlives_what_replaces_it() {
    let live = Live::new(config("", "[topic=a]"));
    let other = live.clone();
    let before = live.snapshot();
    live.replace(config("", "[topic=b]"));
    assert!(before.topic("a").is_some());
    assert!(other.current().topic("a").is_none());
    assert!(other.current().topic("b").is_some());
}
