package quarry.bench;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/** What happened within the time of one command, and what still ended after it. */
final class Run {
    static final int LAST_ANSWERS_S = 20;

    private final long start = System.nanoTime();
    private final long end;
    private long[] latencies = new long[1 << 16];
    private int counted;
    private long total;
    private long last = start;
    private long empty;
    private long errors;
    private String firstError = "";

    Run(double seconds) {
        end = start + (long) (seconds * 1e9);
    }

    boolean goesOn() {
        return System.nanoTime() < end;
    }

    boolean hasBegunBy(long time) {
        return time >= start;
    }

    synchronized void succeeded(long begin) {
        long now = System.nanoTime();
        total++;
        if (now < end) {
            if (counted == latencies.length) {
                latencies = Arrays.copyOf(latencies, 2 * counted);
            }
            latencies[counted++] = now - begin;
            last = now;
        }
    }

    synchronized void failed(Throwable error) {
        if (errors++ == 0) {
            firstError = error.toString();
        }
    }

    synchronized void empty() {
        empty++;
    }

    /** When there was nothing left to receive, the time ends with the last message. */
    synchronized String answer() {
        return answer(empty > 0 ? last : end);
    }

    /** Also when there was nothing to receive for a while. */
    synchronized String answerOfAll() {
        return answer(end);
    }

    private String answer(long until) {
        double seconds = (until - start) / 1e9;
        long[] sorted = Arrays.copyOf(latencies, counted);
        Arrays.sort(sorted);
        return String.format(Locale.ROOT,
            "{\"messages\":%d,\"seconds\":%.4f,\"total\":%d,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"p999_ms\":%.3f,"
                + "\"empty_receives\":%d,\"errors\":%d,\"first_error\":%s}",
            counted, seconds, total, percentile(sorted, 0.50), percentile(sorted, 0.99), percentile(sorted, 0.999),
            empty, errors, quoted(firstError));
    }

    private static double percentile(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) (share * (sorted.length - 1))] / 1e6;
    }

    interface Work {
        void run() throws InterruptedException;
    }

    interface Send {
        void begin(Semaphore room) throws Exception;
    }

    /** Keeps a fixed number of sends in flight, each of which releases its room when it is answered. */
    void keepInFlight(int count, Send each) throws Exception {
        Semaphore room = new Semaphore(count);
        while (goesOn()) {
            room.acquire();
            each.begin(room);
        }
        room.tryAcquire(count, LAST_ANSWERS_S, TimeUnit.SECONDS);
    }

    static void inThreads(int count, Work work) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (InterruptedException ending) {
                    Thread.currentThread().interrupt();
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        text.chars().forEach(c -> {
            if (c == '"' || c == '\\') {
                out.append('\\').append((char) c);
            } else {
                out.append(c < ' ' ? ' ' : (char) c);
            }
        });
        return out.append('"').toString();
    }
}
