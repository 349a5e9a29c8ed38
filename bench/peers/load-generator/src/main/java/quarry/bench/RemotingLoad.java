package quarry.bench;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Load by the client of the remoting protocol. The endpoint of a command is the address of a name server. */
final class RemotingLoad {
    private static final int TIMEOUT_MS = 10_000;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPullConsumer> consumers = new HashMap<>();

    String run(Command command) throws Exception {
        return switch (command.text("mode")) {
            case "probe" -> probe(command);
            case "send" -> send(command);
            case "pipeline" -> pipeline(command);
            case "pull" -> pull(command);
            default -> throw new IllegalArgumentException("unknown mode " + command.text("mode"));
        };
    }

    /** One send tells whether the server is up and knows the topic. */
    private String probe(Command command) throws Exception {
        producer(command).send(new Message(command.text("topic"), new byte[1]));
        return "{\"served\":true}";
    }

    /** Every thread sends, waits for the answer, sends again. */
    private String send(Command command) throws Exception {
        DefaultMQProducer producer = producer(command);
        byte[] body = command.body();
        Run run = new Run(command.seconds());
        Run.inThreads(command.number("threads"), () -> {
            while (run.goesOn()) {
                long begin = System.nanoTime();
                try {
                    producer.send(message(command, body));
                    run.succeeded(begin);
                } catch (InterruptedException ending) {
                    throw ending;
                } catch (Exception error) {
                    run.failed(error);
                }
            }
        });
        return run.answer();
    }

    /** One thread keeps a fixed number of sends in flight. */
    private String pipeline(Command command) throws Exception {
        DefaultMQProducer producer = producer(command);
        byte[] body = command.body();
        Run run = new Run(command.seconds());
        run.keepInFlight(command.number("in-flight"), room -> {
            long begin = System.nanoTime();
            producer.send(message(command, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    run.succeeded(begin);
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    run.failed(error);
                    room.release();
                }
            });
        });
        return run.answer();
    }

    /** Every thread pulls a queue of its own from its beginning to its end, again and again. */
    private String pull(Command command) throws Exception {
        DefaultMQPullConsumer consumer = consumer(command);
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(command.text("topic")));
        int batch = command.number("batch");
        AtomicInteger next = new AtomicInteger();
        Run run = new Run(command.seconds());
        Run.inThreads(Math.min(command.number("threads"), queues.size()), () -> {
            MessageQueue queue = queues.get(next.getAndIncrement());
            long offset = 0;
            while (run.goesOn()) {
                long begin = System.nanoTime();
                try {
                    PullResult found = consumer.pull(queue, "*", offset, batch);
                    boolean isFound = found.getPullStatus() == PullStatus.FOUND;
                    int count = isFound ? found.getMsgFoundList().size() : 0;
                    for (int at = 0; at < count; at++) {
                        run.succeeded(begin);
                    }
                    offset = isFound ? found.getNextBeginOffset() : found.getMinOffset();
                } catch (InterruptedException ending) {
                    throw ending;
                } catch (Exception error) {
                    run.failed(error);
                }
            }
        });
        return run.answer();
    }

    private DefaultMQProducer producer(Command command) throws Exception {
        String address = command.text("endpoint");
        DefaultMQProducer known = producers.get(address);
        if (known == null) {
            known = new DefaultMQProducer("bench-producers");
            known.setNamesrvAddr(address);
            known.setInstanceName("producer-" + producers.size());
            known.setSendMsgTimeout(TIMEOUT_MS);
            known.setRetryTimesWhenSendFailed(0);
            known.setRetryTimesWhenSendAsyncFailed(0);
            known.start();
            producers.put(address, known);
        }
        return known;
    }

    private DefaultMQPullConsumer consumer(Command command) throws Exception {
        String address = command.text("endpoint");
        DefaultMQPullConsumer known = consumers.get(address);
        if (known == null) {
            known = new DefaultMQPullConsumer(command.text("group"));
            known.setNamesrvAddr(address);
            known.setInstanceName("consumer-" + consumers.size());
            known.start();
            consumers.put(address, known);
        }
        return known;
    }

    private static Message message(Command command, byte[] body) {
        return new Message(command.text("topic"), "created", body);
    }
}
