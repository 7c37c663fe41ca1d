package tontine.load;

import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Options of the command line: `--name value`. One that nobody reads is refused. */
final class Options {
    private final Map<String, String> given = new HashMap<>();
    private final Set<String> read = new HashSet<>();

    Options(List<String> words) {
        for (var at = 0; at < words.size(); at += 2) {
            var name = words.get(at);
            if (!name.startsWith("--") || at + 1 == words.size()) {
                throw new IllegalArgumentException("\"" + name + "\" is no option with a value; run it without words");
            }
            given.put(name.substring(2), words.get(at + 1));
        }
    }

    String text(String name) {
        var value = text(name, null);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    String text(String name, String otherwise) {
        read.add(name);
        return given.getOrDefault(name, otherwise);
    }

    int whole(String name, int otherwise) {
        return (int) number(name, otherwise);
    }

    double number(String name, double otherwise) {
        var value = text(name, null);
        try {
            return value == null ? otherwise : Double.parseDouble(value);
        } catch (NumberFormatException unreadable) {
            throw new IllegalArgumentException("--" + name + " is a number, not \"" + value + "\"", unreadable);
        }
    }

    /** The longest that one request may take. */
    Duration timeout() {
        return Duration.ofMillis((long) (1000 * number("timeout", 10)));
    }

    /** Where the engine is: `--at HOST:PORT,HOST:PORT`. */
    List<InetSocketAddress> addresses() {
        var addresses = new ArrayList<InetSocketAddress>();
        for (var one : text("at").split(",")) {
            var colon = one.lastIndexOf(':');
            if (colon < 1) {
                throw new IllegalArgumentException("--at is HOST:PORT[,HOST:PORT...], not \"" + one + "\"");
            }
            addresses.add(new InetSocketAddress(one.substring(0, colon), Integer.parseInt(one.substring(colon + 1))));
        }
        return addresses;
    }

    /** Refuses what nobody has read. */
    void finish() {
        for (var name : given.keySet()) {
            if (!read.contains(name)) {
                throw new IllegalArgumentException("there is no option --" + name + " here; run it without words");
            }
        }
    }
}
