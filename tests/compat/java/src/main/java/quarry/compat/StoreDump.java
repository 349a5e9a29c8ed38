package quarry.compat;

import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.Pair;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.RocksDBMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.ConsumeQueueStore;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.RocksDBConsumeQueueOffsetTable;
import org.apache.rocketmq.store.queue.RocksDBConsumeQueueStore;
import org.apache.rocketmq.store.queue.offset.OffsetEntryType;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory as a RocketMQ broker does and prints one JSON line per queue and per unit, each unit with the
 * message it points to. The directory is changed by opening: give it a copy.
 *
 * <p>Arguments: the directory; {@code rocksdb} or {@code file}, where the queues are; {@code units}, {@code digests} or
 * {@code contents}. With {@code digests} and {@code contents} there are lines of queues alone, each with the number of
 * its units, of those that have no readable message, and a SHA-256: over all units and bodies, or over what a copy of
 * the messages has that does not know where they lay.
 *
 * <p>With {@code keys}, the number of hash slots and that of items of an index file, it prints for each line
 * {@code topic TAB key} of its input where the messages lie that a query for them finds.
 *
 * <p>Exit status 0: all printed. 1: the store did not open.
 */
public final class StoreDump {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private static final int PHYSICAL_OFFSET_AT = 28;

    private StoreDump() {
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            File root = new File(args[0]);
            boolean inRocksDB = args[1].equals("rocksdb");
            MessageStoreConfig config = configuration(root);
            if (args[2].equals("keys")) {
                config.setMaxHashSlotNum(Integer.parseInt(args[3]));
                config.setMaxIndexNum(Integer.parseInt(args[4]));
                query(open(root, config, inRocksDB));
            } else {
                dump(open(root, config, inRocksDB), inRocksDB, args[2]);
            }
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        OUT.flush();
        // The store's own shutdown would write to the directory; nothing of this process is needed any more.
        Runtime.getRuntime().halt(status);
    }

    private static DefaultMessageStore open(File root, MessageStoreConfig config, boolean inRocksDB) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        BrokerStatsManager statistics = new BrokerStatsManager(broker);
        MessageArrivingListener nobody = (topic, queueId, offset, tagsCode, time, filter, properties) -> { };
        DefaultMessageStore store;
        if (inRocksDB) {
            config.setStoreType("defaultRocksDB");
            store = new RocksDBMessageStore(config, statistics, nobody, broker, new ConcurrentHashMap<>());
        } else {
            config.setMappedFileSizeConsumeQueue(queueFileSize(new File(root, "consumequeue")));
            store = new DefaultMessageStore(config, statistics, nobody, broker, new ConcurrentHashMap<>());
        }
        if (!store.load()) {
            throw new IllegalStateException("RocketMQ refused to load " + root);
        }
        // as it was read, before RocketMQ begins to write it itself
        long flushedMs = store.getStoreCheckpoint().getPhysicMsgTimestamp();
        long confirmed = store.getStoreCheckpoint().getConfirmPhyOffset();
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            TimeUnit.MILLISECONDS.sleep(5);
        }
        print("store", Map.of("minPhyOffset", store.getMinPhyOffset(), "maxPhyOffset", store.getMaxPhyOffset(),
            "physicMsgTimestamp", flushedMs, "confirmPhyOffset", confirmed));
        return store;
    }

    private static void query(DefaultMessageStore store) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] wanted = line.split("\t");
            QueryMessageResult found = store.queryMessage(wanted[0], wanted[1], 64, 0, Long.MAX_VALUE);
            List<Long> offsets = new ArrayList<>();
            for (ByteBuffer record : found.getMessageBufferList()) {
                offsets.add(record.getLong(PHYSICAL_OFFSET_AT));
            }
            found.release();
            print("key", Map.of("topic", wanted[0], "key", wanted[1], "offsets", offsets));
        }
    }

    private static void dump(DefaultMessageStore store, boolean inRocksDB, String what) throws Exception {
        long units = 0;
        List<ConsumeQueueInterface> queues = inRocksDB
            ? queues((RocksDBConsumeQueueStore) store.getQueueStore())
            : ((ConsumeQueueStore) store.getQueueStore()).getConsumeQueueTable().values().stream()
                .flatMap(numbers -> numbers.values().stream()).toList();
        for (ConsumeQueueInterface queue : queues) {
            units += what.equals("units") ? dump(store, queue) : digest(store, queue, what.equals("contents"));
        }
        print("end", Map.of("queues", queues.size(), "units", units));
    }

    private static MessageStoreConfig configuration(File root) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.getPath());
        config.setStorePathCommitLog(new File(root, "commitlog").getPath());
        config.setUseSeparateStorePathForRocksdbCQ(new File(root, "consumequeue_rocksdb/CURRENT").exists());
        config.setMappedFileSizeCommitLog(segmentSize(new File(root, "commitlog")));
        config.setEnableLmq(true);
        config.setEnableMultiDispatch(true);
        config.setEnableCompaction(false);
        config.setTimerWheelEnable(false);
        config.setHaListenPort(0);
        // Old messages must not be deleted while they are read.
        config.setFileReservedTime(24 * 365 * 100);
        config.setCleanFileForciblyEnable(false);
        return config;
    }

    /** RocketMQ refuses files of another size than its settings say. */
    private static int segmentSize(File folder) {
        return Arrays.stream(folder.listFiles()).filter(File::isFile).mapToInt(file -> (int) file.length()).findFirst()
            .orElseThrow();
    }

    /** RocketMQ takes files of queues for as long as its settings say. */
    private static int queueFileSize(File folder) throws Exception {
        try (Stream<Path> files = Files.walk(folder.toPath())) {
            return files.filter(Files::isRegularFile).mapToInt(file -> (int) file.toFile().length()).findFirst()
                .orElseThrow();
        }
    }

    /** All queues that have a stored maximum. The store's own table of queues is filled on demand only. */
    private static List<ConsumeQueueInterface> queues(RocksDBConsumeQueueStore store) throws Exception {
        Field field = RocksDBConsumeQueueStore.class.getDeclaredField("rocksDBConsumeQueueOffsetTable");
        field.setAccessible(true);
        List<ConsumeQueueInterface> queues = new ArrayList<>();
        ((RocksDBConsumeQueueOffsetTable) field.get(store)).forEach(
            entry -> entry.type == OffsetEntryType.MAXIMUM,
            entry -> queues.add(store.findOrCreateConsumeQueue(entry.topic, entry.queueId)));
        return queues;
    }

    private static long dump(DefaultMessageStore store, ConsumeQueueInterface queue) throws Exception {
        long minimum = queue.getMinOffsetInQueue();
        long maximum = queue.getMaxOffsetInQueue();
        print("queue", place(queue, "minOffset", minimum, "maxOffset", maximum));
        long units = 0;
        for (long offset = minimum; offset < maximum; offset++) {
            Pair<CqUnit, Long> found = queue.getCqUnitAndStoreTime(offset);
            if (found == null) {
                print("hole", place(queue, "offset", offset));
                continue;
            }
            CqUnit unit = found.getObject1();
            Map<String, Object> line = place(queue, "offset", unit.getQueueOffset(), "phyOffset", unit.getPos(),
                "size", unit.getSize(), "tagsCode", unit.getTagsCode(), "storeTimestamp", found.getObject2());
            MessageExt message = store.lookMessageByOffset(unit.getPos(), unit.getSize());
            line.put("message", message == null ? null : describe(message));
            print("unit", line);
            units++;
        }
        return units;
    }

    /**
     * Per unit: queue offset, physical offset, tag code as 8 bytes each, size as 4, body; all of them in order. Of
     * contents: queue offset and store time as 8 bytes each, the message id, body.
     */
    private static long digest(DefaultMessageStore store, ConsumeQueueInterface queue, boolean contents)
        throws Exception {
        long minimum = queue.getMinOffsetInQueue();
        long maximum = queue.getMaxOffsetInQueue();
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        ByteBuffer numbers = ByteBuffer.allocate(28);
        long units = 0;
        long unreadable = 0;
        for (long offset = minimum; offset < maximum; offset++) {
            CqUnit unit = queue.get(offset);
            MessageExt message = unit == null ? null : store.lookMessageByOffset(unit.getPos(), unit.getSize());
            if (message == null) {
                unreadable++;
                continue;
            }
            numbers.clear();
            if (contents) {
                numbers.putLong(unit.getQueueOffset()).putLong(message.getStoreTimestamp());
                digest.update(numbers.array(), 0, numbers.position());
                String id = message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
                digest.update((id == null ? message.getMsgId() : id).getBytes(StandardCharsets.UTF_8));
            } else {
                numbers.putLong(unit.getQueueOffset()).putLong(unit.getPos()).putLong(unit.getTagsCode());
                digest.update(numbers.putInt(unit.getSize()).array());
            }
            digest.update(message.getBody());
            units++;
        }
        print("queue", place(queue, "minOffset", minimum, "maxOffset", maximum, "units", units,
            "unreadable", unreadable, "sha256", HexFormat.of().formatHex(digest.digest())));
        return units;
    }

    private static Map<String, Object> place(ConsumeQueueInterface queue, Object... more) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", queue.getTopic());
        line.put("queueId", queue.getQueueId());
        for (int i = 0; i < more.length; i += 2) {
            line.put((String) more[i], more[i + 1]);
        }
        return line;
    }

    private static Map<String, Object> describe(MessageExt message) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("phyOffset", message.getCommitLogOffset());
        line.put("storeSize", message.getStoreSize());
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("bornHost", address(message.getBornHost()));
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("storeHost", address(message.getStoreHost()));
        line.put("bodyCRC", message.getBodyCRC());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        line.put("bodyLength", message.getBody().length);
        line.put("bodySha1", HexFormat.of().formatHex(MessageDigest.getInstance("SHA-1").digest(message.getBody())));
        line.put("properties", message.getProperties());
        return line;
    }

    private static String address(SocketAddress address) {
        InetSocketAddress known = (InetSocketAddress) address;
        return known.getAddress().getHostAddress() + ":" + known.getPort();
    }

    private static void print(String kind, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        line.putAll(fields);
        OUT.println(JSON.toJSONString(line));
    }
}
