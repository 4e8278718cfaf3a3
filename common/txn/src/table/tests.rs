use super::*;

fn key(text: &str) -> TransactionKey {
    TransactionKey::parse(&Text::from(text)).unwrap().unwrap()
}

fn at(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

fn begun(key: &TransactionKey, puts: u32) -> Table {
    let mut table = Table::default();
    table.begin(1, key, None, 10, Instant::now()).unwrap();
    for put in 0..puts {
        let (number, target) = table.put(1, key, &"test-0".parse().unwrap(), 30).unwrap();
        table.put_done(number, Some(Message { at: at(u64::from(put) * 30), bytes: 30, target }));
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
        let put = table.put(1, &key, &"test-0".parse().unwrap(), 9).unwrap_err().to_string();
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
    assert!(table.put(1, &key, &"test-0".parse().unwrap(), 9).is_err());
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
