use crate::ack::AckRules;
use crate::address::check_host_name;
use crate::keys::{self, Key};
use crate::lag::SlaveLagAction;
use crate::policy::{DeletePolicy, DeleteWhen};
use crate::security::{ReplicationTransport, Security, TlsClientAuth, TlsFiles};
use crate::topic::Topic;
use crate::values::Values;
use metaq_types::{BrokerId, TopicName};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// `[system]`: the node itself, and what topics take when they say nothing (configuration, "4. `[system]`").
///
/// Relative paths are relative to the directory the process was started in, as with the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    pub broker_id: BrokerId,
    /// What clients are told; `None`: found at start, see [`crate::address`].
    pub host_name: Option<String>,
    /// Where to listen, see [`crate::address::listen_on`]; unspecified (0.0.0.0, ::) means every interface.
    pub bind_host: IpAddr,
    /// 0: any free port.
    pub server_port: u16,
    /// 0: off.
    pub dashboard_http_port: u16,
    pub dashboard_http_host: IpAddr,
    /// 0: off. Never without `tls_files`.
    pub tls_port: u16,
    pub tls_files: Option<TlsFiles>,
    pub tls_client_auth: TlsClientAuth,
    pub replication_transport: ReplicationTransport,
    /// As this node's slaves are judged by; what it keeps to as a slave itself is [`crate::SlaveConfig`]'s.
    pub slave_max_delay: Duration,
    pub slave_lag_action: SlaveLagAction,
    pub data_path: PathBuf,
    pub data_log_path: PathBuf,
    /// Puts are refused below this; 0: only when the disk is full.
    pub min_free_disk_bytes: u64,
    pub num_partitions: u32,
    /// As [`crate::Topic::unflush_threshold`].
    pub unflush_threshold: u32,
    pub unflush_interval: Duration,
    pub ack: AckRules,
    /// Bytes.
    pub max_segment_size: u32,
    /// Bytes in the answer to one get.
    pub max_transfer_size: u32,
    pub delete_policy: DeletePolicy,
    /// As [`crate::Topic::retention_bytes`].
    pub retention_bytes: u64,
    pub delete_when: DeleteWhen,
    pub accept_publish: bool,
    pub accept_subscribe: bool,
    pub stat: bool,
    pub update_consumer_offsets: bool,
    pub flush_tx_log_at_commit: FlushTxLog,
    pub max_checkpoints: u32,
    pub checkpoint_interval: Duration,
    pub max_tx_timeout_timer_capacity: u32,
    pub max_tx_timeout: Duration,
}

/// `flushTxLogAtCommit`: when the transaction journal is synced (transactions, "6. Durability").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushTxLog {
    Never,
    BeforeAnswer,
    EverySecond,
}

impl FlushTxLog {
    fn from_number(number: i64) -> FlushTxLog {
        match number {
            0 => FlushTxLog::Never,
            2 => FlushTxLog::EverySecond,
            _ => FlushTxLog::BeforeAnswer,
        }
    }

    fn number(self) -> u8 {
        match self {
            FlushTxLog::Never => 0,
            FlushTxLog::BeforeAnswer => 1,
            FlushTxLog::EverySecond => 2,
        }
    }
}

impl System {
    pub(crate) fn parse(values: &mut Values<'_>) -> System {
        let data_path = data_path(values);
        let data_log_path = values.path_or(&keys::DATA_LOG_PATH, data_path.clone());
        check_without_effect(values);
        let security = Security::parse(values);
        let system = System {
            broker_id: broker_id(values),
            host_name: values.parsed(&keys::HOST_NAME, check_host_name),
            bind_host: values.parsed(&keys::BIND_HOST, parse_bind_host).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            server_port: values.unsigned(&keys::SERVER_PORT),
            dashboard_http_port: values.unsigned(&keys::DASHBOARD_HTTP_PORT),
            dashboard_http_host: values
                .parsed(&keys::DASHBOARD_HTTP_HOST, parse_bind_host)
                .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            tls_port: security.tls_port,
            tls_files: security.tls_files,
            tls_client_auth: security.tls_client_auth,
            replication_transport: security.replication_transport,
            slave_max_delay: values.millis(&keys::SLAVE_LAG_BOUND_IN_MILLS),
            slave_lag_action: values.parsed(&keys::SLAVE_LAG_ACTION, str::parse).unwrap_or(SlaveLagAction::Report),
            data_path,
            data_log_path,
            min_free_disk_bytes: values.unsigned(&keys::MIN_FREE_DISK_BYTES),
            num_partitions: values.unsigned(&keys::NUM_PARTITIONS),
            unflush_threshold: threshold(values.integer(&keys::UNFLUSH_THRESHOLD)),
            unflush_interval: values.millis(&keys::UNFLUSH_INTERVAL),
            ack: AckRules::parse(values),
            max_segment_size: values.unsigned(&keys::MAX_SEGMENT_SIZE),
            max_transfer_size: values.unsigned(&keys::MAX_TRANSFER_SIZE),
            delete_policy: values
                .parsed(&keys::DELETE_POLICY, str::parse)
                .unwrap_or_else(|| default(&keys::DELETE_POLICY)),
            retention_bytes: values.unsigned(&keys::RETENTION_BYTES),
            delete_when: values.parsed(&keys::DELETE_WHEN, str::parse).unwrap_or_else(|| default(&keys::DELETE_WHEN)),
            accept_publish: values.bool(&keys::ACCEPT_PUBLISH),
            accept_subscribe: values.bool(&keys::ACCEPT_SUBSCRIBE),
            stat: values.bool(&keys::STAT),
            update_consumer_offsets: values.bool(&keys::UPDATE_CONSUMER_OFFSETS),
            flush_tx_log_at_commit: FlushTxLog::from_number(values.integer(&keys::FLUSH_TX_LOG_AT_COMMIT)),
            max_checkpoints: values.unsigned(&keys::MAX_CHECKPOINTS),
            checkpoint_interval: values.millis(&keys::CHECKPOINT_INTERVAL),
            max_tx_timeout_timer_capacity: values.unsigned(&keys::MAX_TX_TIMEOUT_TIMER_CAPACITY),
            max_tx_timeout: Duration::from_secs(values.unsigned(&keys::MAX_TX_TIMEOUT_IN_SECONDS)),
        };
        check_ports(&system, values);
        system
    }

    /// What a section that says nothing comes to, named `*`. Also the way to keep a topic that is on the disk and in
    /// no section any more.
    pub fn topic_defaults(&self) -> Topic {
        Topic {
            name: TopicName::new("*").expect("a star is a topic name"),
            num_partitions: self.num_partitions,
            unflush_threshold: self.unflush_threshold,
            unflush_interval: self.unflush_interval,
            ack: self.ack,
            max_segment_size: self.max_segment_size,
            data_path: self.data_path.clone(),
            delete_policy: self.delete_policy.clone(),
            retention_bytes: self.retention_bytes,
            delete_when: self.delete_when.clone(),
            accept_publish: self.accept_publish,
            accept_subscribe: self.accept_subscribe,
            stat: self.stat,
        }
    }

    fn tls_file(&self, which: impl Fn(&TlsFiles) -> &PathBuf) -> String {
        self.tls_files.as_ref().map(|files| which(files).display().to_string()).unwrap_or_default()
    }

    /// Each setting as one would write it in the file.
    pub fn settings(&self) -> Vec<(&'static Key, String)> {
        vec![
            (&keys::BROKER_ID, self.broker_id.to_string()),
            (&keys::HOST_NAME, self.host_name.clone().unwrap_or_default()),
            (&keys::BIND_HOST, self.bind_host.to_string()),
            (&keys::SERVER_PORT, self.server_port.to_string()),
            (&keys::DASHBOARD_HTTP_PORT, self.dashboard_http_port.to_string()),
            (&keys::DASHBOARD_HTTP_HOST, self.dashboard_http_host.to_string()),
            (&keys::TLS_PORT, self.tls_port.to_string()),
            (&keys::TLS_CERT_FILE, self.tls_file(|files| &files.certificate)),
            (&keys::TLS_KEY_FILE, self.tls_file(|files| &files.key)),
            (&keys::TLS_CA_FILE, self.tls_file(|files| &files.authorities)),
            (&keys::TLS_CLIENT_AUTH, self.tls_client_auth.to_string()),
            (&keys::REPLICATION_TRANSPORT, self.replication_transport.to_string()),
            (&keys::SLAVE_LAG_BOUND_IN_MILLS, self.slave_max_delay.as_millis().to_string()),
            (&keys::SLAVE_LAG_ACTION, self.slave_lag_action.to_string()),
            (&keys::DATA_PATH, self.data_path.display().to_string()),
            (&keys::DATA_LOG_PATH, self.data_log_path.display().to_string()),
            (&keys::MIN_FREE_DISK_BYTES, self.min_free_disk_bytes.to_string()),
            (&keys::NUM_PARTITIONS, self.num_partitions.to_string()),
            (&keys::UNFLUSH_THRESHOLD, self.unflush_threshold.to_string()),
            (&keys::UNFLUSH_INTERVAL, self.unflush_interval.as_millis().to_string()),
            (&keys::ACK_QUORUM, self.ack.quorum.to_string()),
            (&keys::ACK_TIMEOUT_IN_MILLS, self.ack.timeout.as_millis().to_string()),
            (&keys::ACK_QUORUM_DOWNGRADE, self.ack.downgrade.to_string()),
            (&keys::MAX_SEGMENT_SIZE, self.max_segment_size.to_string()),
            (&keys::MAX_TRANSFER_SIZE, self.max_transfer_size.to_string()),
            (&keys::DELETE_POLICY, self.delete_policy.to_string()),
            (&keys::RETENTION_BYTES, self.retention_bytes.to_string()),
            (&keys::DELETE_WHEN, self.delete_when.to_string()),
            (&keys::ACCEPT_PUBLISH, self.accept_publish.to_string()),
            (&keys::ACCEPT_SUBSCRIBE, self.accept_subscribe.to_string()),
            (&keys::STAT, self.stat.to_string()),
            (&keys::UPDATE_CONSUMER_OFFSETS, self.update_consumer_offsets.to_string()),
            (&keys::FLUSH_TX_LOG_AT_COMMIT, self.flush_tx_log_at_commit.number().to_string()),
            (&keys::MAX_CHECKPOINTS, self.max_checkpoints.to_string()),
            (&keys::CHECKPOINT_INTERVAL, self.checkpoint_interval.as_millis().to_string()),
            (&keys::MAX_TX_TIMEOUT_TIMER_CAPACITY, self.max_tx_timeout_timer_capacity.to_string()),
            (&keys::MAX_TX_TIMEOUT_IN_SECONDS, self.max_tx_timeout.as_secs().to_string()),
        ]
    }
}

/// `unflushThreshold` below 0 means the same as 0.
pub(crate) fn threshold(value: i64) -> u32 {
    u32::try_from(value.max(0)).expect("the key's range lies within 32 bits")
}

fn broker_id(values: &mut Values<'_>) -> BrokerId {
    BrokerId::new(values.integer(&keys::BROKER_ID)).expect("the key's range is that of broker ids")
}

fn default<T: std::str::FromStr<Err = String>>(key: &Key) -> T {
    let keys::Presence::Default(text) = key.presence else { panic!("{} has no default", key.name) };
    text.parse().expect("the key's default is valid")
}

fn data_path(values: &mut Values<'_>) -> PathBuf {
    if let Some(entry) = values.entry(&keys::DATA_PATH) {
        return values.path_of(&keys::DATA_PATH, &entry.value);
    }
    match std::env::home_dir() {
        Some(home) => home.join("meta"),
        None => {
            values.missing(&keys::DATA_PATH, "data");
            PathBuf::from("data")
        }
    }
}

fn parse_bind_host(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    bare.parse().map_err(|_| "is not an IP address to listen on; write for example 0.0.0.0 or ::".to_owned())
}

/// Two listeners on one port: the broker would not start, or have no console.
fn check_ports(system: &System, values: &mut Values<'_>) {
    let (server, tls, console) = (system.server_port, system.tls_port, system.dashboard_http_port);
    if tls != 0 && tls == server {
        let line = values.entry(&keys::TLS_PORT).map(|entry| entry.line);
        values.findings.error(line, format!("tlsPort {tls} is serverPort as well; give each a port of its own"));
    }
    let (bind, host) = (system.bind_host, system.dashboard_http_host);
    let is_same_address = bind == host || bind.is_unspecified() || host.is_unspecified();
    let taken = [("serverPort", server), ("tlsPort", tls)].into_iter().find(|(_, port)| *port == console);
    if let Some((name, _)) = taken.filter(|_| console != 0 && is_same_address) {
        let line = values.entry(&keys::DASHBOARD_HTTP_PORT).map(|entry| entry.line);
        let message = format!(
            "dashboardHttpPort {console} is {name} as well: there will be no console and no metrics; give each a port of \
             its own"
        );
        values.findings.warn(line, message);
    }
}

fn check_without_effect(values: &mut Values<'_>) {
    for key in keys::SYSTEM.iter().filter(|key| key.without_effect) {
        let Some(entry) = values.entry(key) else { continue };
        match key.kind {
            keys::Kind::Integer { .. } => drop(values.integer(key)),
            keys::Kind::Bool => drop(values.bool(key)),
            keys::Kind::Text => {
                values.findings.warn(entry.line, format!("{} has no effect: {}", key.name, key.meaning));
            }
        }
    }
}
