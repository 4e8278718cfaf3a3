use crate::answer::Answer;
use crate::dispatch::Conversation;
use crate::node::{NodeRole, Shared, master_named};
use crate::settings::strictest_ack;
use metaq_txn::{Command, Coordinator};
use metaq_types::Status;
use metaq_wire::{Transaction, TransactionKey, TransactionKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// BEGIN, RECOVER and whatever ends a transaction (wire-protocol, "6.2"). What has to reach the journal first leaves a
/// slot behind.
pub(crate) fn transaction(conversation: &Conversation, transaction: &Transaction) {
    let node = &conversation.node;
    let answer = |answer| conversation.outbound().answer(transaction.opaque, answer);
    count(node, transaction);
    let command = match transaction.kind {
        // END is never answered.
        TransactionKind::End => return,
        TransactionKind::Begin | TransactionKind::Recover => None,
        TransactionKind::Prepare => Some(Command::Prepare),
        TransactionKind::CommitOnePhase => Some(Command::CommitOnePhase),
        TransactionKind::CommitTwoPhase => Some(Command::CommitTwoPhase),
        TransactionKind::Rollback => Some(Command::Rollback),
        TransactionKind::Forget => Some(Command::Forget),
        TransactionKind::HeuristicCommit => Some(Command::OperatorCommit),
        TransactionKind::HeuristicRollback => Some(Command::OperatorRollback),
        TransactionKind::HeuristicComplete => Some(Command::OperatorComplete),
    };
    let coordinator = match coordinator(node) {
        Ok(coordinator) => coordinator,
        Err(reason) => return answer(Answer::text(Status::InternalServerError, reason)),
    };
    let Some(command) = command else {
        return answer(at_once(conversation, coordinator, transaction));
    };
    let Some(key) = &transaction.key else {
        return answer(Answer::text(Status::InternalServerError, without_key(transaction.kind)));
    };
    let is_here = || conversation.peer.address.is_some_and(|peer| is_here(peer.ip(), node.listens.ip()));
    if is_operators(command) && !is_here() {
        let text = format!(
            "only an operator on the broker's machine may decide about a branch: run 'metaq --broker {} txn …' there",
            from_here(node.listens)
        );
        return answer(Answer::text(Status::Forbidden, text));
    }
    let shortage = shortage(node, command);
    let (outbound, node) = (Arc::clone(conversation.outbound()), Arc::clone(node));
    let ticket = outbound.owe_answer(transaction.opaque);
    let done = move |reply: Result<String, metaq_txn::Refused>| {
        outbound.fill(
            ticket,
            match reply {
                // What a master does that may have been replaced is no promise.
                Ok(_) if !node.gate.is_open() => Answer::text(Status::InternalServerError, node.gate.reason()),
                Ok(text) => Answer::text(Status::Success, text),
                Err(refused) => Answer::text(Status::InternalServerError, refused.to_string()),
            },
        );
    };
    coordinator.command(command, conversation.session, key, shortage, Box::new(done));
}

/// Why nothing can be decided: who has to hold the journal is not there.
fn shortage(node: &Shared, command: Command) -> Option<String> {
    let decides = matches!(
        command,
        Command::Prepare | Command::CommitOnePhase | Command::CommitTwoPhase | Command::OperatorCommit
    );
    let rules = strictest_ack(&node.config.current());
    if !decides || !rules.is_on() {
        return None;
    }
    let journal = node.store.journal()?;
    match node.quorum.admit(&journal, rules) {
        Ok(_) => None,
        Err(shortage) => {
            node.counters.quorum_refused();
            Some(shortage.to_string())
        }
    }
}

/// The node's coordinator, or why it takes no transactions.
pub(crate) fn coordinator(node: &Shared) -> Result<&Coordinator, String> {
    if let NodeRole::Slave { slave_id, master, .. } = &node.role {
        let master = master_named(master);
        return Err(format!(
            "this broker is slave {slave_id} of broker {} and takes no transactions; its master is: {master}",
            node.broker_id
        ));
    }
    node.transactions.get().filter(|_| node.gate.is_open()).ok_or_else(|| node.gate.reason())
}

fn count(node: &Shared, transaction: &Transaction) {
    let counters = &node.counters;
    match transaction.kind {
        TransactionKind::Begin => {
            counters.begin();
            if matches!(transaction.key, Some(TransactionKey::Xa { .. })) {
                counters.xa_begin();
            }
        }
        TransactionKind::CommitOnePhase | TransactionKind::CommitTwoPhase => counters.commit(),
        TransactionKind::Rollback => counters.rollback(),
        _ => {}
    }
}

/// What needs no entry in the journal.
fn at_once(conversation: &Conversation, coordinator: &Coordinator, transaction: &Transaction) -> Answer {
    if transaction.kind == TransactionKind::Recover {
        let keys = coordinator.recover(transaction.qualifier.as_ref().map(|qualifier| qualifier.as_str()));
        return Answer::text(Status::Success, keys.join("\r\n"));
    }
    let Some(key) = &transaction.key else {
        return Answer::text(Status::InternalServerError, without_key(transaction.kind));
    };
    if let Err(reason) = conversation.node.gate.admits() {
        return Answer::text(Status::InternalServerError, format!("no transaction can begin: {reason}"));
    }
    match coordinator.begin(conversation.session, key, transaction.timeout_seconds) {
        Ok(()) => Answer::text(Status::Success, String::new()),
        Err(refused) => Answer::text(Status::InternalServerError, refused.to_string()),
    }
}

fn without_key(kind: TransactionKind) -> String {
    match kind {
        TransactionKind::Forget => "XAException:code=-4,msg=null is not a valid xid".to_owned(),
        _ => format!("{} needs a transaction key, not null", kind.word()),
    }
}

fn is_operators(command: Command) -> bool {
    matches!(command, Command::OperatorCommit | Command::OperatorRollback | Command::OperatorComplete)
}

/// Whether a peer is on this machine. A broker that listens on one address is reached on no other, and who connects to
/// it from here comes from it.
fn is_here(peer: IpAddr, listens: IpAddr) -> bool {
    // IPv4 comes to a socket of IPv6 in a disguise.
    let peer = peer.to_canonical();
    peer.is_loopback() || peer == listens.to_canonical()
}

/// The address to connect to on this machine.
fn from_here(listens: SocketAddr) -> SocketAddr {
    let ip = if listens.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { listens.ip() };
    SocketAddr::new(ip, listens.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_connects_on_the_brokers_machine_is_an_operator_wherever_it_listens() {
        let cases = [
            ("127.0.0.1", "0.0.0.0", true),
            ("::1", "::", true),
            ("::ffff:127.0.0.1", "::", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("fd00::1", "fd00::1", true),
            ("10.0.0.2", "10.0.0.1", false),
            ("10.0.0.1", "0.0.0.0", false),
            ("::ffff:10.0.0.2", "::", false),
        ];
        for (peer, listens, expect) in cases {
            assert_eq!(is_here(peer.parse().unwrap(), listens.parse().unwrap()), expect, "{peer} at {listens}");
        }
        let cases = [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "127.0.0.1:1"), ("10.0.0.1:1", "10.0.0.1:1")];
        for (listens, expect) in cases {
            assert_eq!(from_here(listens.parse().unwrap()).to_string(), expect, "{listens}");
        }
    }
}
