import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Scenarios of an unmodified remoting client. The same source is compiled with each version of the client.
 *
 * Usage: Scenarios NAME_SERVER TOPIC SCENARIO [USER SECRET]. A scenario that holds prints "ok" and ends with status 0.
 */
public final class Scenarios {
    private static String names;
    private static String topic;
    private static RPCHook hook;

    public static void main(String[] arguments) {
        try {
            play(arguments);
            System.out.println("ok");
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1); // threads of clients that were not shut down would go on
        }
    }

    private static void play(String[] arguments) throws Exception {
        names = arguments[0];
        topic = arguments[1];
        if (arguments.length > 4) {
            hook = new AclClientRPCHook(new SessionCredentials(arguments[3], arguments[4]));
        }
        switch (arguments[2]) {
            case "sends": sends(); break;
            case "batch": batch(); break;
            case "push": push(); break;
            case "tags": tags(); break;
            case "sql": sql(); break;
            case "retry": retry(); break;
            case "dead-letter": deadLetter(); break;
            case "order": order(); break;
            case "broadcast": broadcast(); break;
            case "lite-pull": litePull(); break;
            case "pull": pull(); break;
            case "rebalance": rebalance(); break;
            case "delay": delay(); break;
            case "transaction": transaction(); break;
            case "large": large(); break;
            case "query": query(); break;
            case "request": request(); break;
            case "operators": operators(); break;
            case "pop": pop(); break;
            case "fleet-send": fleetSend(); break;
            case "fleet-receive": fleetReceive(); break;
            case "mixed-send": mixedSend(); break;
            case "rows": rows(); break;
            case "move-send": moveSend(); break;
            default: throw new IllegalArgumentException(arguments[2]);
        }
    }

    private static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer made = new DefaultMQProducer("P-" + topic, hook);
        made.setNamesrvAddr(names);
        made.start();
        return made;
    }

    private static DefaultMQPushConsumer consumer(String group) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group, hook, new org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely());
        made.setNamesrvAddr(names);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return made;
    }

    private static Message message(String body) {
        return new Message(topic, "TagA", "key-" + body, body.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void until(BooleanSupplier holds, int seconds, String what) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (!holds.getAsBoolean()) {
            check(System.nanoTime() < end, what);
            Thread.sleep(20);
        }
    }

    private static void sends() throws Exception {
        DefaultMQProducer producer = producer();
        SendResult first = producer.send(message("sync"));
        check(first.getSendStatus() == SendStatus.SEND_OK, first.toString());
        check(first.getOffsetMsgId().length() == 32, first.toString());
        CountDownLatch sent = new CountDownLatch(100);
        for (int at = 0; at < 100; at++) {
            producer.send(message("async-" + at), new SendCallback() {
                public void onSuccess(SendResult result) { sent.countDown(); }
                public void onException(Throwable error) { error.printStackTrace(); }
            });
        }
        check(sent.await(20, TimeUnit.SECONDS), "asynchronous sends: " + sent.getCount() + " are left");
        producer.sendOneway(message("oneway"));
        long before = -1;
        for (int at = 0; at < 10; at++) {
            SendResult result = producer.send(message("chosen-" + at), (queues, m, x) -> queues.get(1), null);
            check(result.getMessageQueue().getQueueId() == 1, result.toString());
            check(result.getQueueOffset() > before, result.toString());
            before = result.getQueueOffset();
        }
        producer.shutdown();
    }

    private static void batch() throws Exception {
        DefaultMQProducer producer = producer();
        producer.send(message("warm-up"));
        SendResult result = producer.send(Arrays.asList(message("1"), message("2"), message("3")));
        check(result.getOffsetMsgId().split(",").length == 3, result.toString());
        producer.shutdown();
        check(received("G-" + topic, 4).size() == 4, "four messages");
    }

    private static List<MessageExt> received(String group, int count) throws Exception {
        ConcurrentLinkedQueue<MessageExt> found = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            found.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until(() -> found.size() >= count, 40, "received " + found.size());
        Thread.sleep(300);
        consumer.shutdown();
        return new ArrayList<>(found);
    }

    private static void push() throws Exception {
        DefaultMQProducer producer = producer();
        for (int at = 0; at < 200; at++) {
            Message sent = message("m" + at);
            sent.putUserProperty("number", "" + at);
            sent.setFlag(7);
            producer.send(sent);
        }
        List<MessageExt> found = received("G-" + topic, 200);
        check(found.size() == 200, "each message once: " + found.size());
        Set<String> bodies = new HashSet<>();
        for (MessageExt each : found) {
            bodies.add(text(each));
            check(("m" + each.getUserProperty("number")).equals(text(each)), each.toString());
            check(each.getFlag() == 7 && "TagA".equals(each.getTags()), each.toString());
        }
        check(bodies.size() == 200, "all bodies");
        // the offsets were stored: a new consumer of the group gets nothing twice
        producer.send(message("later"));
        List<MessageExt> again = received("G-" + topic, 1);
        check(again.size() == 1 && "later".equals(text(again.get(0))), again.toString());
        producer.shutdown();
    }

    private static void tags() throws Exception {
        DefaultMQProducer producer = producer();
        for (String tag : new String[] {"A", "B", "C", "AaAa", "BBBB"}) {
            producer.send(new Message(topic, tag, tag.getBytes(StandardCharsets.UTF_8)));
        }
        ConcurrentLinkedQueue<String> found = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer("G-" + topic);
        consumer.subscribe(topic, "A || C || AaAa");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> found.add(text(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until(() -> found.size() >= 3, 30, "three tags");
        Thread.sleep(1000);
        check(new HashSet<>(found).equals(new HashSet<>(Arrays.asList("A", "C", "AaAa"))), found.toString());
        producer.shutdown();
        consumer.shutdown();
    }

    private static void sql() throws Exception {
        DefaultMQProducer producer = producer();
        for (int at = 0; at < 6; at++) {
            Message sent = message("s" + at);
            sent.putUserProperty("a", "" + at);
            producer.send(sent);
        }
        ConcurrentLinkedQueue<String> found = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer("G-" + topic);
        consumer.subscribe(topic, MessageSelector.bySql("a > 3 AND a IS NOT NULL"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> found.add(text(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until(() -> found.size() >= 2, 30, "two messages");
        Thread.sleep(1000);
        check(new HashSet<>(found).equals(new HashSet<>(Arrays.asList("s4", "s5"))), found.toString());
        consumer.shutdown();
        try {
            DefaultMQPushConsumer wrong = consumer("W-" + topic);
            wrong.subscribe(topic, MessageSelector.bySql("a >"));
            wrong.registerMessageListener((MessageListenerConcurrently) (messages, context) -> null);
            wrong.start();
            throw new AssertionError("a broken expression was accepted");
        } catch (org.apache.rocketmq.client.exception.MQClientException refused) {
            check(refused.toString().length() > 0, "a reason");
        }
    }

    private static void retry() throws Exception {
        DefaultMQProducer producer = producer();
        ConcurrentHashMap<Integer, Long> attempts = new ConcurrentHashMap<>();
        ConcurrentLinkedQueue<String> problems = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer("G-" + topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            attempts.put(message.getReconsumeTimes(), System.nanoTime());
            if (!topic.equals(message.getTopic()) || !"again".equals(text(message))) {
                problems.add(message.toString());
            }
            context.setDelayLevelWhenNextConsume(1);
            return message.getReconsumeTimes() < 2 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.send(message("again"));
        consumer.start();
        until(() -> attempts.size() >= 3, 60, "three attempts, not " + attempts);
        check(problems.isEmpty(), problems.toString());
        long waited = TimeUnit.NANOSECONDS.toMillis(attempts.get(1) - attempts.get(0));
        check(waited >= 900, "the second attempt came after " + waited + " ms");
        Thread.sleep(2000);
        check(attempts.size() == 3, "done after the third: " + attempts);
        producer.shutdown();
        consumer.shutdown();
    }

    private static void deadLetter() throws Exception {
        DefaultMQProducer producer = producer();
        AtomicInteger deliveries = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer("G-" + topic);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            deliveries.incrementAndGet();
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        producer.send(message("dead"));
        consumer.start();
        until(() -> deliveries.get() >= 2, 60, "two deliveries");
        String kept = topic;
        topic = "%DLQ%G-" + kept;
        List<MessageExt> found = received("D-" + kept, 1);
        check(found.size() == 1 && "dead".equals(text(found.get(0))), found.toString());
        check("key-dead".equals(found.get(0).getKeys()), found.toString());
        check(deliveries.get() == 2, "two deliveries: " + deliveries.get());
        producer.shutdown();
        consumer.shutdown();
    }

    private static void order() throws Exception {
        DefaultMQProducer producer = producer();
        for (int at = 0; at < 200; at++) {
            producer.send(message("" + at), (queues, m, key) -> queues.get((Integer) key % queues.size()), at % 4);
        }
        Map<Integer, List<Integer>> found = new ConcurrentHashMap<>();
        AtomicInteger count = new AtomicInteger();
        AtomicInteger suspended = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer("G-" + topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                int number = Integer.parseInt(text(message));
                if (number == 5 && suspended.getAndIncrement() < 2) {
                    context.setSuspendCurrentQueueTimeMillis(100);
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                found.computeIfAbsent(message.getQueueId(), x -> new ArrayList<>()).add(number);
                count.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        until(() -> count.get() >= 200, 60, "all of 200, not " + count.get());
        for (List<Integer> each : found.values()) {
            for (int at = 1; at < each.size(); at++) {
                check(each.get(at) > each.get(at - 1), each.toString());
            }
        }
        check(suspended.get() == 3, "suspended twice: " + suspended.get());
        producer.shutdown();
        consumer.shutdown();
    }

    private static void broadcast() throws Exception {
        DefaultMQProducer producer = producer();
        producer.send(message("0"));
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<ConcurrentLinkedQueue<String>> found = new ArrayList<>();
        for (int at = 0; at < 2; at++) {
            DefaultMQPushConsumer consumer = consumer("G-" + topic);
            setBroadcasting(consumer);
            consumer.setInstanceName("broadcast-" + topic + "-" + at);
            consumer.subscribe(topic, "*");
            ConcurrentLinkedQueue<String> own = new ConcurrentLinkedQueue<>();
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(each -> own.add(text(each)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
            found.add(own);
        }
        for (int at = 1; at < 10; at++) {
            producer.send(message("" + at));
        }
        until(() -> found.get(0).size() >= 10 && found.get(1).size() >= 10, 40, "each gets all: " + found);
        producer.shutdown();
        consumers.forEach(DefaultMQPushConsumer::shutdown);
    }

    /** The class of the model lies in another package in each version of the client. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class<Enum>) method.getParameterTypes()[0], "BROADCASTING"));
            }
        }
    }

    private static void litePull() throws Exception {
        DefaultMQProducer producer = producer();
        for (int at = 0; at < 20; at++) {
            producer.send(message("" + at));
        }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("G-" + topic, hook);
        consumer.setNamesrvAddr(names);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.setAutoCommit(false);
        consumer.start();
        Set<String> found = new HashSet<>();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(40);
        while (found.size() < 20 && System.nanoTime() < end) {
            consumer.poll(1000).forEach(each -> found.add(text(each)));
        }
        check(found.size() == 20, "received " + found.size());
        consumer.commitSync();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.shutdown();
        DefaultLitePullConsumer assigned = new DefaultLitePullConsumer("G-" + topic, hook);
        assigned.setNamesrvAddr(names);
        assigned.setAutoCommit(false);
        assigned.start();
        assigned.assign(queues);
        long total = 0;
        MessageQueue first = null;
        for (MessageQueue each : queues) {
            long committed = Math.max(0, assigned.committed(each));
            total += committed;
            first = committed > 0 ? each : first;
        }
        check(total == 20, "committed " + total);
        assigned.seekToBegin(first);
        Set<Integer> numbers = new HashSet<>();
        end = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (numbers.isEmpty() && System.nanoTime() < end) {
            assigned.poll(1000).forEach(each -> numbers.add(each.getQueueId()));
        }
        check(numbers.contains(first.getQueueId()), "the beginning of queue " + first + " again, not " + numbers);
        check(assigned.offsetForTimestamp(first, 0L) == 0, "offset for a time");
        assigned.shutdown();
        producer.shutdown();
    }

    @SuppressWarnings("deprecation")
    private static void pull() throws Exception {
        DefaultMQProducer producer = producer();
        SendResult sent = producer.send(message("pulled"));
        MessageQueue queue = sent.getMessageQueue();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("G-" + topic, hook);
        consumer.setNamesrvAddr(names);
        consumer.start();
        PullResult found = consumer.pull(queue, "*", sent.getQueueOffset(), 32);
        check(found.getPullStatus() == PullStatus.FOUND && found.getMsgFoundList().size() == 1, found.toString());
        PullResult nothing = consumer.pull(queue, "*", found.getNextBeginOffset(), 32);
        check(nothing.getPullStatus() == PullStatus.NO_NEW_MSG, nothing.toString());
        PullResult beyond = consumer.pull(queue, "*", found.getNextBeginOffset() + 5, 32);
        check(beyond.getPullStatus() == PullStatus.OFFSET_ILLEGAL, beyond.toString());
        check(beyond.getNextBeginOffset() == found.getMaxOffset(), beyond.toString());
        PullResult unmatched = consumer.pull(queue, "Other", sent.getQueueOffset(), 32);
        check(unmatched.getPullStatus() == PullStatus.NO_MATCHED_MSG, unmatched.toString());
        check(consumer.maxOffset(queue) == found.getMaxOffset(), "max offset");
        check(consumer.minOffset(queue) == 0, "min offset");
        consumer.updateConsumeOffset(queue, found.getNextBeginOffset());
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        Thread waker = new Thread(() -> {
            try {
                Thread.sleep(1500);
                producer.send(message("woken"), (queues, m, x) -> queue, null);
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        waker.start();
        long began = System.nanoTime();
        PullResult woken = consumer.pullBlockIfNotFound(queue, "*", found.getNextBeginOffset(), 32);
        long waited = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
        check(woken.getPullStatus() == PullStatus.FOUND, woken.toString());
        check(waited > 500 && waited < 5000, "woken after " + waited + " ms");
        consumer.shutdown();
        producer.shutdown();
    }

    private static void rebalance() throws Exception {
        DefaultMQProducer producer = producer();
        producer.send(message("warm-up"));
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        Set<String> found = ConcurrentHashMap.newKeySet();
        for (int at = 0; at < 2; at++) {
            DefaultMQPushConsumer consumer = consumer("G-" + topic);
            consumer.setInstanceName("rebalance-" + topic + "-" + at);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(each -> found.add(text(each)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        int all = consumers.get(0).fetchSubscribeMessageQueues(topic).size();
        BooleanSupplier shared = () -> {
            int first = owned(consumers.get(0));
            int second = owned(consumers.get(1));
            return first + second == all && first > 0 && second > 0;
        };
        until(shared, 40, "the queues are shared out");
        for (int at = 0; at < 50; at++) {
            producer.send(message("r" + at));
        }
        try {
            until(() -> found.size() >= 51, 40, "all is received");
        } catch (AssertionError error) {
            throw new AssertionError("only " + new TreeSet<>(found) + " of " + all + " queues", error);
        }
        consumers.get(1).shutdown();
        until(() -> owned(consumers.get(0)) == all, 40, "the queues of a stopped consumer are taken over");
        consumers.get(0).shutdown();
        producer.shutdown();
    }

    /** The broker chooses the messages. Clients before 5 can only pull, so this is called by name. */
    private static DefaultMQPushConsumer popConsumer(String instance, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer made = consumer("G-" + topic);
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(made, false);
        made.setInstanceName(instance + "-" + topic);
        made.subscribe(topic, "TagA");
        made.registerMessageListener(listener);
        return made;
    }

    private static void setMode(String mode) throws Exception {
        org.apache.rocketmq.tools.admin.DefaultMQAdminExt admin = new org.apache.rocketmq.tools.admin.DefaultMQAdminExt(hook, 10_000);
        admin.setNamesrvAddr(names);
        admin.setInstanceName("mode-" + mode + "-" + topic);
        admin.start();
        Class<?> modes = Class.forName("org.apache.rocketmq.common.message.MessageRequestMode");
        Class<?> groups = Class.forName("org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig");
        for (var data : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            String address = data.selectBrokerAddr();
            Object config = groups.getConstructor().newInstance();
            groups.getMethod("setGroupName", String.class).invoke(config, "G-" + topic);
            admin.getClass().getMethod("createAndUpdateSubscriptionGroupConfig", String.class, groups).invoke(admin, address, config);
            admin.getClass().getMethod("setMessageRequestMode", String.class, String.class, String.class, modes, int.class, long.class)
                .invoke(admin, address, topic, "G-" + topic, modes.getField(mode).get(null), 8, 5_000L);
        }
        admin.shutdown();
    }

    private static void pop() throws Exception {
        DefaultMQProducer producer = producer();
        for (int at = 0; at < 100; at++) {
            producer.send(message("m" + at));
        }
        setMode("POP");
        ConcurrentHashMap<String, AtomicInteger> found = new ConcurrentHashMap<>();
        ConcurrentLinkedQueue<String> problems = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<Integer> attempts = new ConcurrentLinkedQueue<>();
        Set<String> readers = ConcurrentHashMap.newKeySet();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (String name : new String[] {"a", "b"}) {
            consumers.add(popConsumer(name, (messages, context) -> {
                MessageExt message = messages.get(0);
                if (messages.size() != 1 || !topic.equals(message.getTopic()) || message.getProperty("POP_CK") == null) {
                    problems.add(messages.toString());
                }
                readers.add(name);
                if ("later".equals(text(message))) {
                    attempts.add(message.getReconsumeTimes());
                    return message.getReconsumeTimes() < 1 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }
                found.computeIfAbsent(text(message), key -> new AtomicInteger()).incrementAndGet();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }));
        }
        for (DefaultMQPushConsumer each : consumers) {
            each.start();
        }
        until(() -> found.size() == 100, 40, "all is received, not " + found.size());
        producer.send(message("later"));
        for (int at = 100; at < 200; at++) {
            producer.send(message("m" + at));
        }
        until(() -> found.size() == 200 && readers.size() == 2, 40, "both get what is new: " + found.size() + " " + readers);
        until(() -> attempts.size() >= 2, 40, "one comes again: " + attempts);
        Thread.sleep(1000);
        check(new ArrayList<>(attempts).equals(Arrays.asList(0, 1)), attempts.toString());
        check(problems.isEmpty(), problems.toString());
        check(found.values().stream().allMatch(each -> each.get() == 1), "each once: " + found);
        for (DefaultMQPushConsumer each : consumers) {
            each.shutdown();
        }
        // one that pulls goes on where those ended, and the queues are shared out by the broker
        setMode("PULL");
        for (int at = 200; at < 220; at++) {
            producer.send(message("m" + at));
        }
        ConcurrentLinkedQueue<String> pulled = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer puller = popConsumer("c", (messages, context) -> {
            messages.forEach(each -> pulled.add(text(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        puller.start();
        until(() -> pulled.size() >= 20, 40, "what is left is pulled: " + pulled.size());
        Thread.sleep(500);
        check(pulled.size() == 20, "nothing twice: " + pulled);
        puller.shutdown();
        producer.shutdown();
    }

    private static int owned(DefaultMQPushConsumer consumer) {
        return (int) consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(each -> topic.equals(each.getTopic())).count();
    }

    private static void delay() throws Exception {
        DefaultMQProducer producer = producer();
        producer.send(message("now"));
        Message later = message("later");
        later.setDelayTimeLevel(2);
        long sent = System.currentTimeMillis();
        producer.send(later);
        Map<String, Long> found = new ConcurrentHashMap<>();
        ConcurrentLinkedQueue<String> problems = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = consumer("G-" + topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                found.put(text(each), System.currentTimeMillis());
                if (each.getDelayTimeLevel() != (text(each).equals("later") ? 2 : 0)) {
                    problems.add(each.toString());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until(() -> found.size() == 2, 40, "two messages");
        long waited = found.get("later") - sent;
        check(waited >= 4900 && waited < 15000, "delivered after " + waited + " ms");
        check(problems.isEmpty(), problems.toString());
        producer.shutdown();
        consumer.shutdown();
    }

    private static void transaction() throws Exception {
        AtomicInteger checks = new AtomicInteger();
        TransactionMQProducer producer = new TransactionMQProducer("PT-" + topic, hook);
        producer.setNamesrvAddr(names);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                if (topic.equals(message.getTopic()) && "asked".equals(text(message))) {
                    checks.incrementAndGet();
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        producer.sendMessageInTransaction(message("committed"), LocalTransactionState.COMMIT_MESSAGE);
        producer.sendMessageInTransaction(message("rolled-back"), LocalTransactionState.ROLLBACK_MESSAGE);
        producer.sendMessageInTransaction(message("asked"), LocalTransactionState.UNKNOW);
        List<MessageExt> found = received("G-" + topic, 2);
        Set<String> bodies = new HashSet<>();
        found.forEach(each -> bodies.add(text(each)));
        check(bodies.equals(new HashSet<>(Arrays.asList("committed", "asked"))), bodies.toString());
        check(checks.get() >= 1, "the producer was asked");
        producer.shutdown();
    }

    private static void large() throws Exception {
        DefaultMQProducer producer = producer();
        producer.setMaxMessageSize(8 * 1024 * 1024);
        producer.setCompressMsgBodyOverHowmuch(16 * 1024 * 1024);
        byte[] body = new byte[4 * 1024 * 1024];
        Arrays.fill(body, (byte) 'x');
        check(producer.send(new Message(topic, body), 20_000).getSendStatus() == SendStatus.SEND_OK, "4 MiB pass");
        try {
            producer.send(new Message(topic, new byte[4 * 1024 * 1024 + 1]), 20_000);
            throw new AssertionError("a byte more passed");
        } catch (org.apache.rocketmq.client.exception.MQBrokerException refused) {
            check(refused.getResponseCode() == 13, refused.toString());
        }
        producer.setCompressMsgBodyOverHowmuch(1024);
        producer.send(new Message(topic, new byte[100_000]));
        List<MessageExt> found = received("G-" + topic, 2);
        int[] sizes = found.stream().mapToInt(each -> each.getBody().length).sorted().toArray();
        check(Arrays.equals(sizes, new int[] {100_000, 4 * 1024 * 1024}), Arrays.toString(sizes));
        producer.shutdown();
    }

    private static void query() throws Exception {
        DefaultMQProducer producer = producer();
        SendResult sent = producer.send(message("wanted"));
        MessageExt viewed = producer.viewMessage(topic, sent.getOffsetMsgId());
        check("wanted".equals(text(viewed)), viewed.toString());
        long now = System.currentTimeMillis();
        until(() -> {
            try {
                return producer.queryMessage(topic, "key-wanted", 10, now - 60_000, now + 60_000).getMessageList().size() == 1;
            } catch (Exception missing) {
                return false;
            }
        }, 20, "found by its key");
        check("wanted".equals(text(producer.viewMessage(topic, sent.getMsgId()))), "found by its unique key");
        MessageQueue queue = sent.getMessageQueue();
        check(producer.minOffset(queue) == 0 && producer.maxOffset(queue) >= 1, "offsets");
        check(producer.searchOffset(queue, 0) == 0, "offset for a time");
        check(producer.earliestMsgStoreTime(queue) > now - 60_000, "time of the first message");
        producer.shutdown();
    }

    private static void request() throws Exception {
        DefaultMQProducer replying = new DefaultMQProducer("R-" + topic, hook);
        replying.setNamesrvAddr(names);
        replying.setInstanceName("replying");
        replying.start();
        replying.send(message("makes the topic"));
        DefaultMQProducer asking = producer();
        DefaultMQPushConsumer consumer = consumer("G-" + topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            for (MessageExt each : found) {
                if (each.getProperty("CORRELATION_ID") == null) {
                    continue;
                }
                try {
                    byte[] answer = ("answer to " + text(each)).getBytes(StandardCharsets.UTF_8);
                    SendResult sent = replying.send(org.apache.rocketmq.client.utils.MessageUtil.createReplyMessage(each, answer), 3000);
                    check(sent.getSendStatus() == SendStatus.SEND_OK, sent.toString());
                } catch (Exception failure) {
                    failure.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int at = 0; at < 20; at++) {
            Message reply = asking.request(message("question " + at), 20_000);
            String body = new String(reply.getBody(), StandardCharsets.UTF_8);
            check(body.equals("answer to question " + at), body);
        }
        consumer.shutdown();
        try {
            asking.request(message("nobody answers"), 1_500);
            throw new AssertionError("an answer from nobody");
        } catch (org.apache.rocketmq.client.exception.RequestTimeoutException expected) {
            check(expected.getMessage() != null, "a timeout");
        }
        asking.shutdown();
        replying.shutdown();
    }

    private static void operators() throws Exception {
        DefaultMQProducer producer = producer();
        List<SendResult> sent = new ArrayList<>();
        for (int at = 0; at < 8; at++) {
            sent.add(producer.send(message("m" + at)));
        }
        String group = "G-" + topic;
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            count.addAndGet(found.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until(() -> count.get() == 8, 30, "all consumed");
        org.apache.rocketmq.tools.admin.DefaultMQAdminExt admin = new org.apache.rocketmq.tools.admin.DefaultMQAdminExt(hook, 10_000);
        admin.setNamesrvAddr(names);
        admin.setInstanceName("operators-" + topic);
        admin.start();
        var connections = admin.examineConsumerConnectionInfo(group).getConnectionSet();
        check(connections.size() == 1, connections.toString());
        String client = connections.iterator().next().getClientId();
        var info = admin.getConsumerRunningInfo(group, client, true);
        check(info.getSubscriptionSet().stream().anyMatch(each -> each.getTopic().equals(topic)), "subscriptions");
        check(info.getJstack() != null && info.getJstack().contains("TID"), "stacks of threads");
        var direct = admin.consumeMessageDirectly(group, client, topic, sent.get(0).getOffsetMsgId());
        check("CR_SUCCESS".equals(direct.getConsumeResult().name()), direct.toString());
        check(count.get() == 9, "consumed once more: " + count.get());
        check(admin.queryTopicConsumeByWho(topic).getGroupList().contains(group), "who consumes");
        var span = admin.queryConsumeTimeSpan(topic, group);
        check(!span.isEmpty(), "times");
        var reset = admin.resetOffsetByTimestamp(topic, group, 0, true);
        check(reset.values().stream().allMatch(each -> each == 0L), reset.toString());
        until(() -> count.get() >= 17, 60, "consumed again after a reset: " + count.get());
        until(() -> {
            try {
                return admin.examineConsumeStats(group, topic).computeTotalDiff() == 0;
            } catch (Exception failure) {
                return false;
            }
        }, 30, "the progress is stored");
        admin.shutdown();
        consumer.shutdown();
        producer.shutdown();
    }

    /** Sends the messages FIRST to LAST (not included), each to the queue of its number. */
    private static void fleetSend() throws Exception {
        DefaultMQProducer producer = producer();
        for (int at = Integer.getInteger("first"); at < Integer.getInteger("last"); at++) {
            SendResult sent = producer.send(message("" + at), (queues, m, number) -> queues.get((int) number % queues.size()), at);
            check(sent.getSendStatus() == SendStatus.SEND_OK, sent.toString());
        }
        producer.shutdown();
    }

    /** Sends messages of many forms: small and compressed ones, with and without tags and keys, alone and in batches. */
    private static void mixedSend() throws Exception {
        DefaultMQProducer producer = producer();
        for (int at = Integer.getInteger("first"); at < Integer.getInteger("last"); at++) {
            String body = at % 7 == 3 ? "large ".repeat(2_000) + at : "gr\u00f6\u00dfe " + at;
            Message message = new Message(topic, at % 3 == 0 ? null : "Tag" + at % 5, body.getBytes(StandardCharsets.UTF_8));
            if (at % 2 == 0) {
                message.setKeys(Arrays.asList("k" + at, "even"));
            }
            message.putUserProperty("colour", "gr\u00fcn" + at);
            if (at % 11 == 5) {
                producer.send(Arrays.asList(message, message("pair " + at)));
            } else {
                producer.send(message);
            }
        }
        producer.shutdown();
    }

    /** Prints all messages of the topic as a consumer gets them. */
    private static void rows() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("fleet", hook);
        consumer.setNamesrvAddr(names);
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long at = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (at < end) {
                PullResult found = consumer.pull(queue, "*", at, 32);
                if (found.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt each : found.getMsgFoundList()) {
                        java.util.zip.CRC32 sum = new java.util.zip.CRC32();
                        sum.update(each.getBody());
                        System.out.println(String.join("\t", "row", queue.getBrokerName(), "" + each.getQueueId(), "" + each.getQueueOffset(),
                            each.getMsgId(), "" + each.getStoreTimestamp(), "" + each.getBornTimestamp(), "" + sum.getValue(),
                            "" + each.getTags(), "" + each.getKeys(), "" + each.getUserProperty("colour")));
                    }
                }
                at = found.getNextBeginOffset();
            }
        }
        consumer.shutdown();
    }

    /**
     * Sends numbers until the file STOP exists, and every tenth also delayed, to the topic DELAYED. A send that fails is
     * repeated: to the name server that the file MOVED names once it exists. Prints what became of each send.
     */
    private static void moveSend() throws Exception {
        java.nio.file.Path moved = java.nio.file.Paths.get(System.getProperty("moved"));
        java.nio.file.Path stop = java.nio.file.Paths.get(System.getProperty("stop"));
        String delayed = System.getProperty("delayed");
        DefaultMQProducer producer = producer();
        boolean hasMoved = false;
        long failingSince = 0;
        for (int at = 0; !java.nio.file.Files.exists(stop);) {
            try {
                SendResult sent = producer.send(message("" + at), (queues, m, number) -> queues.get((int) number % queues.size()), at);
                check(sent.getSendStatus() == SendStatus.SEND_OK, sent.toString());
                if (failingSince > 0) {
                    System.out.println("again " + (System.currentTimeMillis() - failingSince));
                    failingSince = 0;
                }
                System.out.println("sent " + at);
                if (at % 10 == 0) {
                    Message later = new Message(delayed, ("" + at).getBytes(StandardCharsets.UTF_8));
                    later.setDelayTimeLevel(1 + at / 10 % 4);
                    producer.send(later);
                    System.out.println("delayed " + at);
                }
                at++;
                Thread.sleep(1);
            } catch (InterruptedException stopped) {
                throw stopped;
            } catch (Exception failure) {
                System.out.println("failed " + at + " " + failure.toString().replace('\n', ' '));
                failingSince = failingSince > 0 ? failingSince : System.currentTimeMillis();
                if (!hasMoved && java.nio.file.Files.exists(moved)) {
                    hasMoved = true;
                    names = new String(java.nio.file.Files.readAllBytes(moved), StandardCharsets.UTF_8);
                    producer = new DefaultMQProducer("P-new-" + topic, hook);
                    producer.setInstanceName("new");
                    producer.setNamesrvAddr(names);
                    producer.start();
                }
                Thread.sleep(5);
            }
        }
    }

    /** Prints the queue and the number of each message that the group gets, until there are COUNT. */
    private static void fleetReceive() throws Exception {
        DefaultMQPushConsumer consumer = consumer("fleet");
        consumer.subscribe(topic, "*");
        AtomicInteger left = new AtomicInteger(Integer.getInteger("count"));
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt each : messages) {
                System.out.println("got " + each.getQueueId() + " " + text(each));
                left.decrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        until(() -> left.get() <= 0, 60, "left: " + left.get());
        // RocketMQ 5 may lose one of a group's first positions if they arrive at the same moment; later ones are kept
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        Thread.sleep(500);
        consumer.shutdown();
    }
}
