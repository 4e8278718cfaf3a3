use crate::answer::Answer;
use crate::dispatch::Conversation;
use crate::gate::Successor;
use crate::node::{NodeRole, Shared, VERSION, master_named};
use crate::outbound::Outbound;
use metaq_config::ReplicationTransport;
use metaq_link::members::members_word;
use metaq_net::refusals::Reason;
use metaq_store::Partition;
use metaq_types::limits::LONG_POLL_MAX;
use metaq_types::{Epoch, Opaque, SlaveId, Status};
use metaq_wire::{Greeting, Role, Version};
use std::sync::Arc;
use tokio::time::Instant;
use tracing::{info, warn};

/// The heartbeat of clients, and the greeting of replicas.
pub(crate) fn version(conversation: &mut Conversation, version: Version) {
    let Some(greeting) = version.greeting else {
        conversation.outbound().answer(version.opaque, Answer::text(Status::Success, VERSION));
        return;
    };
    if let Some(refusal) = unproven(conversation) {
        conversation.outbound().answer(version.opaque, refusal);
        return;
    }
    if let Some(refusal) = of_another_broker(&conversation.node, &greeting) {
        conversation.outbound().answer(version.opaque, refusal);
        return;
    }
    if is_newer(&conversation.node, &greeting) {
        let (epoch, node) = (Epoch(greeting.epoch), greeting.node.to_string());
        // A slave of it says where it serves itself.
        let uri = if greeting.role == Role::Master { greeting.uri.to_string() } else { String::new() };
        conversation.node.gate.replace(Successor { epoch, node, uri });
    }
    match greeting.role {
        Role::Master => {
            conversation.is_heir = is_heir(&conversation.node, &greeting);
            conversation.outbound().answer(version.opaque, welcome(&conversation.node));
        }
        Role::Slave => greet(conversation, version.opaque, greeting),
    }
}

/// The answer to a node of another broker id, which only a slip can have sent here: its log is none of ours, and its
/// reigns say nothing about ours.
fn of_another_broker(node: &Shared, greeting: &Greeting) -> Option<Answer> {
    let theirs = greeting.broker.filter(|theirs| *theirs != u32::from(node.broker_id.get()))?;
    let who = match (greeting.role, greeting.slave_id) {
        (Role::Slave, Some(id)) => format!("slave {id} of broker {theirs}"),
        _ => format!("a node of broker {theirs}"),
    };
    let text = format!(
        "this is broker {}, and whoever asks is {who}: correct its brokerId, or the address it was given (--master)",
        node.broker_id
    );
    warn!(node = &*greeting.node, "refused a node of another broker: {text}");
    Some(Answer::text(Status::Forbidden, text))
}

/// Whether a greeting ends our reign: a newer one is known there. A master that took our place says so itself; of two
/// with one epoch it is the one that greets.
fn is_newer(node: &Shared, greeting: &Greeting) -> bool {
    let (own, theirs) = (node.store.epoch(), Epoch(greeting.epoch));
    let reigns = greeting.role == Role::Master && !greeting.node.is_empty() && *greeting.node != *node.store.node_id();
    node.fenced_by_greeting
        && matches!(node.role, NodeRole::Master)
        && (theirs > own || (theirs == own && theirs > Epoch(0) && reigns))
}

/// Whether a slave is greeted by another of the same reign that is about to be promoted, and may need what we hold more.
fn is_heir(node: &Shared, greeting: &Greeting) -> bool {
    let is_heir = matches!(node.role, NodeRole::Slave { .. }) && Epoch(greeting.epoch) == node.store.epoch();
    if is_heir {
        info!(node = &*greeting.node, "another slave of our reign is to be promoted, and reads what it lacks here");
        node.store.logs().iter().for_each(Partition::request_sync);
    }
    is_heir
}

/// The answer to a greeting on a connection that proves nothing, where proof is asked for.
fn unproven(conversation: &Conversation) -> Option<Answer> {
    let node = &conversation.node;
    let asked = node.config.current().system.replication_transport == ReplicationTransport::Quic;
    if !asked || conversation.peer.is_proven() {
        return None;
    }
    let text = "replication is accepted over QUIC with a certificate of the cluster only (replicationTransport=quic)";
    if let Some(peer) = conversation.peer.address {
        node.refusals.refuse(Reason::Unproven, peer, text);
    }
    Some(Answer::text(Status::Forbidden, text))
}

/// A slave introduces itself, or asks again and waits for a change of the partitions.
fn greet(conversation: &mut Conversation, opaque: Opaque, greeting: Greeting) {
    let node = &Arc::clone(&conversation.node);
    if let NodeRole::Slave { slave_id, master, .. } = &node.role {
        let master = master_named(master);
        let text = format!(
            "this broker is slave {slave_id} of broker {}, not its master, which is {master}: slaves follow the master only; \
             correct --master or what stands in ZooKeeper",
            node.broker_id
        );
        conversation.outbound().answer(opaque, Answer::text(Status::InternalServerError, text));
        return;
    }
    if node.transactions.get().is_none() {
        // Followed now, it would take what comes for a part of our last reign.
        let text = format!("this master's reign has not begun yet: {}", node.gate.reason());
        conversation.outbound().answer(opaque, Answer::text(Status::ServiceUnavailable, text));
        return;
    }
    let slave = match greeting.slave_id.map(|id| SlaveId::new(i64::from(id))) {
        Some(Ok(slave)) => slave,
        Some(Err(error)) => {
            conversation.outbound().answer(opaque, Answer::text(Status::BadRequest, error.to_string()));
            return;
        }
        None => {
            let text = "a slave's greeting needs its id (id=…)";
            conversation.outbound().answer(opaque, Answer::text(Status::BadRequest, text));
            return;
        }
    };
    // A connection is one slave's, whatever it says later.
    let slave = conversation.replica.unwrap_or(slave);
    if conversation.replica.is_none() {
        let address = conversation.peer.address.map(|a| a.to_string()).unwrap_or_default();
        let greeted = node.replicas.lock().on_greeting(slave, &greeting.node, &address, std::time::Instant::now());
        if let Err(error) = greeted {
            conversation.outbound().answer(opaque, Answer::text(Status::InternalServerError, error.to_string()));
            return;
        }
        node.quorum.on_connect(slave, &address);
        info!(%slave, address, node = &*greeting.node, "slave connected");
        conversation.become_replica(slave);
    } else {
        node.replicas.lock().on_heard(slave, std::time::Instant::now());
    }
    node.quorum.on_greeting(slave, &greeting);
    if let (Some(known), Some(wait)) = (greeting.catalog, greeting.wait)
        && known == node.store.catalog_generation()
        && conversation.outbound().park()
    {
        let until = Instant::now() + wait.min(LONG_POLL_MAX);
        tokio::spawn(catalog_change(Arc::clone(node), Arc::clone(conversation.outbound()), opaque, known, until));
        return;
    }
    conversation.outbound().answer(opaque, welcome(node));
}

async fn catalog_change(node: Arc<Shared>, outbound: Arc<Outbound>, opaque: Opaque, known: u64, until: Instant) {
    tokio::select! {
        _ = node.store.catalog_beyond(known) => {}
        () = tokio::time::sleep_until(until) => {}
        () = node.stopping() => {}
        () = outbound.ended() => {}
    }
    outbound.unpark(opaque, welcome(&node));
}

/// What the other side of a greeting learns of us.
fn welcome(node: &Shared) -> Answer {
    let role = if matches!(node.role, NodeRole::Master) { "master" } else { "slave" };
    let quorum = node.quorum.look(|quorums| {
        let (roll, members) = (quorums.roll().number(), members_word(&quorums.roll().members()));
        quorums.smallest().map(|smallest| format!(" quorum={smallest} roll={roll} members={members}"))
    });
    let text = format!(
        "{VERSION} role={role} broker={} epoch={} node={} catalog={} ids={} config={} ahead=1{}",
        node.broker_id,
        node.store.epoch(),
        node.store.node_id(),
        node.store.catalog_generation(),
        node.store.ids().high_mark(),
        node.config.current().checksum,
        quorum.unwrap_or_default(),
    );
    Answer::text(Status::Success, text)
}
