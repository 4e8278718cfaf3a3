import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.consumer.SimpleFetchManager;
import com.taobao.metamorphosis.client.consumer.TopicPartitionRegInfo;
import com.taobao.metamorphosis.client.consumer.storage.ZkOffsetStorage;
import com.taobao.metamorphosis.cluster.Partition;
import com.taobao.metamorphosis.utils.MetaZookeeper;
import com.taobao.metamorphosis.utils.ZkUtils;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.Executor;
import java.util.zip.CRC32;
import org.I0Itec.zkclient.ZkClient;

/**
 * Consumers of the original client, as one group with its offsets in ZooKeeper, which say what they see. Commands come
 * by standard input, one a line:
 *
 * <pre>
 * begin ZOOKEEPER ROOT GROUP CONSUMERS TOPIC,...   and "begun GROUP" is answered
 * end                                              and "ended GROUP" is answered, with nothing of the group after it
 * </pre>
 *
 * In between, in the order in which it happens:
 *
 * <pre>
 * got TOPIC PARTITION END KEY ID LENGTH CRC    a message that ends at END
 * stored TOPIC PARTITION OFFSET                what ZooKeeper holds after a commit
 * loaded TOPIC PARTITION OFFSET                where a consumer that was given the partition begins
 * </pre>
 */
public final class FireConsumer {
    private static final int KEY_DIGITS = 20;

    private FireConsumer() {
    }

    public static void main(String[] args) throws Exception {
        // The client would hide a message that comes twice by remembering ids.
        SimpleFetchManager.setMessageIdCache(null);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Group group = null;
        String line;
        while ((line = commands.readLine()) != null) {
            String[] words = line.split(" ");
            if (words[0].equals("begin")) {
                group = new Group(words[1], words[2], words[3]);
                group.join(Integer.parseInt(words[4]), words[5].split(","));
            }
            else if (words[0].equals("end") && group != null) {
                group.leave();
                group = null;
            }
        }
        // The client leaves threads behind.
        Runtime.getRuntime().halt(0);
    }

    private static final class Group {
        private final String zookeeper;
        private final String root;
        private final String name;
        private final List<MetaMessageSessionFactory> sessions = new ArrayList<>();
        private final List<ZkClient> stores = new ArrayList<>();
        private boolean over;

        Group(String zookeeper, String root, String name) {
            this.zookeeper = zookeeper;
            this.root = root;
            this.name = name;
        }

        void join(int consumers, String[] topics) throws Exception {
            for (int i = 0; i < consumers; i++) {
                MetaMessageSessionFactory session = new MetaMessageSessionFactory(this.configure(new MetaClientConfig()));
                this.sessions.add(session);
                ConsumerConfig config = this.configure(new ConsumerConfig(this.name));
                config.setMaxDelayFetchTimeInMills(100);
                config.setCommitOffsetPeriodInMills(500);
                config.setFetchTimeoutInMills(3000);
                config.setFetchRunnerCount(2);
                ZkClient store = new ZkClient(this.zookeeper, 4000, 10000, new ZkUtils.StringSerializer());
                this.stores.add(store);
                MessageConsumer consumer = session.createConsumer(config, new Offsets(this, store));
                for (String topic : topics) {
                    consumer.subscribe(topic, 256 * 1024, new Listener(this));
                }
                consumer.completeSubscribe();
            }
            this.say("begun " + this.name);
        }

        private <C extends MetaClientConfig> C configure(C config) {
            ZKConfig zk = new ZKConfig();
            zk.zkConnect = this.zookeeper;
            zk.zkRoot = this.root;
            zk.zkSessionTimeoutMs = 4000;
            zk.zkConnectionTimeoutMs = 10000;
            zk.zkSyncTimeMs = 1000;
            config.setZkConfig(zk);
            return config;
        }

        void leave() throws Exception {
            // What hangs because its broker or its ZooKeeper is gone does not hold up the next group.
            Thread closing = new Thread(this::close);
            closing.setDaemon(true);
            closing.start();
            closing.join(1000);
            synchronized (this) {
                this.say("ended " + this.name);
                this.over = true;
            }
        }

        private void close() {
            for (MetaMessageSessionFactory session : this.sessions) {
                try {
                    session.shutdown();
                }
                catch (Exception e) {
                    System.err.println("closing a session: " + e);
                }
            }
            for (ZkClient store : this.stores) {
                store.close();
            }
        }

        synchronized void say(String line) {
            if (!this.over) {
                System.out.println(line);
            }
        }
    }

    private static final class Listener implements MessageListener {
        private final Group group;

        Listener(Group group) {
            this.group = group;
        }

        @Override
        public void recieveMessages(Message message) {
            byte[] data = message.getData();
            CRC32 crc = new CRC32();
            crc.update(data);
            long end = SimpleFetchManager.currentTopicRegInfo().getOffset().get();
            this.group.say("got " + message.getTopic() + " " + message.getPartition().getPartition() + " " + end + " "
                    + key(data) + " " + message.getId() + " " + data.length + " " + crc.getValue());
        }

        @Override
        public Executor getExecutor() {
            return null;
        }

        private static long key(byte[] data) {
            try {
                return Long.parseLong(new String(data, 0, KEY_DIGITS, StandardCharsets.ISO_8859_1));
            }
            catch (RuntimeException e) {
                return -1;
            }
        }
    }

    /** The original's offsets in ZooKeeper; what is there after a commit is read back. */
    private static final class Offsets extends ZkOffsetStorage {
        private final Group group;

        Offsets(Group group, ZkClient client) {
            super(new MetaZookeeper(client, group.root), client);
            this.group = group;
        }

        @Override
        public void commitOffset(String name, Collection<TopicPartitionRegInfo> infos) {
            List<TopicPartitionRegInfo> changed = new ArrayList<>();
            for (TopicPartitionRegInfo info : infos) {
                if (info.isModified()) {
                    changed.add(info);
                }
            }
            super.commitOffset(name, infos);
            for (TopicPartitionRegInfo info : changed) {
                this.say("stored", super.load(info.getTopic(), name, info.getPartition()));
            }
        }

        @Override
        public TopicPartitionRegInfo load(String topic, String name, Partition partition) {
            TopicPartitionRegInfo info = super.load(topic, name, partition);
            this.say("loaded", info);
            return info;
        }

        private void say(String what, TopicPartitionRegInfo info) {
            if (info != null) {
                this.group.say(what + " " + info.getTopic() + " " + info.getPartition().getPartition() + " "
                        + info.getOffset().get());
            }
        }
    }
}
