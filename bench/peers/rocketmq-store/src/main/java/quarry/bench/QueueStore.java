package quarry.bench;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
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
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.queue.RocksDBConsumeQueueStore;
import org.apache.rocketmq.store.rocksdb.ConsumeQueueRocksDBStorage;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.rocksdb.ColumnFamilyHandle;
import org.rocksdb.CompactRangeOptions;
import org.rocksdb.RocksDB;

/**
 * The message store of RocketMQ as {@code bench.peers.queue_store} has Quarry's: works off commands from standard input,
 * one line each, and answers each with a line of JSON.
 *
 * <pre>
 * open root=DIR queues=N entries=N [body=N]     load, recover, start; ready when all of the log is dispatched
 * settle                                        what a broker reads into memory behind a start (RocketMQ: nothing)
 * put first=N count=N                           so many messages, all of them dispatched when it is answered
 * append first=N count=N                        the same; the answer's times leave out what makes the messages
 * get seed=N count=N                            so many single messages at random places
 * units seed=N count=N                          so many single units at random places
 * ranges first=N count=N                        all units of so many queues, 32 at a time
 * records first=N count=N decoded=0|1           the same with their records, also decoded and checked if so asked
 * compact                                       flush, and rewrite all tables of consume queues (RocksDB only)
 * close                                         in good order
 * </pre>
 *
 * The first argument is {@code file} or {@code rocksdb}. Message i goes to queue (i * 1618033) mod N, and so do reads of
 * whole queues. The answer to {@code put} and {@code get} leaves their times to whoever asked, that to everything else that
 * takes long holds the wall and CPU time of the store's part alone.
 */
public final class QueueStore {
    private static final long STEP = 1_618_033;
    private static final int QUEUES_PER_TOPIC = 8;
    private static final int SEGMENT_SIZE = 256 << 20;
    private static final int QUEUE_OFFSET_POSITION = 20;
    private static final int BODY_SIZE = 200;
    private static final int RANGE = 32;
    private static final int PORTION = 32_768;
    private static final long LOOK_INTERVAL_NS = 50_000;
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    private final boolean rocksdb;
    private final Clock clock = new Clock();
    private DefaultMessageStore store;
    private byte[] body;
    private long queues;
    private long entries;

    private QueueStore(boolean rocksdb) {
        this.rocksdb = rocksdb;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what the libraries print must not come between the answers
        QueueStore each = new QueueStore(arguments[0].equals("rocksdb"));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                each.clock.reset();
                answer = "{\"done\":" + each.run(line.split(" ")) + each.clock.json() + "}";
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
            case "open" -> {
                body = new byte[Integer.parseInt(named.getOrDefault("body", String.valueOf(BODY_SIZE)))];
                new Random(1).nextBytes(body);
                yield open(new File(named.get("root")), number(named, "queues"), number(named, "entries"));
            }
            case "settle" -> 1;
            case "put" -> put(number(named, "first"), number(named, "count"));
            case "append" -> append(number(named, "first"), number(named, "count"));
            case "get" -> get(number(named, "seed"), number(named, "count"));
            case "units" -> units(number(named, "seed"), (int) number(named, "count"));
            case "ranges" -> ranges(number(named, "first"), (int) number(named, "count"));
            case "records" ->
                records(number(named, "first"), (int) number(named, "count"), number(named, "decoded") == 1);
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
        clock.start();
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
        clock.stop();
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
            put(message(i));
        }
        awaitDispatch();
        return count;
    }

    private long append(long first, long count) {
        List<MessageExtBrokerInner> portion = new ArrayList<>(PORTION);
        for (long i = first; i < first + count; ) {
            for (; portion.size() < PORTION && i < first + count; i++) {
                portion.add(message(i));
            }
            clock.start();
            portion.forEach(this::put);
            while (store.dispatchBehindBytes() > 0) {
                LockSupport.parkNanos(LOOK_INTERVAL_NS);
            }
            clock.stop();
            portion.clear();
        }
        return count;
    }

    private MessageExtBrokerInner message(long number) {
        long queue = number * STEP % queues;
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic(queue));
        message.setQueueId((int) (queue % QUEUES_PER_TOPIC));
        message.setBody(body);
        message.setTags("created");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
            String.format("%032X", number));
        message.setTagsCode("created".hashCode());
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private void put(MessageExtBrokerInner message) {
        PutMessageResult result = store.putMessage(message);
        if (!result.isOk()) {
            throw new IllegalStateException("put: " + result.getPutMessageStatus());
        }
    }

    private long units(long seed, int count) {
        Random random = new Random(seed);
        Place[] places = new Place[count];
        for (int i = 0; i < count; i++) {
            places[i] = place(random.nextLong(queues), random.nextLong(entries));
        }
        clock.start();
        for (Place place : places) {
            CqUnit unit = store.getConsumeQueue(place.topic, place.queue).get(place.offset);
            if (unit == null || unit.getQueueOffset() != place.offset) {
                throw new IllegalStateException("no unit at " + place);
            }
        }
        clock.stop();
        return count;
    }

    private long ranges(long first, int count) throws Exception {
        Place[] places = begins(first, count);
        long found = 0;
        clock.start();
        for (Place place : places) {
            long offset = 0;
            while (offset < entries) {
                ReferredIterator<CqUnit> units =
                    store.getConsumeQueue(place.topic, place.queue).iterateFrom(offset, RANGE);
                for (int i = 0; i < RANGE && units.hasNext(); i++) {
                    if (units.next().getQueueOffset() != offset) {
                        throw new IllegalStateException("no unit at " + offset + " of " + place);
                    }
                    offset++;
                }
                units.release();
            }
            found += offset;
        }
        clock.stop();
        return found;
    }

    private long records(long first, int count, boolean decoded) {
        Place[] places = begins(first, count);
        long found = 0;
        clock.start();
        for (Place place : places) {
            long offset = 0;
            while (offset < entries) {
                GetMessageResult result = store.getMessage("bench", place.topic, place.queue, offset, RANGE, null);
                if (result == null || result.getMessageCount() == 0) {
                    throw new IllegalStateException("nothing at " + offset + " of " + place);
                }
                for (ByteBuffer record : result.getMessageBufferList()) {
                    check(record, offset++, decoded);
                }
                result.release();
            }
            found += offset;
        }
        clock.stop();
        return found;
    }

    private static void check(ByteBuffer record, long offset, boolean decoded) {
        // as the proxy in a broker decodes what it hands out, and with the CRC of the body
        long found = decoded
            ? MessageDecoder.decode(record, true, true, false, false, true).getQueueOffset()
            : record.getLong(record.position() + QUEUE_OFFSET_POSITION);
        if (found != offset) {
            throw new IllegalStateException("another message at " + offset);
        }
    }

    private Place[] begins(long first, int count) {
        Place[] places = new Place[count];
        for (int i = 0; i < count; i++) {
            places[i] = place((first + i) * STEP % queues, 0);
        }
        return places;
    }

    private static Place place(long queue, long offset) {
        return new Place(topic(queue), (int) (queue % QUEUES_PER_TOPIC), offset);
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
            CompactRangeOptions how =
                (CompactRangeOptions) field(storage, AbstractRocksDBStorage.class, "compactRangeOptions");
            Object units = field(storage, AbstractRocksDBStorage.class, "defaultCFHandle");
            Object offsets = field(storage, ConsumeQueueRocksDBStorage.class, "offsetCFHandle");
            for (Object family : new Object[] {units, offsets}) {
                database.compactRange((ColumnFamilyHandle) family, null, null, how);
            }
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

    private record Place(String topic, int queue, long offset) { }

    /** Wall time and CPU time of all threads, between its starts and stops. */
    private static final class Clock {
        private final com.sun.management.OperatingSystemMXBean system =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        private long wall;
        private long cpu;
        private boolean used;

        void reset() {
            wall = cpu = 0;
            used = false;
        }

        void start() {
            used = true;
            cpu -= system.getProcessCpuTime();
            wall -= System.nanoTime();
        }

        void stop() {
            wall += System.nanoTime();
            cpu += system.getProcessCpuTime();
        }

        String json() {
            return used ? ",\"wall_s\":" + wall / 1e9 + ",\"cpu_s\":" + cpu / 1e9 : "";
        }
    }
}
