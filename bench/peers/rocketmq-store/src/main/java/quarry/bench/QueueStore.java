package quarry.bench;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.config.AbstractRocksDBStorage;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.RocksDBMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.RocksDBConsumeQueueStore;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.rocksdb.ColumnFamilyHandle;
import org.rocksdb.CompactRangeOptions;
import org.rocksdb.RocksDB;

/**
 * The message store of RocketMQ as {@code bench.peers.queue_store} has Quarry's: works off commands from standard input,
 * one line each, and answers each with a line of JSON.
 *
 * <pre>
 * open root=DIR queues=N entries=N              load, recover, start; ready when all of the log is dispatched
 * put first=N count=N                           so many messages, all of them dispatched when it is answered
 * get seed=N count=N                            so many single messages at random places
 * compact                                       flush, and rewrite all tables of consume queues (RocksDB only)
 * close                                         in good order
 * </pre>
 *
 * The first argument is {@code file} or {@code rocksdb}. Message i goes to queue (i * 1000003) mod N.
 */
public final class QueueStore {
    private static final long STEP = 1_000_003;
    private static final int QUEUES_PER_TOPIC = 8;
    private static final int SEGMENT_SIZE = 256 << 20;
    private static final int QUEUE_OFFSET_POSITION = 20;
    private static final byte[] BODY = new byte[200];
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    private final boolean rocksdb;
    private DefaultMessageStore store;
    private long queues;
    private long entries;

    private QueueStore(boolean rocksdb) {
        this.rocksdb = rocksdb;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what the libraries print must not come between the answers
        QueueStore each = new QueueStore(arguments[0].equals("rocksdb"));
        new Random(1).nextBytes(BODY);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = "{\"done\":" + each.run(line.split(" ")) + "}";
            } catch (Throwable error) {
                error.printStackTrace();
                answer = "{\"error\":\"" + error.toString().replaceAll("[^ -~]|[\"\\\\]", "'") + "\"}";
            }
            answers.println(answer);
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private long run(String[] words) throws Exception {
        Map<String, String> named = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            int at = words[i].indexOf('=');
            named.put(words[i].substring(0, at), words[i].substring(at + 1));
        }
        return switch (words[0]) {
            case "open" -> open(new File(named.get("root")), number(named, "queues"), number(named, "entries"));
            case "put" -> put(number(named, "first"), number(named, "count"));
            case "get" -> get(number(named, "seed"), number(named, "count"));
            case "compact" -> compact();
            case "close" -> close();
            default -> throw new IllegalArgumentException("unknown command " + words[0]);
        };
    }

    private static long number(Map<String, String> named, String name) {
        return Long.parseLong(named.get(name));
    }

    private long open(File root, long queues, long entries) throws Exception {
        this.queues = queues;
        this.entries = entries;
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (long first = 0; first < queues; first += QUEUES_PER_TOPIC) {
            String topic = topic(first);
            topics.put(topic, new TopicConfig(topic, QUEUES_PER_TOPIC, QUEUES_PER_TOPIC));
        }
        BrokerConfig broker = new BrokerConfig();
        BrokerStatsManager stats = new BrokerStatsManager(broker);
        MessageStoreConfig config = configuration(root);
        store = rocksdb
            ? new RocksDBMessageStore(config, stats, (a, b, c, d, e, f, g) -> { }, broker, topics)
            : new DefaultMessageStore(config, stats, (a, b, c, d, e, f, g) -> { }, broker, topics);
        if (!store.load()) {
            throw new IllegalStateException("RocketMQ refused to load " + root);
        }
        store.start();
        awaitDispatch();
        return 1;
    }

    private MessageStoreConfig configuration(File root) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.getPath());
        config.setStorePathCommitLog(new File(root, "commitlog").getPath());
        config.setMappedFileSizeCommitLog(SEGMENT_SIZE);
        if (rocksdb) {
            config.setStoreType("defaultRocksDB");
            config.setUseSeparateStorePathForRocksdbCQ(true);
        }
        config.setMessageIndexEnable(false); // of keys: Quarry has none
        config.setEnableCompaction(false);
        config.setTimerWheelEnable(false);
        config.setHaListenPort(0);
        config.setFileReservedTime(24 * 365 * 100);
        config.setCleanFileForciblyEnable(false);
        return config;
    }

    private void awaitDispatch() throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            TimeUnit.MILLISECONDS.sleep(1);
        }
    }

    private long put(long first, long count) throws Exception {
        for (long i = first; i < first + count; i++) {
            long queue = i * STEP % queues;
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(topic(queue));
            message.setQueueId((int) (queue % QUEUES_PER_TOPIC));
            message.setBody(BODY);
            message.setTags("created");
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
                String.format("%032X", i));
            message.setTagsCode("created".hashCode());
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(HOST);
            message.setStoreHost(HOST);
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) {
                throw new IllegalStateException("put: " + result.getPutMessageStatus());
            }
        }
        awaitDispatch();
        return count;
    }

    private long get(long seed, long count) {
        Random random = new Random(seed);
        for (long i = 0; i < count; i++) {
            long queue = random.nextLong(queues);
            long offset = random.nextLong(entries);
            GetMessageResult found =
                store.getMessage("bench", topic(queue), (int) (queue % QUEUES_PER_TOPIC), offset, 1, null);
            if (found == null || found.getMessageCount() != 1) {
                throw new IllegalStateException("nothing at " + offset + " of queue " + queue);
            }
            ByteBuffer record = found.getMessageBufferList().get(0);
            byte[] bytes = new byte[record.remaining()];
            record.duplicate().get(bytes);
            if (ByteBuffer.wrap(bytes).getLong(QUEUE_OFFSET_POSITION) != offset) {
                throw new IllegalStateException("another message at " + offset + " of queue " + queue);
            }
            found.release();
        }
        return count;
    }

    private long compact() throws Exception {
        store.flush();
        store.getQueueStore().flush();
        if (store.getQueueStore() instanceof RocksDBConsumeQueueStore rocks) {
            Object storage = field(rocks, RocksDBConsumeQueueStore.class, "rocksDBStorage");
            RocksDB database = (RocksDB) field(storage, AbstractRocksDBStorage.class, "db");
            ColumnFamilyHandle units =
                (ColumnFamilyHandle) field(storage, AbstractRocksDBStorage.class, "defaultCFHandle");
            CompactRangeOptions how =
                (CompactRangeOptions) field(storage, AbstractRocksDBStorage.class, "compactRangeOptions");
            database.compactRange(units, null, null, how);
        }
        return 1;
    }

    private static Object field(Object owner, Class<?> of, String name) throws Exception {
        Field field = of.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    private long close() {
        store.shutdown();
        store = null;
        return 1;
    }

    private static String topic(long queue) {
        return String.format("bench-%07d", queue / QUEUES_PER_TOPIC);
    }
}
