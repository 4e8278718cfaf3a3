package conformance;

import java.util.Locale;

/** Where the broker under test is and what it offers. All of it comes from system properties. */
final class Conf {
    static final String ZK = get("conf.zk", "127.0.0.1:2181");
    static final String ROOT = get("conf.root", "/meta");
    static final String HOST;
    static final int PORT;
    /** A topic with exactly one partition. */
    static final String SINGLE = get("conf.topic.single", "test");
    /** A topic with several partitions. */
    static final String MULTI = get("conf.topic.multi", "meta-test");
    /** A second topic, for transactions over two topics. */
    static final String TX = get("conf.topic.tx", "meta-tx");
    /** A topic that subscribers see and publishers do not; empty when there is none. */
    static final String CLOSED = get("conf.topic.closed", "meta-closed");
    /** A topic whose oldest segments are already deleted, so its lowest offset is above 0; empty when there is none. */
    static final String TRIMMED = get("conf.topic.trimmed", "");
    /** The groups or checks to run, e.g. "abj" or "a3,f1"; empty for all. */
    static final String ONLY = get("conf.only", "").toLowerCase(Locale.ROOT);
    static final String SKIP = get("conf.skip", "").toLowerCase(Locale.ROOT);
    /** Shell commands; the tests that need them are skipped when they are absent. */
    static final String RESTART = get("conf.restart", "");
    static final String CRASH = get("conf.crash", "");
    static final String MASTER_STOP = get("conf.master.stop", "");
    static final String MASTER_START = get("conf.master.start", "");
    static final String SLAVE = get("conf.slave", "");
    /** Makes the master ask its slave before it answers; kills the master and promotes the slave, at its address. */
    static final String QUORUM = get("conf.quorum", "");
    static final String PROMOTE = get("conf.promote", "");
    /** A MariaDB that takes part in two-phase commits. */
    static final String XA_URL = get("conf.xa.url", "");
    /** A database in a file unless another is named. */
    static final String JDBC_URL = get("conf.jdbc.url", "");
    static final String JDBC_USER = get("conf.jdbc.user", "");
    static final String JDBC_PASSWORD = get("conf.jdbc.password", "");
    /** Largest payload to try; the broker's default transfer limit is 1 MiB. */
    static final int MAX_PAYLOAD = Integer.parseInt(get("conf.maxPayload", String.valueOf(1024 * 1024 - 256)));
    static final int MESSAGES = Integer.parseInt(get("conf.messages", "1000"));
    /** Differences the original shows count as failures too. */
    static final boolean STRICT = Boolean.parseBoolean(get("conf.strict", "false"));
    static final String WORK = get("conf.work", "target/work");

    static {
        String broker = get("conf.broker", "127.0.0.1:8123");
        int colon = broker.lastIndexOf(':');
        HOST = broker.substring(0, colon);
        PORT = Integer.parseInt(broker.substring(colon + 1));
    }

    private Conf() {
    }

    private static String get(String key, String otherwise) {
        String value = System.getProperty(key);
        return value == null || value.isEmpty() ? otherwise : value.trim();
    }
}
