//! What consumers keep in ZooKeeper about their groups, read once; for the operator's tool. Nothing here writes.

use crate::lookup::{LookupError, children, data, in_time, open};
use crate::paths::{self, Paths};
use metaq_config::ZooKeeper;
use metaq_types::Offset;
use std::collections::BTreeMap;
use zookeeper_client::{Client, Error};

/// One consumer group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The topics that each member which is there now has subscribed, by consumer id.
    pub members: BTreeMap<String, Vec<String>>,
    /// By topic and the name of the node, `BROKER-NUMBER` as a rule: see [`paths::parse_partition`].
    pub partitions: BTreeMap<(String, String), GroupPartition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPartition {
    /// The consumer id of the member that reads it.
    pub owner: Option<String>,
    /// Where the group stands; `None` when that was never written.
    pub stored: Option<Stored>,
}

/// What stands in an offset node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    At(Offset),
    /// A text that no consumer can read either.
    Unreadable(String),
}

/// Reads all groups, or the named one, with a session of its own. A group that is not there is not in the answer.
pub async fn lookup_groups(zk: &ZooKeeper, only: Option<&str>) -> Result<BTreeMap<String, Group>, LookupError> {
    let client = open(zk).await?;
    in_time(zk, Box::pin(read(&client, &Paths::new(&zk.root), only))).await
}

async fn read(client: &Client, paths: &Paths, only: Option<&str>) -> Result<BTreeMap<String, Group>, Error> {
    let mut groups = BTreeMap::new();
    for name in children(client, vec![paths.consumers()]).await?.remove(0) {
        if only.is_none_or(|only| only == name) {
            let group = group(client, paths, &name).await?;
            groups.insert(name, group);
        }
    }
    Ok(groups)
}

async fn group(client: &Client, paths: &Paths, name: &str) -> Result<Group, Error> {
    let mut group = Group::default();
    let text = |data: Vec<u8>| String::from_utf8_lossy(&data).into_owned();
    let ids = paths.group(name, "ids");
    let members = children(client, vec![ids.clone()]).await?.remove(0);
    let subscribed = data(client, members.iter().map(|member| format!("{ids}/{member}")).collect()).await?;
    for (member, topics) in members.into_iter().zip(subscribed) {
        // One that went meanwhile has no data.
        let Some(topics) = topics.map(text) else { continue };
        let topics = topics.split(',').filter(|topic| !topic.is_empty()).map(str::to_owned).collect();
        group.members.insert(member, topics);
    }
    for (place, owner) in nodes(client, &paths.group(name, "owners")).await? {
        group.partitions.entry(place).or_default().owner = Some(text(owner));
    }
    for (place, stored) in nodes(client, &paths.group(name, "offsets")).await? {
        let at = paths::parse_stored_offset(&stored).map(Stored::At);
        group.partitions.entry(place).or_default().stored =
            Some(at.unwrap_or_else(|| Stored::Unreadable(text(stored))));
    }
    Ok(group)
}

/// The data of every node two levels below, by topic and name.
async fn nodes(client: &Client, above: &str) -> Result<Vec<((String, String), Vec<u8>)>, Error> {
    let topics = children(client, vec![above.to_owned()]).await?.remove(0);
    let names = children(client, topics.iter().map(|topic| format!("{above}/{topic}")).collect()).await?;
    let places: Vec<(String, String)> = topics
        .iter()
        .zip(names)
        .flat_map(|(topic, names)| names.into_iter().map(move |name| (topic.clone(), name)))
        .collect();
    let found = data(client, places.iter().map(|(topic, name)| format!("{above}/{topic}/{name}")).collect()).await?;
    Ok(places.into_iter().zip(found).filter_map(|(place, data)| Some((place, data?))).collect())
}
