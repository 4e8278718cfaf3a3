//! A promotion under `ackQuorum`: what was acknowledged may lie on several slaves, so the others are asked first, what
//! they have more is copied from them, and whoever may lack something all the same is refused.
//!
//! They are asked twice: before anything is changed, so that a promotion that would lose something leaves no trace; and
//! when the old master can acknowledge nothing any more, which until then it may have gone on doing with those slaves
//! that still reached it.

use crate::reign::{self, Consent};
use anyhow::{Result, bail};
use metaq_broker::{Node, rules_for};
use metaq_config::BrokerConfig;
use metaq_link::candidacy::{Answer, Candidate, doubts};
use metaq_link::driver::{LinkTransport, Peer};
use metaq_link::members::KnownMember;
use metaq_link::promotion::Record;
use metaq_registry::fence::{Fence, wait_for_vacancy};
use metaq_registry::lookup;
use metaq_store::{Partition, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::{info, warn};

/// A slave that has not answered within this is not there.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Who else is registered is worth waiting for, but not for long.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// If this data was a slave's under a quorum: gathers what the others have more, and says whether anything that was
/// acknowledged may be missing then. An error: it may, and the operator has not accepted that.
pub(crate) async fn settle(
    config: &BrokerConfig,
    store: &Arc<Store>,
    transport: &LinkTransport,
    consent: Consent,
) -> Result<()> {
    match record_of(config) {
        Some(record) => gather(config, store, transport, consent, record, |_| ()).await,
        None => Ok(()),
    }
}

/// The same for the second time, with the fence in hand. `node` serves reads already, and has to know of partitions that
/// come with what is copied before anything is in them. Waits for ZooKeeper for ever. May be cancelled.
pub(crate) async fn settle_again(
    config: &BrokerConfig,
    store: &Arc<Store>,
    transport: &LinkTransport,
    consent: Consent,
    (node, fence): (&Node, &Fence),
) -> Result<()> {
    let Some(record) = record_of(config) else { return Ok(()) };
    let awaits = |holder: &str| node.gate().say(&reign::awaits(holder));
    wait_for_vacancy(&config.zookeeper, config.system.broker_id, fence, awaits).await;
    gather(config, store, transport, consent, record, |made| node.hold_back(made)).await
}

/// What this data knows as a slave of a quorum; `None` if it is none, or cannot be read, which the measurement tells.
fn record_of(config: &BrokerConfig) -> Option<Record> {
    Record::load(&config.system.data_path).ok().flatten().filter(|record| record.quorum > 1)
}

async fn gather(
    config: &BrokerConfig,
    store: &Arc<Store>,
    transport: &LinkTransport,
    consent: Consent,
    mut record: Record,
    made: impl Fn(&Arc<Partition>),
) -> Result<()> {
    let (mut others, mut failures, mut copied) = (Vec::new(), Vec::new(), 0);
    let mut to_ask = others_of(config, &record, store.node_id()).await;
    while let Some(mut member) = to_ask.pop() {
        let answer = match ask(transport, &member, store).await {
            Err(reason) => Answer::Silent(reason),
            Ok(peer) => {
                peer.node.clone_into(&mut member.node);
                if peer.epoch == store.epoch() {
                    match peer.copy_more(store, |id| rules_for(config, &id.topic), &made).await {
                        Ok(bytes) => copied += bytes,
                        Err(reason) => failures.push(format!("slave {}: {reason}", member.slave_id)),
                    }
                    to_ask.extend(learn(&mut record, store.node_id(), &peer, &others, &member));
                }
                Answer::Ends { epoch: peer.epoch, ends: peer.ends() }
            }
        };
        others.push((member, answer));
    }
    let ends = store.logs().iter().map(|log| (log.id().clone(), log.positions().written)).collect();
    let starts = store.lineage()?.starts();
    let (node, epoch) = (store.node_id(), store.epoch());
    let candidate = Candidate { record: &record, node, epoch, ends: &ends, starts: &starts };
    let mut doubts = doubts(candidate, &others);
    if !doubts.is_empty() {
        doubts.append(&mut failures);
    }
    conclude(&doubts, others.len(), copied, consent)
}

/// Takes over a newer list of members from one of them; answers who is to be asked for the first time.
fn learn(
    record: &mut Record,
    node: &str,
    peer: &Peer,
    asked: &[(KnownMember, Answer)],
    now: &KnownMember,
) -> Vec<KnownMember> {
    if peer.roll <= record.roll {
        return Vec::new();
    }
    let known = |new: &KnownMember| {
        let is = |member: &KnownMember| member.is(new.slave_id, &new.node);
        new.is(record.slave_id, node) || is(now) || record.members.iter().any(is) || asked.iter().any(|(m, _)| is(m))
    };
    let news = peer.members.iter().filter(|member| !known(member)).cloned().collect();
    (record.roll, record.members) = (peer.roll, peer.members.clone());
    news
}

fn conclude(doubts: &[String], others: usize, copied: u64, consent: Consent) -> Result<()> {
    if doubts.is_empty() {
        info!(others, copied, "promotion: nothing that a quorum acknowledged is missing here");
        return Ok(());
    }
    let doubts = doubts.join("; ");
    if !consent.loss {
        bail!(
            "promotion refused: messages that were acknowledged may be missing here: {doubts}. Start the other slaves, so \
             that they can be asked, or promote the one that holds more; to reign with what is here, and lose what is \
             not, start with --accept-loss"
        );
    }
    warn!("promotion: messages that were acknowledged may be missing here, as --accept-loss allows: {doubts}");
    Ok(())
}

/// The members that this slave knew, and who else is registered.
async fn others_of(config: &BrokerConfig, record: &Record, node: &str) -> Vec<KnownMember> {
    let mut others = record.members.clone();
    if config.zookeeper.enable {
        let found = match timeout(LOOKUP_TIMEOUT, lookup(&config.zookeeper)).await {
            Ok(Ok(mut cluster)) => cluster.brokers.remove(&config.system.broker_id).unwrap_or_default().slaves,
            Ok(Err(error)) => {
                warn!("promotion: other slaves cannot be looked up: {error}");
                Default::default()
            }
            Err(_) => {
                warn!("promotion: other slaves cannot be looked up within {LOOKUP_TIMEOUT:?}");
                Default::default()
            }
        };
        for (id, uri) in found {
            match others.iter_mut().find(|member| member.slave_id == id.get()) {
                // Where it is registered now is where it serves now.
                Some(known) => known.uri = uri,
                None => others.push(KnownMember { slave_id: id.get(), node: String::new(), uri }),
            }
        }
    }
    others.retain(|member| !member.is(record.slave_id, node));
    others
}

async fn ask(transport: &LinkTransport, member: &KnownMember, store: &Store) -> Result<Peer, String> {
    if member.uri.is_empty() {
        return Err("it has not told where it serves".to_owned());
    }
    match timeout(ASK_TIMEOUT, Peer::ask(transport, &member.uri, store)).await {
        Ok(Ok(peer)) if !member.is(member.slave_id, &peer.node) => {
            Err("another data directory serves at its address".to_owned())
        }
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", ASK_TIMEOUT.as_secs())),
    }
}
