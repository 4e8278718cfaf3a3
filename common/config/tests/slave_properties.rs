//! `async_slave.properties` as people write it.

use metaq_config::SlaveConfig;
use metaq_types::SlaveId;
use std::path::Path;
use std::time::Duration;

#[track_caller]
fn read(bytes: impl AsRef<[u8]>) -> SlaveConfig {
    SlaveConfig::parse(Path::new("s.properties"), bytes.as_ref()).unwrap_or_else(|errors| panic!("{errors}"))
}

#[track_caller]
fn refuse(text: &str, expect: &str) {
    match SlaveConfig::parse(Path::new("s.properties"), text.as_bytes()) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(errors) => assert_eq!(errors.to_string(), expect),
    }
}

#[test]
fn a_file_that_says_nothing_or_does_not_exist_has_the_defaults() {
    let directory = tempfile::tempdir().unwrap();
    let config = SlaveConfig::load(&directory.path().join("none")).unwrap();
    assert_eq!((config.slave_id, config.slave_group.as_str()), (None, "meta-slave-group"));
    assert_eq!(config.slave_max_delay, Duration::from_millis(500));
    assert!(!config.auto_sync_master_config);
    assert_eq!(read("").slave_group, config.slave_group);
    assert!(SlaveConfig::load(directory.path()).is_err());
}

#[test]
fn every_form_of_a_property_is_read() {
    let text = "# c\n! c\nslaveId = 3  \nslaveGroup:my\\u002dgroup\nslaveMaxDelayInMills 20\\\n  0\t\nautoSyncMasterConfig=TRUE\n";
    let config = read(text);
    assert_eq!((config.slave_id, config.slave_group.as_str()), (SlaveId::new(3).ok(), "my-group"));
    assert_eq!(config.slave_max_delay, Duration::from_millis(200));
    assert!(config.auto_sync_master_config);
}

#[test]
fn comments_in_gbk_do_no_harm() {
    assert_eq!(read(b"#\xb4\xd3\xbb\xfa\nslaveId=0\n").slave_id, SlaveId::new(0).ok());
}

#[test]
fn the_group_follows_the_id_unless_it_is_written() {
    let id = SlaveId::new(7).unwrap();
    assert_eq!(read("slaveId=2").slave_group, "meta-slave-group_2");
    assert_eq!(read("slaveId=2").with_slave_id(id).slave_group, "meta-slave-group_7");
    assert_eq!(read("").with_slave_id(id).slave_id, Some(id));
    assert_eq!(read("slaveGroup=g").with_slave_id(id).slave_group, "g");
}

#[test]
fn faults_name_their_line() {
    refuse("\nslaveID=1", "s.properties:2: unknown key slaveID; did you mean slaveId?");
    refuse("serverPort=1", "s.properties:1: unknown key serverPort; remove this line");
    refuse("slaveId=-1", "s.properties:1: slaveId -1 is not within 0..2147483647");
    refuse("slaveId=one", "s.properties:1: slaveId: 'one' is not a whole number; write for example 8123 or 1024*1024");
    refuse("slaveMaxDelayInMills=0", "s.properties:1: slaveMaxDelayInMills 0 is not within 1..60000 ms");
    refuse("slaveMaxDelayInMills=60001", "s.properties:1: slaveMaxDelayInMills 60001 is not within 1..60000 ms");
    refuse(
        "autoSyncMasterConfig=yes",
        "s.properties:1: autoSyncMasterConfig: 'yes' is neither true nor false; write one of them",
    );
    refuse("slaveGroup=a b", "s.properties:1: slaveGroup: 'a b' is not one word without blanks");
    refuse(
        "slaveGroup=\\u00",
        "s.properties:1: \\u00 is not \\u and four hexadecimal digits; write \\\\ for a backslash",
    );
}
