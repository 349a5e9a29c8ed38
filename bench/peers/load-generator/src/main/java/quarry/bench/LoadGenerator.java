package quarry.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Load on the official Java client, against any number of servers in turns.
 *
 * <p>Reads one command per line ({@code mode=send endpoint=127.0.0.1:8081 topic=orders seconds=4 …}) and answers
 * each with one line of JSON. With the word {@code remoting} the client is that of the remoting protocol. One process and one client per server live for the whole run, so that the just-in-time
 * compiler has seen everything once the caller has warmed it up, and favours no server.
 */
public final class LoadGenerator {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Duration INVISIBLE = Duration.ofSeconds(60);
    private static final Duration AWAIT = Duration.ofSeconds(1);
    private static final int STEADY_IN_FLIGHT_MAX = 8192;
    private static final Runnable NOTHING = () -> { };

    private final Map<String, Producer> producers = new HashMap<>();
    private final Map<String, SimpleConsumer> consumers = new HashMap<>();
    private final RemotingLoad remoting = new RemotingLoad();

    public static void main(String[] arguments) throws Exception {
        LoadGenerator generator = new LoadGenerator();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Command command = new Command(line);
            String answer;
            try {
                answer = generator.run(command);
            } catch (Exception error) {
                answer = "{\"error\":" + Run.quoted(error.toString()) + "}";
            }
            System.out.println(answer);
            System.out.flush();
        }
        // Without close(): it waits for long polls that nobody needs any more.
        Runtime.getRuntime().halt(0);
    }

    private String run(Command command) throws Exception {
        if (command.has("remoting")) {
            return remoting.run(command);
        }
        return switch (command.text("mode")) {
            case "probe" -> probe(command);
            case "send" -> send(command);
            case "pipeline" -> pipeline(command);
            case "steady" -> steady(command);
            case "receive" -> receive(command);
            case "mixed" -> mixed(command);
            case "wake" -> wake(command);
            default -> throw new IllegalArgumentException("unknown mode " + command.text("mode"));
        };
    }

    /** One send tells whether the server is up and knows the topic. */
    private String probe(Command command) throws ClientException {
        producer(command).send(message(command, new byte[1]));
        return "{\"served\":true}";
    }

    /** Every thread sends, waits for its receipt, sends again. */
    private String send(Command command) throws Exception {
        Producer producer = producer(command);
        byte[] body = command.body();
        Run run = new Run(command.seconds());
        Run.inThreads(command.number("threads"), () -> {
            while (run.goesOn()) {
                sendOnce(producer, message(command, body), run);
            }
        });
        return run.answer();
    }

    /** One thread keeps a fixed number of sends in flight. */
    private String pipeline(Command command) throws Exception {
        Producer producer = producer(command);
        byte[] body = command.body();
        Run run = new Run(command.seconds());
        run.keepInFlight(command.number("in-flight"),
            room -> sendAsync(producer, message(command, body), System.nanoTime(), run, room));
        return run.answer();
    }

    /** One thread sends at a fixed rate. Time counts from when a send was due, so that nobody gains by being late. */
    private String steady(Command command) throws Exception {
        Producer producer = producer(command);
        byte[] body = command.body();
        Semaphore room = new Semaphore(STEADY_IN_FLIGHT_MAX);
        Run run = new Run(command.seconds());
        atRate(command.number("rate"), run, due -> {
            room.acquire();
            sendAsync(producer, message(command, body), due, run, room);
        });
        room.tryAcquire(STEADY_IN_FLIGHT_MAX, Run.LAST_ANSWERS_S, TimeUnit.SECONDS);
        return run.answer();
    }

    private static void sendAsync(Producer producer, Message message, long begin, Run run, Semaphore room) {
        whenAnswered(producer.sendAsync(message), run, () -> run.succeeded(begin), room::release);
    }

    /** Every thread receives a batch, acknowledges all of it, receives again. A message counts when acknowledged. */
    private String receive(Command command) throws Exception {
        SimpleConsumer consumer = consumer(command);
        int batch = command.number("batch");
        Run run = new Run(command.seconds());
        Run.inThreads(command.number("threads"), () -> {
            while (run.goesOn()) {
                receiveOnce(consumer, batch, run);
            }
        });
        return run.answer();
    }

    /** Some threads send, others receive. A message counts when it is stored, and once more when acknowledged. */
    private String mixed(Command command) throws Exception {
        Producer producer = producer(command);
        SimpleConsumer consumer = consumer(command);
        byte[] body = command.body();
        int batch = command.number("batch");
        int senders = command.number("threads");
        AtomicInteger started = new AtomicInteger();
        Run run = new Run(command.seconds());
        Run.inThreads(senders + command.number("receivers"), () -> {
            boolean sends = started.getAndIncrement() < senders;
            while (run.goesOn()) {
                if (sends) {
                    sendOnce(producer, message(command, body), run);
                } else {
                    receiveOnce(consumer, batch, run);
                }
            }
        });
        return run.answerOfAll();
    }

    /**
     * One thread sends at a fixed rate while others wait in receives. Time counts from the call of a send to its message
     * at a receiver: both are here, so it is one clock.
     */
    private String wake(Command command) throws Exception {
        Producer producer = producer(command);
        SimpleConsumer consumer = consumer(command);
        byte[] body = command.body();
        int rate = command.number("rate");
        int batch = command.number("batch");
        Semaphore room = new Semaphore(STEADY_IN_FLIGHT_MAX);
        AtomicBoolean hasSender = new AtomicBoolean();
        Run run = new Run(command.seconds());
        Run.inThreads(1 + command.number("receivers"), () -> {
            if (hasSender.compareAndSet(false, true)) {
                atRate(rate, run, due -> {
                    room.acquire();
                    sendStamped(producer, command, body.clone(), run, room);
                });
            } else {
                while (run.goesOn()) {
                    receiveStamped(consumer, batch, run);
                }
            }
        });
        room.tryAcquire(STEADY_IN_FLIGHT_MAX, Run.LAST_ANSWERS_S, TimeUnit.SECONDS);
        return run.answerOfAll();
    }

    private static void sendStamped(Producer producer, Command command, byte[] body, Run run, Semaphore room) {
        ByteBuffer.wrap(body).putLong(System.nanoTime());
        whenAnswered(producer.sendAsync(message(command, body)), run, NOTHING, room::release);
    }

    /** What the command before has left is acknowledged, and not counted. */
    private static void receiveStamped(SimpleConsumer consumer, int batch, Run run) {
        for (MessageView view : received(consumer, batch, run)) {
            long sent = view.getBody().getLong();
            if (run.hasBegunBy(sent)) {
                run.succeeded(sent);
            }
            whenAnswered(consumer.ackAsync(view), run, NOTHING, NOTHING);
        }
    }

    /** Calls it at the times that are due, or as soon after as it can. */
    private static void atRate(int rate, Run run, Due each) throws InterruptedException {
        double interval = 1e9 / rate;
        long start = System.nanoTime();
        for (long called = 0; run.goesOn(); called++) {
            long due = start + (long) (called * interval);
            long early = due - System.nanoTime();
            if (early > 0) {
                LockSupport.parkNanos(early);
            }
            each.call(due);
        }
    }

    private static void sendOnce(Producer producer, Message message, Run run) {
        long begin = System.nanoTime();
        try {
            producer.send(message);
            run.succeeded(begin);
        } catch (ClientException error) {
            run.failed(error);
        }
    }

    private static void receiveOnce(SimpleConsumer consumer, int batch, Run run) throws InterruptedException {
        long begin = System.nanoTime();
        List<MessageView> views = received(consumer, batch, run);
        CountDownLatch open = new CountDownLatch(views.size());
        for (MessageView view : views) {
            whenAnswered(consumer.ackAsync(view), run, () -> run.succeeded(begin), open::countDown);
        }
        open.await(Run.LAST_ANSWERS_S, TimeUnit.SECONDS);
    }

    /** None where it failed, which is counted. */
    private static List<MessageView> received(SimpleConsumer consumer, int batch, Run run) {
        try {
            List<MessageView> views = consumer.receive(batch, INVISIBLE);
            if (views.isEmpty()) {
                run.empty();
            }
            return views;
        } catch (ClientException error) {
            run.failed(error);
            return List.of();
        }
    }

    private static void whenAnswered(CompletableFuture<?> answer, Run run, Runnable succeeded, Runnable afterwards) {
        answer.whenComplete((nothing, error) -> {
            if (error == null) {
                succeeded.run();
            } else {
                run.failed(error);
            }
            afterwards.run();
        });
    }

    private Producer producer(Command command) throws ClientException {
        String key = command.text("endpoint") + " " + command.text("topic");
        Producer known = producers.get(key);
        if (known == null) {
            known = PROVIDER.newProducerBuilder().setClientConfiguration(configuration(command))
                .setTopics(command.text("topic")).build();
            producers.put(key, known);
        }
        return known;
    }

    private SimpleConsumer consumer(Command command) throws ClientException {
        String key = command.text("endpoint") + " " + command.text("topic");
        SimpleConsumer known = consumers.get(key);
        if (known == null) {
            known = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration(command))
                .setConsumerGroup(command.text("group"))
                .setSubscriptionExpressions(Map.of(command.text("topic"), FilterExpression.SUB_ALL))
                .setAwaitDuration(AWAIT).build();
            consumers.put(key, known);
        }
        return known;
    }

    private static ClientConfiguration configuration(Command command) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(command.text("endpoint"))
            .enableSsl(command.has("tls")).setRequestTimeout(Duration.ofSeconds(10));
        if (command.has("user")) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(command.text("user"), command.text("secret")));
        }
        return builder.build();
    }

    private static Message message(Command command, byte[] body) {
        return PROVIDER.newMessageBuilder().setTopic(command.text("topic")).setTag("created").setBody(body).build();
    }

    private interface Due {
        void call(long due) throws InterruptedException;
    }
}
