//! `server.ini` as people write it: what is read, what is refused and in which words.

use metaq_config::{BrokerConfig, DeleteAction, FlushTxLog, ReplicationTransport, TlsClientAuth};
use std::path::Path;
use std::time::Duration;

/// A file that is valid with as little as possible; `{system}` and `{rest}` are where cases add to it.
fn file(system: &str, rest: &str) -> String {
    format!(
        "[system]\nbrokerId=0\nnumPartitions=1\nunflushThreshold=0\nunflushInterval=10000\nmaxSegmentSize=1048576\n\
         maxTransferSize=1048576\ndataPath=data\n{system}\n[zookeeper]\nzk.zkConnect=localhost:2181\n[topic=test]\n{rest}"
    )
}

/// The line `{system}` stands on.
const SYSTEM_LINE: u32 = 9;
/// The line `{rest}` stands on.
const REST_LINE: u32 = 13;

fn parse(text: &str) -> Result<BrokerConfig, String> {
    BrokerConfig::parse(Path::new("server.ini"), text).map_err(|errors| errors.to_string())
}

#[track_caller]
fn read(system: &str, rest: &str) -> BrokerConfig {
    parse(&file(system, rest)).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The one error that `text` gives.
#[track_caller]
fn check_error(text: &str, expect: &str) {
    match parse(text) {
        Ok(_) => panic!("accepted; expected {expect}"),
        Err(errors) => assert_eq!(errors, expect),
    }
}

#[track_caller]
fn refuse_system(line: &str, expect: &str) {
    check_error(&file(line, ""), &format!("server.ini:{SYSTEM_LINE}: {expect}"));
}

#[track_caller]
fn refuse_rest(line: &str, expect: &str) {
    check_error(&file("", line), &format!("server.ini:{REST_LINE}: {expect}"));
}

#[track_caller]
fn check_warning(system: &str, rest: &str, expect: &str) {
    let warnings = read(system, rest).warnings;
    assert_eq!(warnings.iter().map(ToString::to_string).collect::<Vec<_>>(), [expect]);
}

#[test]
fn a_small_file_has_the_originals_defaults() {
    let config = read("", "");
    let system = &config.system;
    assert_eq!((system.server_port, system.dashboard_http_port), (8123, 8120));
    assert_eq!(system.host_name, None);
    assert_eq!(system.bind_host.to_string(), "0.0.0.0");
    assert_eq!(system.data_log_path, system.data_path);
    assert_eq!(system.delete_policy.action, DeleteAction::Delete);
    assert_eq!(system.delete_policy.age, Duration::from_secs(168 * 3600));
    assert_eq!(system.delete_when.to_string(), "0 0 6,18 * * ?");
    assert!(system.accept_publish && system.accept_subscribe);
    assert!(!system.update_consumer_offsets && !system.stat);
    assert_eq!(system.flush_tx_log_at_commit, FlushTxLog::BeforeAnswer);
    assert_eq!((system.max_checkpoints, system.max_tx_timeout_timer_capacity), (3, 30_000));
    assert_eq!(system.checkpoint_interval, Duration::from_secs(3600));
    assert_eq!(system.max_tx_timeout, Duration::from_secs(60));
    assert_eq!(system.min_free_disk_bytes, 0);
    let zookeeper = &config.zookeeper;
    assert_eq!((zookeeper.connect.as_str(), zookeeper.root.as_str()), ("localhost:2181", "/meta"));
    assert_eq!(zookeeper.session_timeout, Duration::from_secs(30));
    assert_eq!(zookeeper.connection_timeout, Duration::from_secs(30));
    assert_eq!(zookeeper.sync_time, Duration::from_secs(5));
    assert!(zookeeper.enable);
    assert!(config.warnings.is_empty());
}

#[test]
fn data_path_falls_back_to_meta_in_the_home_directory() {
    let config = read("dataPath=", "");
    assert!(config.system.data_path.ends_with("meta"), "{}", config.system.data_path.display());
}

#[test]
fn the_checksum_is_that_of_the_bytes() {
    let errors = BrokerConfig::parse(Path::new("f"), "[system]\nbrokerId=0\n");
    assert!(errors.is_err());
    assert_eq!(crc32fast::hash(b"[system]\nbrokerId=0\n"), 1_235_273_199);
    let text = file("", "");
    let config = parse(&text).unwrap();
    assert_eq!(config.checksum, crc32fast::hash(text.as_bytes()));
    assert_eq!(config.text, text.as_bytes());
}

#[test]
fn topics_take_what_they_do_not_say_from_system() {
    let config = read(
        "numPartitions=3\nunflushThreshold=1000\ndeletePolicy=archive,24\nstat=true\nacceptSubscribe=false",
        "[topic=own]\nnumPartitions=2*4\nunflushThreshold=-1\nunflushInterval=0\ndataPath=/other\n\
         deletePolicy=delete,10s\ndeleteWhen=0 0 1 * * ?\nacceptPublish=false\nacceptSubscribe=true\nstat=FALSE\n",
    );
    let test = config.topic("test").unwrap();
    assert_eq!((test.num_partitions, test.unflush_threshold, test.max_segment_size), (3, 1000, 1_048_576));
    assert_eq!(test.unflush_interval, Duration::from_secs(10));
    assert_eq!((test.delete_policy.to_string().as_str(), test.data_path.as_path()), ("archive,24", Path::new("data")));
    assert!(test.stat && test.accept_publish && !test.accept_subscribe);
    let own = config.topic("own").unwrap();
    assert_eq!((own.num_partitions, own.unflush_threshold, own.unflush_interval), (8, 0, Duration::ZERO));
    assert_eq!((own.delete_policy.to_string().as_str(), own.data_path.as_path()), ("delete,10s", Path::new("/other")));
    assert_eq!(own.delete_when.to_string(), "0 0 1 * * ?");
    assert!(!own.stat && !own.accept_publish && own.accept_subscribe);
    assert_eq!(config.system.topic_defaults().num_partitions, 3);
}

#[test]
fn topics_of_a_pattern_have_its_settings_and_a_dot_is_a_dot() {
    let config = read("", "[topic=app-*]\nnumPartitions=4\n[topic=app-x]\nnumPartitions=2\n[topic=t.x]\n");
    assert_eq!(config.topic("app-y").unwrap().num_partitions, 4);
    assert_eq!(config.topic("app-x").unwrap().num_partitions, 2);
    assert_eq!(config.topic("app-*").unwrap().num_partitions, 4);
    assert!(config.topic("t.x").is_some());
    assert!(config.topic("tyx").is_none());
    assert!(config.topic("unknown").is_none());
}

#[test]
fn a_star_admits_everything_with_its_own_partitions() {
    let config = read("numPartitions=7", "[topic=*]\nnumPartitions=1\n");
    assert_eq!(config.topic("anything").unwrap().num_partitions, 1);
}

#[test]
fn the_last_of_two_values_counts_and_a_blank_one_is_none() {
    assert_eq!(read("serverPort=1\nserverPort=2", "").system.server_port, 2);
    assert_eq!(read("serverPort=1\nserverPort=", "").system.server_port, 8123);
    check_warning("stat=true\nstat=false", "", "server.ini:10: stat is written twice; this line counts, not line 9");
    assert_eq!(read("", "numPartitions=2\n[topic=other]\n[topic=test]\nstat=true").topics.len(), 2);
}

#[test]
fn a_chinese_comment_in_gbk_does_no_harm() {
    let mut bytes = b"; \xd6\xf7\xcc\xe2\\\n".to_vec();
    bytes.extend_from_slice(file("", "").as_bytes());
    let config = BrokerConfig::parse(Path::new("f"), bytes.clone()).unwrap();
    assert!(config.warnings.is_empty());
    assert_eq!(config.text, bytes);
}

#[test]
fn a_name_in_another_encoding_asks_for_utf_8() {
    let mut bytes = file("", "").into_bytes();
    bytes.extend_from_slice(b"[topic=\xd6\xf7\xcc\xe2]\n");
    let errors = BrokerConfig::parse(Path::new("f"), bytes).unwrap_err().to_string();
    assert!(errors.contains("the name is not UTF-8 (GBK?); save the file as UTF-8"), "{errors}");
}

#[test]
fn what_is_endless_is_named_by_its_begin_and_its_end() {
    for line in [format!("numPartitions={}", "9".repeat(1 << 20)), format!("{}=1", "x".repeat(1 << 20))] {
        let errors = parse(&file(&line, "")).unwrap_err();
        assert!(errors.len() < 1000 && errors.contains('…'), "{} bytes", errors.len());
    }
    refuse_system(
        &format!("hostName={}", "x".repeat(64)),
        &format!(
            "hostName: '{}' of 64 bytes is longer than a host name may be: 253, and 63 between dots",
            "x".repeat(64)
        ),
    );
    let long = "x.".repeat(126) + "yz";
    refuse_system(
        &format!("hostName={long}"),
        &format!("hostName: '{long}' of 254 bytes is longer than a host name may be: 253, and 63 between dots"),
    );
    assert!(read(&format!("hostName={}", &long[1..].trim_start_matches('.')), "").system.host_name.is_some());
}

#[test]
fn each_listener_has_a_port_of_its_own() {
    check_warning(
        "dashboardHttpPort=8123",
        "",
        "server.ini:9: dashboardHttpPort 8123 is serverPort as well: there will be no console and no metrics; give each a \
         port of its own",
    );
    assert!(read("dashboardHttpPort=8123\nbindHost=10.0.0.1", "").warnings.is_empty());
    assert!(read("dashboardHttpPort=0\nserverPort=0", "").warnings.is_empty());
    refuse_system(
        "tlsPort=8123\ntlsCertFile=a\ntlsKeyFile=b\ntlsCaFile=c",
        "tlsPort 8123 is serverPort as well; give each a port of its own",
    );
}

#[test]
fn numbers_are_whole_and_within_their_range() {
    assert_eq!(read("serverPort=0x10", "").system.server_port, 16);
    assert_eq!(read("serverPort=010", "").system.server_port, 10);
    assert_eq!(read("serverPort=0", "").system.server_port, 0);
    assert_eq!(read("minFreeDiskBytes=1024*1024*1024*1024", "").system.min_free_disk_bytes, 1 << 40);
    refuse_system("serverPort=1.5", "serverPort: '1.5' is not a whole number; write for example 8123 or 1024*1024");
    refuse_system("serverPort=1G", "serverPort: '1G' is not a whole number; write for example 8123 or 1024*1024");
    refuse_system("serverPort=3 ; c", "serverPort: '3 ; c' is not a whole number; a comment needs a line of its own");
    refuse_system("serverPort=65536", "serverPort 65536 is not within 0..65535");
    refuse_system("brokerId=1024", "brokerId 1024 is not within 0..1023");
    refuse_system("brokerId=-1", "brokerId -1 is not within 0..1023");
    refuse_system("numPartitions=0", "numPartitions 0 is not within 1..100000");
    // 32 bits are not silently wrapped around.
    refuse_system("maxSegmentSize=2*1024*1024*1024", "maxSegmentSize 2147483648 is not within 1024..2147483647 bytes");
    refuse_system("maxTransferSize=0", "maxTransferSize 0 is not within 64..67108864 bytes");
    refuse_system(
        "unflushThreshold=2147483648",
        "unflushThreshold 2147483648 is not within -2147483648..2147483647 messages",
    );
    refuse_system("unflushInterval=-1", "unflushInterval -1 is not within 0..2147483647 ms");
    refuse_system("flushTxLogAtCommit=3", "flushTxLogAtCommit 3 is not within 0..2");
    refuse_system("maxCheckpoints=0", "maxCheckpoints 0 is not within 1..1000");
    refuse_system("checkpointInterval=0", "checkpointInterval 0 is not within 1..31536000000 ms");
    refuse_system("getProcessThreadCount=0", "getProcessThreadCount 0 is not within 1..2147483647");
    refuse_rest("numPartitions=0", "numPartitions 0 is not within 1..100000");
}

#[test]
fn switches_are_true_or_false() {
    for (value, shown) in [("True", "True"), ("TRUE", "TRUE"), ("yes", "yes"), ("1", "1"), ("'true'", "'true'")] {
        refuse_system(
            &format!("acceptPublish={value}"),
            &format!("acceptPublish: '{shown}' is neither true nor false; write one of them"),
        );
    }
    // Only a topic's `stat` is read in any letter case.
    assert!(read("", "stat=TRUE").topic("test").unwrap().stat);
    refuse_system("stat=TRUE", "stat: 'TRUE' is neither true nor false; write one of them");
    refuse_rest("stat=yes", "stat: 'yes' is neither true nor false; write one of them");
}

#[test]
fn policies_and_schedules_are_checked() {
    refuse_system(
        "deletePolicy=delete, 168",
        "deletePolicy: 'delete, 168' has no age: ' 168' is not a number with s, m or h behind it; \
         a number alone counts hours",
    );
    refuse_system(
        "deletePolicy=shred,1",
        "deletePolicy: 'shred,1' is not delete,AGE or archive,AGE or archive,AGE,true; write for example delete,168",
    );
    refuse_rest(
        "deleteWhen=hourly",
        "deleteWhen: 'hourly' is not 'seconds minutes hours day-of-month month day-of-week', with ? for one of the \
         days; write for example 0 0 6,18 * * ? (L, W and # are not supported)",
    );
}

#[test]
fn unknown_keys_are_refused_with_what_was_meant() {
    refuse_system("brokerID=1", "unknown key brokerID in [system]; did you mean brokerId?");
    refuse_system("frobnicate=1", "unknown key frobnicate in [system]; remove this line");
    refuse_system("zk.zkRoot=/x", "zk.zkRoot does not belong in [system]; write it in [zookeeper]");
    refuse_rest("numPartition=1", "unknown key numPartition in [topic=test]; did you mean numPartitions?");
    refuse_rest("serverPort=1", "serverPort cannot be set for one topic; write it in [system]");
    refuse_rest("maxSegmentSize=4096", "maxSegmentSize cannot be set for one topic; write it in [system]");
    check_error(
        &file("", "").replace("zk.zkConnect", "zkConnect"),
        "server.ini:11: unknown key zkConnect in [zookeeper]; did you mean zk.zkConnect?",
    );
    check_error(
        &file("", "").replace("zk.zkConnect=localhost:2181", "zk.zkConnect="),
        "server.ini:10: section [zookeeper] is missing or says nothing; write for example zk.zkConnect=localhost:2181, \
         or zk.zkEnable=false",
    );
}

#[test]
fn an_escape_in_a_key_cannot_break_the_line_of_its_error() {
    refuse_system("a\\nserver.ini:1: b=1", "unknown key a\\nserver.ini in [system]; remove this line");
}

#[test]
fn keys_without_a_meaning_are_named() {
    check_warning("topics=x", "", "server.ini:9: topics means nothing and is ignored; remove this line");
    check_warning(
        "",
        "filterClassNames=x",
        "server.ini:13: filterClassNames means nothing and is ignored; remove this line",
    );
    check_warning(
        "[zookeeper]\nserverPort=1",
        "",
        "server.ini:10: serverPort is ignored in [zookeeper]; it belongs in [system]",
    );
    check_warning(
        "appClassPath=provided",
        "",
        "server.ini:9: appClassPath has no effect: the original's directory of Java filter classes, which cannot run here",
    );
    assert!(
        read("putProcessThreadCount=4\nquartzThreadCount=2\nloadMessageStoresInParallel=true", "").warnings.is_empty()
    );
}

#[test]
fn mistyped_sections_are_refused_with_what_was_meant() {
    let cases = [
        ("[topic = x]", "unknown section [topic = x]; did you mean [topic=x]?"),
        ("[Topic=x]", "unknown section [Topic=x]; did you mean [topic=x]?"),
        ("[topic:x]", "unknown section [topic:x]; did you mean [topic=x]?"),
        ("[topics=x]", "unknown section [topics=x]; did you mean [topic=x]?"),
        ("[topic]", "unknown section [topic]; did you mean [topic=NAME]?"),
        ("[System]", "unknown section [System]; did you mean [system]?"),
        ("[zookeper]", "unknown section [zookeper]; did you mean [zookeeper]?"),
        ("[other]", "unknown section [other]; there are [system], [zookeeper] and [topic=NAME]"),
        ("[topic=a/b]", "[topic=a/b]: a topic name cannot contain '/'"),
        ("[topic= b]", "[topic= b]: a topic name cannot contain ' '"),
        ("[topic=$journal]", "[topic=$journal]: that is what the transaction journal is called"),
        ("[topic=]", "[topic=]: a topic name must not be empty"),
        ("[topic=..]", "[topic=..]: a topic cannot be called '.' or '..'"),
    ];
    for (line, expect) in cases {
        refuse_rest(line, expect);
    }
}

#[test]
fn java_filters_are_refused_with_what_to_do() {
    refuse_rest(
        "group.billing=com.example.Filter",
        "group.billing names a Java class, and Java classes cannot run here: remove this line and filter in the \
         consumers of billing; a filter as an expression, filter.billing = attribute ~ \"^order-\", is not supported yet",
    );
    refuse_rest(
        "filter.billing=attribute ~ \"^order-\"",
        "filter.billing: filter expressions are not supported yet: remove this line and filter in the consumers of billing",
    );
    assert!(read("", "group.billing=").warnings.is_empty());
}

#[test]
fn host_names_that_clients_cannot_connect_to_are_refused() {
    for name in ["mq1.example.com", "mq-1", "192.168.1.7", "::1", "[2001:db8::1]", "localhost", "订.example"] {
        let system = parse(&file(&format!("hostName={name}"), ""));
        assert_eq!(system.is_ok(), name.is_ascii(), "{name}: {system:?}");
    }
    refuse_system(
        "hostName=mq_1",
        "hostName: 'mq_1' holds an underscore, and Java clients cannot connect to such a name; \
         give this machine another name or write its address",
    );
    for name in ["mq1:8123", "a b", "-a", "a..b", "10.0.0", "mq.1a", "http://a"] {
        let expect = format!(
            "hostName: '{name}' is neither a host name nor an IP address; write it without port, blanks or path"
        );
        refuse_system(&format!("hostName={name}"), &expect);
    }
    refuse_system(
        "hostName=0.0.0.0",
        "hostName: '0.0.0.0' is no address that anyone can connect to; leave hostName empty, or write bindHost",
    );
    refuse_system("bindHost=mq1", "bindHost: 'mq1' is not an IP address to listen on; write for example 0.0.0.0 or ::");
    assert_eq!(read("bindHost=::", "").system.bind_host.to_string(), "::");
}

#[test]
fn what_is_missing_is_named_with_an_example() {
    let text = file("", "").replace("brokerId=0\n", "").replace("maxTransferSize=1048576\n", "maxTransferSize=  \n");
    check_error(
        &text,
        "server.ini:1: [system] lacks brokerId: which broker this is: unique under one ZooKeeper root, the same for a \
         master and its slaves; write for example brokerId=0\n\
         server.ini:1: [system] lacks maxTransferSize: most bytes in the answer to one get, and so the largest message; \
         write for example maxTransferSize=1048576",
    );
    check_error(
        "",
        "server.ini: section [system] is missing; it holds brokerId and what else belongs to this node\n\
         server.ini: section [zookeeper] is missing or says nothing; write for example zk.zkConnect=localhost:2181, \
         or zk.zkEnable=false\n\
         server.ini: there is no topic; add a section, for example [topic=test]",
    );
}

#[test]
fn every_fault_of_a_file_is_reported_in_one_run() {
    let errors =
        parse(&file("brokerId=x\nacceptPublish=yes\nfoo=1", "numPartitions=0\n[topic=a b]\n[topik=c]")).unwrap_err();
    let lines: Vec<_> = errors.lines().map(|line| line.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["9", "10", "11", "15", "16", "17"], "{errors}");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let errors = BrokerConfig::load(&directory.path().join("none.ini")).unwrap_err().to_string();
    assert!(errors.contains("none.ini: cannot be read: ") && errors.ends_with("--config FILE"), "{errors}");
    assert!(BrokerConfig::load(directory.path()).is_err());
    let path = directory.path().join("server.ini");
    std::fs::write(&path, file("", "")).unwrap();
    assert_eq!(BrokerConfig::load(&path).unwrap().path, path);
}

#[test]
fn encryption_needs_certificates_and_all_three_files() {
    let none = read("", "").system;
    assert_eq!((none.tls_port, none.tls_files), (0, None));
    assert_eq!(none.replication_transport, ReplicationTransport::Auto);
    let files = "tlsCertFile=n.pem\ntlsKeyFile=n.key\ntlsCaFile=ca.pem\n";
    let all = read(&format!("{files}tlsPort=8443\ntlsClientAuth=required\nreplicationTransport=quic"), "").system;
    assert_eq!(all.tls_files.unwrap().authorities, Path::new("ca.pem"));
    assert_eq!((all.tls_port, all.tls_client_auth), (8443, TlsClientAuth::Required));
    refuse_system("tlsPort=8443", "tlsPort needs a certificate; write tlsCertFile, tlsKeyFile and tlsCaFile");
    refuse_system(
        "replicationTransport=quic",
        "replicationTransport needs a certificate; write tlsCertFile, tlsKeyFile and tlsCaFile",
    );
    refuse_system("replicationTransport=udp", "replicationTransport: 'udp' is none of auto, quic, tcp");
    let halves = parse(&file("tlsKeyFile=n.key", "")).unwrap_err();
    assert_eq!(
        halves,
        "server.ini:9: tlsKeyFile is of no use without tlsCertFile; write all three or none\n\
         server.ini:9: tlsKeyFile is of no use without tlsCaFile; write all three or none"
    );
}

/// Saved by an editor in another form, or with zeros where a crash lost what was written.
#[test]
fn a_file_that_is_no_text_is_one_error() {
    let good = "[system]\nbrokerId=0\n[topic=a]\n";
    let utf16: Vec<u8> = [0xfeff].into_iter().chain(good.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let swapped: Vec<u8> = utf16.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    let torn = [good.as_bytes(), &[0; 100]].concat();
    for (bytes, expect) in [
        (utf16, "server.ini: the file is UTF-16"),
        (swapped, "server.ini: the file is UTF-16"),
        (torn, "server.ini:4: zero bytes begin here"),
    ] {
        let errors = BrokerConfig::parse(Path::new("server.ini"), bytes).unwrap_err();
        assert_eq!(errors.findings().len(), 1, "{errors}");
        assert!(errors.to_string().starts_with(expect), "{errors}");
    }
}
