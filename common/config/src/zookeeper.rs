use crate::keys::{self, Key};
use crate::values::Values;
use std::time::Duration;

const PORT_DEFAULT: u16 = 2181;

/// `[zookeeper]`: where the registry is (configuration, "5. `[zookeeper]`").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeper {
    /// `host:port,host:port`, checked; a path of the ensemble (`/chroot`) may follow.
    pub connect: String,
    pub session_timeout: Duration,
    pub connection_timeout: Duration,
    pub sync_time: Duration,
    /// `false`: nothing is registered and no ZooKeeper is needed.
    pub enable: bool,
    /// Begins with `/` and does not end in one; empty for the root of all.
    pub root: String,
}

impl ZooKeeper {
    pub(crate) fn parse(values: &mut Values<'_>) -> ZooKeeper {
        ZooKeeper {
            connect: values.parsed(&keys::ZK_CONNECT, check_connect).unwrap_or_default(),
            session_timeout: values.millis(&keys::ZK_SESSION_TIMEOUT_MS),
            connection_timeout: values.millis(&keys::ZK_CONNECTION_TIMEOUT_MS),
            sync_time: values.millis(&keys::ZK_SYNC_TIME_MS),
            enable: values.bool(&keys::ZK_ENABLE),
            root: values.parsed(&keys::ZK_ROOT, parse_root).unwrap_or_default(),
        }
    }

    /// The members of the ensemble: host without brackets, and port.
    pub fn servers(&self) -> Vec<(String, u16)> {
        split_connect(&self.connect).unwrap_or_default()
    }

    /// Each setting as one would write it in the file.
    pub fn settings(&self) -> Vec<(&'static Key, String)> {
        let root = if self.root.is_empty() { "/" } else { &self.root };
        vec![
            (&keys::ZK_CONNECT, self.connect.clone()),
            (&keys::ZK_SESSION_TIMEOUT_MS, self.session_timeout.as_millis().to_string()),
            (&keys::ZK_CONNECTION_TIMEOUT_MS, self.connection_timeout.as_millis().to_string()),
            (&keys::ZK_SYNC_TIME_MS, self.sync_time.as_millis().to_string()),
            (&keys::ZK_ENABLE, self.enable.to_string()),
            (&keys::ZK_ROOT, root.to_owned()),
        ]
    }
}

/// The error reads on after the text: "'x' is not …".
fn check_connect(text: &str) -> Result<String, String> {
    let text: String = text.split_whitespace().collect();
    if text.split_once('/').is_some_and(|(_, chroot)| chroot.contains(',')) {
        return Err(
            "has a path before its last host; one path is for all of them: write host:port,host:port/path".to_owned()
        );
    }
    split_connect(&text)
        .map(|_| text)
        .ok_or_else(|| "is not host:port,host:port or host:port/path; write for example localhost:2181".to_owned())
}

fn split_connect(text: &str) -> Option<Vec<(String, u16)>> {
    let (servers, chroot) = text.split_once('/').unwrap_or((text, ""));
    if !chroot.is_empty() {
        parse_root(&format!("/{chroot}")).ok()?;
    }
    servers.split(',').map(split_server).collect()
}

fn split_server(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(PORT_DEFAULT), |port| port.parse().ok().filter(|port| *port > 0))?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// Adds a leading `/` and takes off one at the end, as the original does; the rest must be a path ZooKeeper takes.
fn parse_root(text: &str) -> Result<String, String> {
    let root = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    let root = root.strip_suffix('/').unwrap_or(&root);
    let bad_element = |element: &str| {
        matches!(element, "" | "." | "..") || element.contains(|c: char| c.is_control() || c.is_whitespace())
    };
    if root.split('/').skip(1).any(bad_element) {
        return Err("is not a path of ZooKeeper; write for example /meta".to_owned());
    }
    Ok(root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ensemble_is_a_list_of_hosts_and_ports() {
        let cases = [
            ("localhost:2181", vec![("localhost", 2181)]),
            ("a:1,b:2", vec![("a", 1), ("b", 2)]),
            ("a, b:2/chroot", vec![("a", 2181), ("b", 2)]),
            ("[::1]:2182,[fe80::1]", vec![("::1", 2182), ("fe80::1", 2181)]),
        ];
        for (text, expect) in cases {
            let connect = check_connect(text).unwrap();
            let servers = split_connect(&connect).unwrap();
            let servers: Vec<_> = servers.iter().map(|(host, port)| (host.as_str(), *port)).collect();
            assert_eq!(servers, expect, "{text}");
        }
        assert!(check_connect("a:1/x,b:2/x").unwrap_err().contains("before its last host"));
        for bad in [
            ":2181",
            "a:b",
            "a:1/x,b:2",
            "a:0",
            "a:70000",
            "a:1,,b:2",
            "a:1,",
            "[::1",
            "[::1]2181",
            "::1:2181",
            "a:1/b//c",
            "a:1//",
            "a:1/..",
        ] {
            assert!(check_connect(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_root_begins_with_a_slash_and_does_not_end_in_one() {
        for (text, expect) in [("/meta", "/meta"), ("meta", "/meta"), ("/meta/", "/meta"), ("/a/b", "/a/b"), ("/", "")]
        {
            assert_eq!(parse_root(text).as_deref(), Ok(expect), "{text}");
        }
        for bad in ["//", "/a//b", "/a/../b", "/a b", "/."] {
            assert!(parse_root(bad).is_err(), "{bad}");
        }
    }
}
