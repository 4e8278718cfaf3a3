//! Whatever stands in a file, reading it ends in a configuration or in errors with lines of that file.

use metaq_config::{BrokerConfig, ConfigErrors, SlaveConfig, keys};
use proptest::prelude::*;
use std::path::Path;

/// Lines made of what the syntax is made of: known names, and values that are nearly right.
fn line() -> impl Strategy<Value = String> {
    let names: Vec<&str> = [keys::SYSTEM, keys::ZOOKEEPER, keys::SLAVE].concat().iter().map(|key| key.name).collect();
    let value = prop_oneof![
        "[-+*/%() 0-9x]{0,8}",
        "(true|false|delete|archive|[a-z]{0,3})[,0-9smh]{0,6}",
        "[\\\\u0-9a-f:/.,\\[\\]%_单 ]{0,10}",
    ];
    prop_oneof![
        4 => (prop::sample::select(names), value).prop_map(|(name, value)| format!("{name}={value}")),
        1 => Just("[system]".to_owned()),
        1 => Just("[zookeeper]".to_owned()),
        2 => "\\[topic=[a-c*/ .单]{0,4}\\]",
        1 => "\\PC{0,12}",
    ]
}

fn check_lines(errors: &ConfigErrors, text: &[u8]) {
    assert!(!errors.findings().is_empty());
    let lines = text.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() as u32 + 1;
    for finding in errors.findings() {
        assert!(finding.line.is_none_or(|line| (1..=lines).contains(&line)), "{finding}");
        assert!(!finding.message.contains(char::is_control), "{finding:?}");
    }
}

fn check(bytes: &[u8]) {
    let path = Path::new("f");
    match BrokerConfig::parse(path, bytes) {
        Ok(config) => assert!(!config.topics.is_empty() && config.differences(&config).is_empty()),
        Err(errors) => check_lines(&errors, bytes),
    }
    if let Err(errors) = SlaveConfig::parse(path, bytes) {
        check_lines(&errors, bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_of_any_kind(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn lines_of_every_kind(lines in prop::collection::vec(line(), 0..40)) {
        check(lines.join("\n").as_bytes());
    }
}
