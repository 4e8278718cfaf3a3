//! Under `ackQuorum` the start asks the other slaves, copies what they hold more, and refuses where something that was
//! acknowledged may be missing then. The same question, without the copying.

use std::collections::BTreeMap;

use metaq_config::BrokerConfig;
use metaq_link::candidacy::{Answer, Candidate, doubts};
use metaq_link::members::KnownMember;
use metaq_link::promotion::Record;
use metaq_registry::lookup;
use metaq_types::{Epoch, Lineage, Offset, PartitionId};

use super::gather::REGISTRY_PATIENCE;
use crate::replicas;

/// What the start would doubt, as far as the others answer now; empty where no quorum was asked for.
pub(super) async fn ask(
    config: &BrokerConfig,
    record: &Record,
    node: &str,
    lineage: &Lineage,
    own_ends: &BTreeMap<PartitionId, Offset>,
) -> Vec<String> {
    if record.quorum <= 1 {
        return Vec::new();
    }
    let (mut ends, epoch) = (own_ends.clone(), lineage.epoch());
    let mut others = Vec::new();
    for member in others_of(config, record, node).await {
        let answer = answer_of(&member).await;
        if let Answer::Ends { epoch: theirs, ends: more } = &answer
            && *theirs == epoch
        {
            // The start copies that before it judges.
            for (partition, end) in more {
                let known = ends.entry(partition.clone()).or_insert(*end);
                *known = (*known).max(*end);
            }
        }
        others.push((member, answer));
    }
    doubts(Candidate { record, node, epoch, ends: &ends, starts: &lineage.starts() }, &others)
}

/// Those that this slave knows of, where they are registered now, and whoever else is.
async fn others_of(config: &BrokerConfig, record: &Record, node: &str) -> Vec<KnownMember> {
    let mut others = record.members.clone();
    if config.zookeeper.enable
        && let Ok(Ok(mut cluster)) = tokio::time::timeout(REGISTRY_PATIENCE, lookup(&config.zookeeper)).await
    {
        for (id, uri) in cluster.brokers.remove(&config.system.broker_id).unwrap_or_default().slaves {
            match others.iter_mut().find(|member| member.slave_id == id.get()) {
                Some(known) => known.uri = uri,
                None => others.push(KnownMember { slave_id: id.get(), node: String::new(), uri }),
            }
        }
    }
    others.retain(|member| !member.is(record.slave_id, node));
    others
}

async fn answer_of(member: &KnownMember) -> Answer {
    if member.uri.is_empty() {
        return Answer::Silent("it has not told where it serves".to_owned());
    }
    match replicas::ask_slave(&member.uri).await {
        Err(error) => Answer::Silent(format!("{error:#}")),
        Ok(said) => {
            let copies = said.link.iter().flat_map(|link| &link.partitions);
            let mut ends = said.ends.clone();
            for copy in copies {
                let end = ends.entry(copy.partition.clone()).or_insert(copy.own_end);
                *end = (*end).max(copy.own_end);
            }
            Answer::Ends { epoch: Epoch(said.epoch.unwrap_or(0)), ends }
        }
    }
}
