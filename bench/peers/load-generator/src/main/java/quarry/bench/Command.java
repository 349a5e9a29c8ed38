package quarry.bench;

import java.util.HashMap;
import java.util.Map;
import java.util.Random;

/** The words of one line. */
final class Command {
    private final Map<String, String> words = new HashMap<>();

    Command(String line) {
        for (String word : line.trim().split(" ")) {
            int at = word.indexOf('=');
            words.put(word.substring(0, at), word.substring(at + 1));
        }
    }

    String text(String name) {
        String value = words.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing " + name);
        }
        return value;
    }

    boolean has(String name) {
        return words.containsKey(name);
    }

    int number(String name) {
        return Integer.parseInt(text(name));
    }

    /** Random bytes: the client compresses nothing below its limit, but a server or disk might. */
    byte[] body() {
        byte[] body = new byte[number("body")];
        new Random(number("seed")).nextBytes(body);
        return body;
    }

    double seconds() {
        return Double.parseDouble(text("seconds"));
    }
}
