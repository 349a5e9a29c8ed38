package quarry.interop;

import com.google.gson.Gson;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.okhttp.OkHttpChannelBuilder;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.MetadataUtils;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The interoperability cases on grpc-java: {@code InteropClient netty|okhttp target [ca]}. */
public final class InteropClient {
    private static final String PREFIX = "interop.Service/";
    private static final String REFUSAL = "größer als 100 %: 大";
    private static final long PATIENCE_S = 20;
    private static final int LARGE_SIZE = 4 << 20;
    private static final int LARGE_HEADER_SIZE = 15_000;
    private static final byte[] NOTHING = new byte[0];
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Gson GSON = new Gson();

    private interface Case {
        String run() throws Exception;
    }

    /** Bytes as they are. */
    private static final class Raw implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] body) {
            return new ByteArrayInputStream(body);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw Status.INTERNAL.withCause(error).asRuntimeException();
            }
        }
    }

    private final Channel channel;

    private InteropClient(Channel channel) {
        this.channel = channel;
    }

    public static void main(String[] args) throws Exception {
        ChannelCredentials credentials = args.length > 2
            ? TlsChannelCredentials.newBuilder().trustManager(new File(args[2])).build()
            : InsecureChannelCredentials.create();
        ManagedChannelBuilder<?> builder = args[0].equals("okhttp")
            ? OkHttpChannelBuilder.forTarget(args[1], credentials)
            : NettyChannelBuilder.forTarget(args[1], credentials);
        ManagedChannel channel = builder.maxInboundMessageSize(2 * LARGE_SIZE).build();
        try {
            new InteropClient(channel).runAll();
        } finally {
            channel.shutdownNow().awaitTermination(PATIENCE_S, TimeUnit.SECONDS);
        }
    }

    private void runAll() {
        report("unary", () -> equal("Echo", 1000, options()));
        report("empty", () -> equal("Echo", 0, options()));
        report("server stream", this::serverStream);
        report("bidi", this::bidi);
        report("early end", this::earlyEnd);
        report("cancel", this::cancel);
        report("deadline", this::deadline);
        report("4 MiB", () -> equal("Echo", LARGE_SIZE, options()));
        report("metadata", this::metadata);
        report("large header", this::largeHeader);
        report("gzip", () -> equal("Compressed", 1_000_000, options().withCompression("gzip")));
        report("unknown", () -> refused("Unknown", Status.Code.UNIMPLEMENTED, null));
        report("error", () -> refused("Refuse", Status.Code.INVALID_ARGUMENT, REFUSAL));
        report("1000 calls", this::many);
        report("100 at once", this::concurrent);
    }

    private static void report(String name, Case run) {
        boolean ok = false;
        String detail;
        try {
            detail = run.run();
            ok = true;
        } catch (Exception | AssertionError error) {
            detail = error.toString();
        }
        OUT.println(GSON.toJson(Map.of("case", name, "ok", ok, "detail", detail)));
    }

    private static CallOptions options() {
        return CallOptions.DEFAULT.withDeadlineAfter(PATIENCE_S, TimeUnit.SECONDS);
    }

    private static MethodDescriptor<byte[], byte[]> method(String name, MethodType type) {
        return MethodDescriptor.<byte[], byte[]>newBuilder()
            .setType(type)
            .setFullMethodName(PREFIX + name)
            .setRequestMarshaller(new Raw())
            .setResponseMarshaller(new Raw())
            .build();
    }

    private ClientCall<byte[], byte[]> call(String name, MethodType type) {
        return channel.newCall(method(name, type), options());
    }

    private byte[] unary(String name, byte[] body, CallOptions options) {
        return ClientCalls.blockingUnaryCall(channel, method(name, MethodType.UNARY), options, body);
    }

    private String unary(String name, String body) {
        return text(unary(name, bytes(body), options()));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void same(Object got, Object wanted) {
        if (!wanted.equals(got)) {
            throw new AssertionError(got + " instead of " + wanted);
        }
    }

    private String equal(String name, int size, CallOptions options) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            int run = i / 16;
            body[i] = (byte) (run * run * 0x9E3779B1 >>> 24); // gzip makes it some eight times smaller
        }
        byte[] answer = unary(name, body, options);
        if (!Arrays.equals(answer, body)) {
            throw new AssertionError(answer.length + " other bytes came back");
        }
        return size + " bytes";
    }

    private String serverStream() {
        Iterator<byte[]> answers =
            ClientCalls.blockingServerStreamingCall(call("Stream", MethodType.SERVER_STREAMING), NOTHING);
        for (int number = 0; number < 100; number++) {
            same(text(answers.next()), Integer.toString(number));
        }
        same(answers.hasNext(), false);
        return "100 messages";
    }

    /** Puts what comes into a queue: texts, and the status at the end. */
    private static final class Answers implements ClientResponseObserver<byte[], byte[]> {
        private final BlockingQueue<String> queue = new LinkedBlockingQueue<>();
        private ClientCallStreamObserver<byte[]> requests;

        @Override
        public void beforeStart(ClientCallStreamObserver<byte[]> requests) {
            this.requests = requests;
        }

        @Override
        public void onNext(byte[] answer) {
            queue.add(text(answer));
        }

        @Override
        public void onError(Throwable error) {
            queue.add(error.toString());
        }

        @Override
        public void onCompleted() {
            queue.add("OK");
        }

        void expect(String wanted) throws InterruptedException {
            same(queue.poll(PATIENCE_S, TimeUnit.SECONDS), wanted);
        }
    }

    private String bidi() throws InterruptedException {
        Answers answers = new Answers();
        ClientCalls.asyncBidiStreamingCall(call("PingPong", MethodType.BIDI_STREAMING), answers);
        for (int number = 0; number < 20; number++) {
            answers.requests.onNext(bytes(Integer.toString(number)));
            answers.expect(Integer.toString(number));
        }
        answers.requests.onCompleted();
        answers.expect("end");
        answers.expect("OK");
        return "20 pings";
    }

    private String earlyEnd() throws InterruptedException {
        Answers answers = new Answers();
        ClientCalls.asyncBidiStreamingCall(call("PingPong", MethodType.BIDI_STREAMING), answers);
        answers.requests.onNext(bytes("0"));
        answers.requests.onNext(bytes("bye"));
        answers.expect("0");
        answers.expect("OK");
        return "the server ended it";
    }

    private String cancel() throws InterruptedException {
        Answers answers = new Answers();
        ClientCalls.asyncServerStreamingCall(call("Park", MethodType.SERVER_STREAMING), bytes("cancelled"), answers);
        answers.expect("parked");
        answers.requests.cancel("enough", null);
        same(unary("Ended", "cancelled"), "ended");
        return "the server saw the end";
    }

    private String deadline() {
        CallOptions hurried = CallOptions.DEFAULT.withDeadlineAfter(300, TimeUnit.MILLISECONDS);
        long startedNs = System.nanoTime();
        Status.Code code = Status.Code.OK;
        try {
            unary("Silent", bytes("late"), hurried);
        } catch (StatusRuntimeException error) {
            code = error.getStatus().getCode();
        }
        long tookMs = Duration.ofNanos(System.nanoTime() - startedNs).toMillis();
        same(code, Status.Code.DEADLINE_EXCEEDED);
        same(tookMs >= 250 && tookMs < 5000, true);
        same(unary("Ended", "late"), "ended");
        return tookMs + " ms";
    }

    private String metadata() {
        byte[] binary = new byte[256];
        for (int i = 0; i < binary.length; i++) {
            binary[i] = (byte) i;
        }
        Metadata headers = new Metadata();
        headers.put(Metadata.Key.of("x-interop", Metadata.ASCII_STRING_MARSHALLER), "value 1");
        headers.put(Metadata.Key.of("x-interop-bin", Metadata.BINARY_BYTE_MARSHALLER), binary);
        same(with(headers).unary("Metadata", "x-interop"), "value 1");
        return "";
    }

    private String largeHeader() {
        String value = "x".repeat(LARGE_HEADER_SIZE);
        Metadata headers = new Metadata();
        headers.put(Metadata.Key.of("x-large", Metadata.ASCII_STRING_MARSHALLER), value);
        same(with(headers).unary("Metadata", "x-large"), value);
        return value.length() + " bytes";
    }

    private InteropClient with(Metadata headers) {
        return new InteropClient(
            ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers)));
    }

    private String refused(String name, Status.Code code, String message) {
        try {
            unary(name, "");
        } catch (StatusRuntimeException error) {
            same(error.getStatus().getCode(), code);
            String description = String.valueOf(error.getStatus().getDescription());
            if (message != null) {
                same(description, message);
            }
            return description;
        }
        throw new AssertionError("the call succeeded");
    }

    private String many() {
        String peer = unary("Peer", "");
        for (int number = 0; number < 1000; number++) {
            same(unary("Echo", Integer.toString(number)), Integer.toString(number));
        }
        same(unary("Peer", ""), peer);
        return "1000 calls";
    }

    private String concurrent() throws Exception {
        List<Future<byte[]>> answers = new ArrayList<>();
        for (int number = 0; number < 100; number++) {
            answers.add(ClientCalls.futureUnaryCall(
                call("Together", MethodType.UNARY), bytes(Integer.toString(number))));
        }
        for (int number = 0; number < 100; number++) {
            same(text(answers.get(number).get()), Integer.toString(number));
        }
        return "100 calls";
    }
}
