//! What a slave's file takes over from its master's, and what it keeps.

use metaq_config::{BrokerConfig, keys, merge};
use proptest::prelude::*;
use std::path::Path;

fn parse(text: &[u8]) -> BrokerConfig {
    BrokerConfig::parse(Path::new("server.ini"), text)
        .unwrap_or_else(|errors| panic!("{errors}\n{}", String::from_utf8_lossy(text)))
}

/// A small file in three parts.
fn file(system: &str, zookeeper: &str, topics: &str) -> String {
    format!(
        "; of this node\n[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\n\
         maxSegmentSize=1048576\nmaxTransferSize=1048576\n{system}\n[zookeeper]\nzk.zkConnect=localhost:2181\n\
         {zookeeper}\n{topics}"
    )
}

/// Merges, checks what holds for every merge, and compares text and changes.
#[track_caller]
fn check(own: impl AsRef<[u8]>, master: impl AsRef<[u8]>, expect: impl AsRef<[u8]>, changes: &[&str]) {
    let merged = check_rules(own.as_ref(), master.as_ref());
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(shown(&merged.text), shown(expect.as_ref()));
    assert_eq!(merged.text, expect.as_ref());
    assert_eq!(merged.changes, changes);
}

#[track_caller]
fn check_rules(own: &[u8], master: &[u8]) -> metaq_config::Merged {
    let merged = merge(own, master);
    let again = merge(&merged.text, master);
    assert_eq!((again.text == merged.text, again.changes), (true, vec![]), "merged again");
    assert_eq!(merged.changes.is_empty(), merged.text == own);
    let (own, master, result) = (parse(own), parse(master), parse(&merged.text));
    for ((key, own), (_, result)) in own.system.settings().iter().zip(result.system.settings()) {
        let shared =
            |config: &BrokerConfig| config.system.settings().into_iter().find(|(k, _)| k == key).expect("every key").1;
        let expect = if key.shared_with_slave { &shared(&master) } else { own };
        assert_eq!((key.name, &result), (key.name, expect));
    }
    assert_eq!(result.zookeeper.settings(), own.zookeeper.settings());
    assert_eq!(result.topics.keys().collect::<Vec<_>>(), master.topics.keys().collect::<Vec<_>>());
    for (name, topic) in &result.topics {
        let mut expect = master.topics[name].clone();
        expect.max_segment_size = topic.max_segment_size;
        expect.data_path = own.topics.get(name).map_or(&own.system.data_path, |own| &own.data_path).clone();
        assert_eq!(*topic, expect, "topic {name}");
    }
    merged
}

const NODE: &str = "hostName=10.0.0.2\nserverPort=9000\ndashboardHttpPort=0\ndataPath=/own/data\ndataLogPath=/own/log";
const MASTER: &str = "hostName=10.0.0.1\nserverPort=8123\ndashboardHttpPort=8120\ndataPath=/m/data\ndataLogPath=/m/log";

#[test]
fn a_file_that_says_the_same_is_left_as_it_is() {
    let own = file(NODE, "zk.zkRoot=/a", "[topic=a]\n\n; of b\n[topic=b]\nstat=true\n");
    let master = file(MASTER, "zk.zkRoot=/b", "[topic=a]\n\n; of b\n[topic=b]\nstat=true\n");
    check(&own, &master, &own, &[]);
}

#[test]
fn topics_come_with_their_comments_and_what_is_the_nodes_own_stays() {
    let own = file(NODE, "; own\n;zk.zkRoot=/meta\n", "[topic=old]\n[topic=a]\ndataPath=/own/a\nnumPartitions=2\n");
    let master = file(
        MASTER,
        "zk.zkRoot=/other\n; the master's, not a topic's\n",
        "; 订单\n[topic=a]\n; more\nnumPartitions = 4\ndataPath=/m/a\n\n[topic=new]\ndataPath=/m/new\n",
    );
    let expect = file(
        NODE,
        "; own\n;zk.zkRoot=/meta\n",
        "; 订单\n[topic=a]\ndataPath=/own/a\n; more\nnumPartitions = 4\n\n[topic=new]\n",
    );
    check(&own, &master, &expect, &["topic a changed", "topic new added", "topic old removed"]);
}

#[test]
fn shared_keys_of_the_system_are_taken_where_they_stand() {
    let own = file("stat=true\n; why\nmaxCheckpoints=5\ndataPath=/own", "", "[topic=a]\n");
    let master = file("dataPath=/m\nmaxCheckpoints = \\\n  7\ndeletePolicy=delete,24", "", "[topic=a]\n");
    let expect = file("; why\nmaxCheckpoints = \\\n  7\ndataPath=/own\ndeletePolicy=delete,24", "", "[topic=a]\n");
    check(
        own,
        master,
        expect,
        &[
            "[system] deletePolicy (default) → delete,24",
            "[system] stat true → (default)",
            "[system] maxCheckpoints 5 → 7",
        ],
    );
}

#[test]
fn a_key_written_twice_or_blank_counts_as_it_is_read() {
    let own = file("stat=false\nstat=true", "", "[topic=a]\n");
    let master = file("stat=true\nstat=", "", "[topic=a]\n");
    check(
        &own,
        &master,
        file("", "", "[topic=a]\n").replace("\n\n[zoo", "\n[zoo"),
        &["[system] stat true → (default)"],
    );
    check(&own, file("stat=true", "", "[topic=a]\n"), &own, &[]);
}

/// F41: each line keeps the bytes it had, whichever encoding that is.
#[test]
fn f41_comments_keep_their_bytes_in_utf8_and_in_gbk() {
    let gbk_order: &[u8] = b"; \xb6\xa9\xb5\xa5\n";
    let utf8_order = "; 订单\n".as_bytes();
    for (mine, theirs) in
        [(utf8_order, utf8_order), (gbk_order, gbk_order), (utf8_order, gbk_order), (gbk_order, utf8_order)]
    {
        let own = [mine, file(NODE, "", "[topic=a]\n").as_bytes()].concat();
        let master = [file(MASTER, "", "").as_bytes(), theirs, b"[topic=a]\nstat=true\n", theirs].concat();
        let expect = [mine, file(NODE, "", "").as_bytes(), theirs, b"[topic=a]\nstat=true\n", theirs, b"\n"].concat();
        check(own, master, expect, &["topic a changed"]);
    }
}

#[test]
fn a_mark_line_ends_and_unended_lines_are_kept_apart() {
    let crlf = |text: &str| text.replace('\n', "\r\n");
    let own = format!("\u{feff}{}", crlf(&file(NODE, "", "[topic=a]")));
    let master = format!("\u{feff}[topic=b]\n{}", file(MASTER, "", "[topic=c]\nstat=true"));
    let expect = format!("\u{feff}{}[topic=b]\n; of this node\n", crlf(&file(NODE, "", "")));
    let merged = check_rules(own.as_bytes(), master.as_bytes());
    let text = String::from_utf8(merged.text).unwrap();
    assert!(text.starts_with(&expect[..expect.len() - "; of this node\n".len()]), "{text:?}");
    assert!(text.ends_with("[topic=b]\n[topic=c]\nstat=true"), "{text:?}");
    // A line that ends in the middle of a continuation would swallow what comes behind it.
    let own = file(NODE, "zk.zkEnable=\\", "").trim_end().to_owned();
    let own = format!("[topic=a]\n{own}");
    check_rules(own.as_bytes(), file(MASTER, "", "[topic=b]\nstat=true \\\n").as_bytes());
}

#[test]
fn sections_in_any_order_and_opened_again_stay_where_they_are() {
    let own = "[topic=a]\n; x\n[zookeeper]\nzk.zkEnable=false\n[system]\nbrokerId=0\nnumPartitions=1\n[topic=b]\n[system]\n\
               unflushThreshold=0\nunflushInterval=1\nmaxSegmentSize=1048576\nmaxTransferSize=1048576\n; end";
    let master =
        file("stat=true", "", "[topic=a]\n[topic=c]\n; last").replace("unflushInterval=10000", "unflushInterval=1");
    let expect = "[topic=a]\n[topic=c]\n; last\n\n; x\n[zookeeper]\nzk.zkEnable=false\n[system]\nbrokerId=0\nnumPartitions=1\n\
                  [system]\nunflushThreshold=0\nunflushInterval=1\nmaxSegmentSize=1048576\nmaxTransferSize=1048576\nstat=true\n; end";
    check(own, master, expect, &["[system] stat (default) → true", "topic c added", "topic b removed"]);
}

#[test]
fn the_shipped_file_takes_over_another_like_it() {
    let shipped = include_str!("../../../conf/server.ini");
    let own = shipped.replace("serverPort=8123", "serverPort=9123").replace("dataPath=data", "dataPath=slave");
    let master = shipped.replace("[topic=test]\n", "; 订单\n[topic=orders]\nnumPartitions=8\n\n[topic=test]\n");
    let expect = own.replace("[topic=test]\n", "; 订单\n[topic=orders]\nnumPartitions=8\n\n[topic=test]\n");
    check(own, master, expect, &["topic orders added"]);
}

#[test]
fn what_tells_nodes_apart_is_never_shared() {
    let of_topics: Vec<_> = keys::topic_keys().filter(|key| !key.shared_with_slave).map(|key| key.name).collect();
    assert_eq!(of_topics, ["dataPath"]);
}

/// Lines of a section in any order, with comments, blanks and continuations between them.
fn section(lines: &'static [&'static str]) -> impl Strategy<Value = String> {
    let filler = prop::sample::select(vec!["", "; c\n", "\n", "# 中文\n", " \t\n"]);
    prop::collection::vec((prop::sample::select(lines), filler), 0..6)
        .prop_map(|lines| lines.into_iter().map(|(line, filler)| format!("{filler}{line}\n")).collect())
}

fn any_file() -> impl Strategy<Value = String> {
    let system =
        section(&["stat=true", "stat=", "maxCheckpoints=\\\n 9", "hostName=a", "dataPath=/x", "deletePolicy=delete,1"]);
    let topic = section(&["stat=true", "dataPath=/t", "numPartitions=3", "numPartitions=", "deleteWhen=0 0 1 * * ?"]);
    let names = prop::sample::select(vec!["a", "b", "c-*", "订单"]);
    let topics = prop::collection::vec((names, topic), 1..5);
    (system, topics, any::<bool>(), prop::sample::select(vec!["\n", "\r\n"])).prop_map(
        |(system, topics, first, newline)| {
            let topics: String = topics.into_iter().map(|(name, lines)| format!("[topic={name}]\n{lines}")).collect();
            let text = if first { format!("{topics}{}", file(&system, "", "")) } else { file(&system, "", &topics) };
            text.replace('\n', newline)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_two_files_merge_by_the_rules(own in any_file(), master in any_file()) {
        check_rules(own.as_bytes(), master.as_bytes());
    }
}
