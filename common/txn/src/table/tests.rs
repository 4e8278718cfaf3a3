use super::*;
use crate::held::{NewMessage, placed};
use bytes::Bytes;
use metaq_types::MessageId;

fn key(text: &str) -> TransactionKey {
    TransactionKey::parse(&Text::from(text)).unwrap().unwrap()
}

fn at(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

const HELD: HeldMax = HeldMax { of_one: 1000, of_all: 1500 };
const WRITTEN: HeldMax = HeldMax { of_one: 0, of_all: 0 };

/// A message of 100 bytes.
fn put(table: &mut Table, key: &TransactionKey, id: i64, held_max: HeldMax, journal_end: u64) -> Result<Taken, String> {
    let number = table.open(1, key).map_err(|refused| refused.to_string())?;
    let (partition, body) = ("test-0".parse().unwrap(), Bytes::from(vec![b'm'; 100]));
    let message = NewMessage { flag: 0, checksum: metaq_wire::checksum(&body), body };
    let held = Held::new(number, key, MessageId(id), &partition, message);
    let taken = table.put(number, key, &partition, held, held_max, at(journal_end));
    taken.map_err(|refused| refused.to_string())
}

fn run(taken: Result<Taken, String>) -> Vec<Held> {
    match taken.unwrap() {
        Taken::Run(run) => run,
        Taken::Held => panic!("it waits in memory"),
    }
}

fn ids(run: &[Held]) -> Vec<i64> {
    run.iter().map(|held| held.id().0).collect()
}

/// With so many messages, which are in the journal.
fn begun(key: &TransactionKey, puts: u32) -> Table {
    let mut table = Table::default();
    table.begin(1, key, None, 10, Instant::now()).unwrap();
    for number in 0..puts {
        let place = u64::from(number) * 1000;
        let run = run(put(&mut table, key, number.into(), WRITTEN, place));
        table.run_done(1, placed(&run, at(place)));
    }
    table
}

fn outcome(claim: Claim) -> Result<Work, String> {
    match claim {
        Claim::Answer(Ok(text)) => Err(format!("200 {text}")),
        Claim::Answer(Err(refused)) => Err(refused.to_string()),
        Claim::Go(_, work) => Ok(work),
        Claim::Wait(_) => Err("wait".to_owned()),
    }
}

const XID: &str = "XID:100:0102:0a:uq";

/// The table of wire-protocol, "6.6", row by row.
#[test]
fn xa_commands_by_state() {
    let key = key(XID);
    let commit = Work::Commit { by_operator: false };
    let rollback = Work::Rollback { by_operator: false };
    let not_prepared =
        "XAException:code=-6,msg=Cannot do 2 phase commit if the transaction has not been prepared.".to_owned();
    let not_started = format!("XAException:code=-4,msg=XA transaction '{XID}' has not been started.");
    let prepared_already = "XAException:code=-6,msg=Cannot call prepare now.".to_owned();
    use Command::*;
    for (command, no_put, put, prepared, unknown) in [
        (Prepare, Err("200 3".to_owned()), Ok(Work::Prepare), Err(prepared_already), Err(not_started.clone())),
        (CommitOnePhase, Err("200 ".to_owned()), Ok(commit), Ok(commit), Err(not_started.clone())),
        (CommitTwoPhase, Err(not_prepared.clone()), Err(not_prepared), Ok(commit), Err(not_started.clone())),
        (Rollback, Err("200 ".to_owned()), Ok(rollback), Ok(rollback), Err(not_started)),
        (Forget, Err("200 ".to_owned()), Err("200 ".to_owned()), Err("200 ".to_owned()), Err("200 ".to_owned())),
    ] {
        assert_eq!(outcome(begun(&key, 0).claim(command, 9, &key)), no_put, "{command:?} without a put");
        assert_eq!(outcome(begun(&key, 1).claim(command, 9, &key)), put, "{command:?} with a put");
        let mut table = begun(&key, 1);
        table.release(1, State::Prepared);
        assert_eq!(outcome(table.claim(command, 9, &key)), prepared, "{command:?} prepared");
        assert_eq!(outcome(Table::default().claim(command, 9, &key)), unknown, "{command:?} unknown");
    }
}

#[test]
fn local_transactions_belong_to_their_connection() {
    let key = key("TX:s:1");
    let unknown = "Local transaction 'TX:s:1' has not been started.".to_owned();
    for command in [Command::CommitOnePhase, Command::CommitTwoPhase] {
        assert_eq!(outcome(begun(&key, 1).claim(command, 1, &key)), Ok(Work::Commit { by_operator: false }));
        assert_eq!(outcome(begun(&key, 1).claim(command, 2, &key)), Err(unknown.clone()));
    }
    let prepare = outcome(begun(&key, 1).claim(Command::Prepare, 1, &key));
    assert_eq!(prepare, Err("XAException:code=-3,msg=Prepare not implemented on Local Transactions.".to_owned()));
    let forget = outcome(begun(&key, 1).claim(Command::Forget, 1, &key));
    assert_eq!(forget, Err("XAException:code=-4,msg=TX:s:1 is not a valid xid".to_owned()));
    let table = begun(&key, 1);
    assert_eq!((table.of_session(1).len(), table.of_session(2).len()), (1, 0));
}

#[test]
fn what_the_operator_ended_is_told_until_it_is_forgotten() {
    let key = key(XID);
    for (ended, code) in [
        (Outcome::Committed, "code=7,msg=XA transaction 'XID:100:0102:0a:uq' has been heuristically committed."),
        (Outcome::RolledBack, "code=6,msg=XA transaction 'XID:100:0102:0a:uq' has been heuristically rolled back."),
        (Outcome::Completed, "code=8,msg=XA transaction 'XID:100:0102:0a:uq' has been heuristically completed."),
    ] {
        let mut table = begun(&key, 1);
        table.release(1, State::Ended(ended));
        for command in [Command::Prepare, Command::CommitTwoPhase, Command::Rollback] {
            assert_eq!(outcome(table.claim(command, 1, &key)), Err(format!("XAException:{code}")));
        }
        let put = put(&mut table, &key, 9, HELD, 0).unwrap_err();
        assert_eq!(format!("{},msg={put}", code.split(',').next().unwrap()), code);
        assert_eq!(table.recover(None), [XID]);
        assert_eq!(outcome(table.claim(Command::Forget, 1, &key)), Ok(Work::Forget));
    }
}

#[test]
fn commands_wait_while_another_is_carried_out_and_puts_are_refused() {
    let key = key(XID);
    let mut table = begun(&key, 1);
    assert_eq!(outcome(table.claim(Command::Prepare, 1, &key)), Ok(Work::Prepare));
    let Claim::Wait(mut wait) = table.claim(Command::CommitTwoPhase, 1, &key) else { panic!("it has to wait") };
    assert!(wait.try_recv() == Err(oneshot::error::TryRecvError::Empty));
    assert!(put(&mut table, &key, 9, HELD, 0).is_err());
    table.release(1, State::Prepared);
    assert!(wait.try_recv() == Err(oneshot::error::TryRecvError::Closed));
    assert_eq!(outcome(table.claim(Command::CommitTwoPhase, 1, &key)), Ok(Work::Commit { by_operator: false }));
}

#[test]
fn timers_are_counted_and_end_with_prepare() {
    let now = Instant::now();
    let mut table = Table::default();
    let second = Some(Duration::from_secs(1));
    for number in 0..2 {
        table.begin(1, &key(&format!("TX:s:{number}")), second, 2, now).unwrap();
    }
    let refused = table.begin(1, &key("TX:s:2"), second, 2, now).unwrap_err();
    assert_eq!(refused.to_string(), "Timer size 3 is great than maxTimerCapacity 2");
    table.begin(1, &key("TX:s:2"), None, 2, now).unwrap();
    assert_eq!(table.expired(now + Duration::from_millis(999)), Vec::<Number>::new());
    assert_eq!(table.expired(now + Duration::from_secs(1)), [1, 2]);
    table.release(1, State::Prepared);
    table.end(2);
    assert_eq!(table.expired(now + Duration::from_secs(9)), Vec::<Number>::new());
}

#[test]
fn messages_wait_in_memory_until_there_are_too_many() {
    let (one, other) = (key(XID), key("TX:s:1"));
    let mut table = begun(&one, 0);
    table.begin(1, &other, None, 10, Instant::now()).unwrap();
    let held = (0..).take_while(|id| put(&mut table, &one, *id, HELD, 7) == Ok(Taken::Held)).count();
    assert!((3..10).contains(&held), "{held} of 100 bytes and a header each in {HELD:?}");
    // All that waited goes with the one that did not fit, and the next ones wait again.
    let number = table.open(1, &one).unwrap();
    assert_eq!(table.oldest(), Some(at(7)));
    assert_eq!(table.get(number).unwrap().message_count(), held + 1);
    assert!(table.unsettled(number).is_some());
    for id in 0..held {
        assert_eq!(put(&mut table, &one, 100 + id as i64, HELD, 900), Ok(Taken::Held));
    }
    assert_eq!(table.oldest(), Some(at(7)), "the first place stays");
    // Another one finds little room left in what all share.
    let room = (0..).take_while(|id| put(&mut table, &other, 200 + id, HELD, 900) == Ok(Taken::Held)).count();
    assert!(room < held, "{room} as well");
    table.end(number);
    assert_eq!(put(&mut table, &other, 300, HELD, 901), Ok(Taken::Held), "what is over has left its room");
}

#[test]
fn a_run_that_failed_waits_again_without_its_last() {
    let key = key(XID);
    let mut table = begun(&key, 0);
    for id in 0..2 {
        assert_eq!(put(&mut table, &key, id, HELD, 0), Ok(Taken::Held));
    }
    let first = run(put(&mut table, &key, 2, WRITTEN, 0));
    assert_eq!(put(&mut table, &key, 3, HELD, 0), Ok(Taken::Held));
    let second = run(put(&mut table, &key, 4, WRITTEN, 0));
    assert_eq!((ids(&first), ids(&second)), (vec![0, 1, 2], vec![3, 4]));
    assert!(table.unsettled(1).is_some());
    table.run_failed(1, second);
    table.run_failed(1, first);
    assert!(table.unsettled(1).is_none());
    assert_eq!(ids(&table.take_held(1, at(0))), [0, 1, 3], "in the order they were put");
    let transaction = table.get(1).unwrap();
    assert_eq!((transaction.message_count(), transaction.run_bytes), (0, 3 * 120));
}

/// Nothing of it is in the journal, so there is nothing to roll back there.
#[test]
fn what_was_not_written_ends_at_once() {
    let key = key("TX:s:1");
    let mut table = begun(&key, 0);
    assert_eq!(put(&mut table, &key, 0, HELD, 0), Ok(Taken::Held));
    assert_eq!(outcome(table.claim(Command::Rollback, 1, &key)), Err("200 ".to_owned()));
    assert!(table.get(1).is_none());
    let mut table = begun(&key, 0);
    assert_eq!(put(&mut table, &key, 0, HELD, 0), Ok(Taken::Held));
    assert!(table.end_unwritten(1) && !table.end_unwritten(1));
    let mut table = begun(&key, 1);
    assert!(!table.end_unwritten(1), "there is something in the journal");
    assert_eq!(outcome(table.claim(Command::Rollback, 1, &key)), Ok(Work::Rollback { by_operator: false }));
}
