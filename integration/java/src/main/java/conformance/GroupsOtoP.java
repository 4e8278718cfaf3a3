package conformance;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.XAMetaMessageSessionFactory;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.client.producer.XAMessageProducer;
import conformance.GroupsDtoE.Branch;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.XAConnection;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.mariadb.jdbc.MariaDbDataSource;

/** Two-phase commits over the broker and a database. The checks are the transaction manager, its log included. */
final class GroupsOtoP {
    private static final int MESSAGES = 2;
    private static final int WORKERS = 4;

    private GroupsOtoP() {
    }

    static void addTo(Suite s) {
        s.group("o");
        s.test("a row and its messages are committed or rolled back together", GroupsOtoP::asDecided);
        s.test("when the database refuses, the messages do not appear", GroupsOtoP::databaseRefuses);
        s.test("what is left prepared on both sides is finished by the manager's log", GroupsOtoP::managerGone);
        s.test("the broker is killed in the middle of 200 two-phase commits: both sides agree", () -> {
            present(Conf.CRASH, "conf.crash");
            amid(200, Conf.CRASH, new Place(Conf.HOST, Conf.PORT));
        });

        // The last of all: afterwards another broker is master.
        s.group("p");
        s.test("its slave is promoted in the middle of 200 two-phase commits: both sides agree", () -> {
            present(Conf.QUORUM, "conf.quorum");
            present(Conf.PROMOTE, "conf.promote");
            present(Conf.SLAVE, "conf.slave");
            Kit.hook(Conf.QUORUM);
            int colon = Conf.SLAVE.lastIndexOf(':');
            amid(200, Conf.PROMOTE,
                new Place(Conf.SLAVE.substring(0, colon), Integer.parseInt(Conf.SLAVE.substring(colon + 1))));
        });
    }

    private static void present(String parameter, String name) {
        if (parameter.isEmpty()) {
            throw new Suite.Skip("no " + name);
        }
    }

    /** Where the messages are to be read. */
    private static final class Place {
        final String host;
        final int port;

        Place(String host, int port) {
            this.host = host;
            this.port = port;
        }
    }

    /** A producer and a database connection that take part in the same transactions, one after the other. */
    private static final class Pair implements AutoCloseable {
        private final XAMetaMessageSessionFactory session;
        private final XAConnection connection;
        final XAMessageProducer producer;
        XAResource queue;
        final XAResource base;
        final Connection sql;

        Pair(String who) throws Exception {
            this.session = Kit.xaSession();
            XAConnection opened = null;
            try {
                this.producer = GroupsDtoE.xaProducer(this.session, -1);
                this.producer.setUniqueQualifier(who);
                this.queue = this.producer.getXAResource();
                opened = new MariaDbDataSource(Conf.XA_URL).getXAConnection();
                this.connection = opened;
                this.base = opened.getXAResource();
                this.sql = opened.getConnection();
            }
            catch (Exception e) {
                if (opened != null) {
                    opened.close();
                }
                this.session.shutdown();
                throw e;
            }
            Kit.onClose(this::close);
        }

        void start(Xid xid) throws Exception {
            // The client ties a resource to its thread until the end of one transaction: the next needs a new one, or
            // its messages are sent outside of it.
            this.queue = this.producer.getXAResource();
            this.queue.start(xid, XAResource.TMNOFLAGS);
            this.base.start(xid, XAResource.TMNOFLAGS);
        }

        /** The database rolls back what is not prepared. */
        @Override
        public void close() throws Exception {
            this.connection.close();
            this.session.shutdown();
        }
    }

    /** A transaction manager and what it has written down. */
    private static final class Manager {
        final String run = Kit.fresh("o");
        /** By global transaction id: each transaction whose branches were asked to prepare. */
        final Map<String, Integer> asked = new ConcurrentHashMap<>();
        /** Noted before any branch is told to commit. */
        final Set<Integer> committed = ConcurrentHashMap.newKeySet();
        private final Map<Integer, Long> begin = new HashMap<>();

        Manager() throws Exception {
            present(Conf.XA_URL, "conf.xa.url");
            try (Connection c = new MariaDbDataSource(Conf.XA_URL).getConnection(); Statement s = c.createStatement()) {
                s.execute("CREATE TABLE IF NOT EXISTS sent (run VARCHAR(64), number INT, PRIMARY KEY (run, number))"
                        + " ENGINE=InnoDB");
            }
            try (Raw raw = new Raw()) {
                for (int partition = 0; partition < 4; partition++) {
                    this.begin.put(partition, raw.end(Conf.MULTI, partition));
                }
            }
        }

        /** Does the work of a transaction in a branch of each side, and ends both. */
        Branch work(Pair pair, int number) throws Exception {
            Branch xid = new Branch();
            pair.start(xid);
            try (PreparedStatement s = pair.sql.prepareStatement("INSERT INTO sent VALUES (?, ?)")) {
                s.setString(1, this.run);
                s.setInt(2, number);
                s.executeUpdate();
            }
            for (int i = 0; i < MESSAGES; i++) {
                Message m = new Message(Conf.MULTI, Kit.bytes(this.run + ":" + number + ":" + i));
                SendResult r = pair.producer.sendMessage(m, 10, TimeUnit.SECONDS);
                Kit.check(r.isSuccess(), "send in a branch: " + r.getErrorMessage());
            }
            pair.base.end(xid, XAResource.TMSUCCESS);
            pair.queue.end(xid, XAResource.TMSUCCESS);
            return xid;
        }

        void prepare(Pair pair, int number, Branch xid) throws Exception {
            this.asked.put(name(xid), number);
            Kit.equal(XAResource.XA_OK, pair.queue.prepare(xid), "vote of the broker");
            Kit.equal(XAResource.XA_OK, pair.base.prepare(xid), "vote of the database");
        }

        void commit(Pair pair, int number, Branch xid) throws Exception {
            this.committed.add(number);
            pair.base.commit(xid, false);
            pair.queue.commit(xid, false);
        }

        /** Finishes, by the log, whatever either side still lists; how many branches that were. */
        int recover(Pair pair) throws Exception {
            int finished = 0;
            for (XAResource side : List.of(pair.queue, pair.base)) {
                for (Xid xid : side.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN)) {
                    Integer number = this.asked.get(name(xid));
                    if (number == null) {
                        continue;
                    }
                    if (this.committed.contains(number)) {
                        side.commit(xid, false);
                    }
                    else {
                        side.rollback(xid);
                    }
                    finished++;
                }
            }
            return finished;
        }

        /** Each transaction that was committed has its row and its messages, once; no other has any. */
        void agreed(int transactions, Place place) throws Exception {
            Set<Integer> rows = new HashSet<>();
            try (Connection c = new MariaDbDataSource(Conf.XA_URL).getConnection();
                    PreparedStatement s = c.prepareStatement("SELECT number FROM sent WHERE run = ?")) {
                s.setString(1, this.run);
                ResultSet r = s.executeQuery();
                while (r.next()) {
                    rows.add(r.getInt(1));
                }
            }
            Map<String, Integer> messages = new HashMap<>();
            try (Raw raw = new Raw(place.host, place.port)) {
                for (Map.Entry<Integer, Long> from : this.begin.entrySet()) {
                    for (Raw.Stored m : raw.readAll(Conf.MULTI, from.getKey(), from.getValue())) {
                        messages.merge(m.text(), 1, Integer::sum);
                    }
                }
            }
            for (int number = 0; number < transactions; number++) {
                boolean expected = this.committed.contains(number);
                Kit.equal(expected, rows.contains(number), "row of transaction " + number);
                for (int i = 0; i < MESSAGES; i++) {
                    int seen = messages.getOrDefault(this.run + ":" + number + ":" + i, 0);
                    Kit.equal(expected ? 1 : 0, seen, "message " + i + " of transaction " + number);
                }
            }
        }

        private static String name(Xid xid) {
            return new java.math.BigInteger(1, xid.getGlobalTransactionId()).toString(16);
        }
    }

    private static void asDecided() throws Exception {
        Manager manager = new Manager();
        Pair pair = new Pair(manager.run);
        for (int number = 0; number < 20; number++) {
            Branch xid = manager.work(pair, number);
            if (number % 4 == 3) {
                pair.base.rollback(xid);
                pair.queue.rollback(xid);
                continue;
            }
            manager.prepare(pair, number, xid);
            if (number % 4 == 2) {
                pair.base.rollback(xid);
                pair.queue.rollback(xid);
            }
            else {
                manager.commit(pair, number, xid);
            }
        }
        manager.agreed(20, new Place(Conf.HOST, Conf.PORT));
        Kit.equal(0, manager.recover(pair), "branches left");
    }

    private static void databaseRefuses() throws Exception {
        Manager manager = new Manager();
        Pair pair = new Pair(manager.run);
        Branch first = manager.work(pair, 0);
        manager.prepare(pair, 0, first);
        manager.commit(pair, 0, first);
        Branch second = new Branch();
        pair.start(second);
        Message m = new Message(Conf.MULTI, Kit.bytes(manager.run + ":1:0"));
        Kit.check(pair.producer.sendMessage(m, 10, TimeUnit.SECONDS).isSuccess(), "sent");
        Throwable refused = Kit.fails("a row that is there already", () -> {
            try (Statement s = pair.sql.createStatement()) {
                s.executeUpdate("INSERT INTO sent VALUES ('" + manager.run + "', 0)");
            }
        });
        Kit.check(refused instanceof SQLException, "refused with " + refused);
        pair.base.end(second, XAResource.TMFAIL);
        pair.queue.end(second, XAResource.TMFAIL);
        pair.base.rollback(second);
        pair.queue.rollback(second);
        manager.agreed(2, new Place(Conf.HOST, Conf.PORT));
    }

    private static void managerGone() throws Exception {
        Manager manager = new Manager();
        // Both prepared; decided and told to nobody, or to one of them; and not decided.
        for (int number = 0; number < 8; number++) {
            try (Pair pair = new Pair(manager.run)) {
                Branch xid = manager.work(pair, number);
                manager.prepare(pair, number, xid);
                if (number % 2 == 0) {
                    manager.committed.add(number);
                    if (number % 4 == 0) {
                        (number % 8 == 0 ? pair.queue : pair.base).commit(xid, false);
                    }
                }
            }
        }
        recoverAll(manager);
        manager.agreed(8, new Place(Conf.HOST, Conf.PORT));
    }

    /** The database lists a branch a moment after the connection that prepared it has ended. */
    private static void recoverAll(Manager manager) throws Exception {
        AtomicInteger quiet = new AtomicInteger();
        Kit.waitFor(30, () -> {
            try (Pair pair = new Pair(manager.run)) {
                return (manager.recover(pair) == 0 ? quiet.incrementAndGet() : quiet.getAndSet(0)) >= 3;
            }
        }, () -> "branches are left");
    }

    /** Runs two-phase commits on several threads, and the hook when a third of them is through. */
    private static void amid(int transactions, String hook, Place after) throws Exception {
        Manager manager = new Manager();
        AtomicInteger next = new AtomicInteger();
        AtomicInteger cut = new AtomicInteger();
        List<Throwable> failures = java.util.Collections.synchronizedList(new ArrayList<>());
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < WORKERS; i++) {
            Thread worker = new Thread(() -> {
                try {
                    runAll(manager, transactions, next, cut);
                }
                catch (Throwable t) {
                    failures.add(t);
                }
            }, "two-phase-" + i);
            worker.start();
            workers.add(worker);
        }
        Kit.waitFor(30, () -> manager.committed.size() >= transactions / 3 || !failures.isEmpty(),
            () -> manager.committed.size() + " committed");
        Kit.hook(hook);
        for (Thread worker : workers) {
            worker.join(TimeUnit.SECONDS.toMillis(90));
            Kit.check(!worker.isAlive(), "a worker goes on after " + hook);
        }
        if (!failures.isEmpty()) {
            throw new AssertionError("a worker gave up", failures.get(0));
        }
        recoverAll(manager);
        manager.agreed(transactions, after);
        Kit.check(manager.committed.size() >= transactions - cut.get(), "committed: " + manager.committed.size());
        System.out.println("           committed " + manager.committed.size() + " of " + transactions
                + ", cut off between the first prepare and the last commit: " + cut);
    }

    private static void runAll(Manager manager, int transactions, AtomicInteger next, AtomicInteger cut)
            throws Exception {
        Pair pair = null;
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        for (int number = next.getAndIncrement(); number < transactions; number = next.getAndIncrement()) {
            Branch xid = null;
            // Until something is prepared nothing is promised, and the transaction is simply done again.
            while (xid == null) {
                try {
                    pair = pair == null ? new Pair(manager.run) : pair;
                    xid = manager.work(pair, number);
                }
                catch (Exception | AssertionError e) {
                    pair = give(pair);
                    if (System.nanoTime() > end) {
                        throw e;
                    }
                    Thread.sleep(200);
                }
            }
            try {
                manager.prepare(pair, number, xid);
                manager.commit(pair, number, xid);
            }
            catch (Exception | AssertionError e) {
                // What became of it is found out at the end.
                cut.incrementAndGet();
                pair = give(pair);
            }
        }
        give(pair);
    }

    private static Pair give(Pair pair) {
        try {
            if (pair != null) {
                pair.close();
            }
        }
        catch (Exception e) {
            // Its connection may be gone already.
        }
        return null;
    }
}
