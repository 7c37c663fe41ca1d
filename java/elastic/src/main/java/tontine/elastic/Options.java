package tontine.elastic;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The options of a command line: {@code --name VALUE}, each of which may be given several times. */
public final class Options {
    private final Map<String, List<String>> values = new LinkedHashMap<>();

    /** A mistake on the command line. */
    public static final class Mistake extends Exception {
        private static final long serialVersionUID = 1L;

        /** Says what is wrong and what helps. */
        public Mistake(String message) {
            super(message);
        }
    }

    private Options() {}

    /** Reads words that follow the name of the engine; those that are not known are a mistake. */
    public static Options read(List<String> words, Set<String> known) throws Mistake {
        Options options = new Options();
        for (int at = 0; at < words.size(); at += 2) {
            String word = words.get(at);
            if (!word.startsWith("--") || !known.contains(word.substring(2))) {
                List<String> names = known.stream().sorted().map(name -> "--" + name).toList();
                throw new Mistake(word + " is no option; there are " + String.join(", ", names));
            }
            if (at + 1 == words.size()) {
                throw new Mistake(word + " lacks its value");
            }
            options.values.computeIfAbsent(word.substring(2), name -> new ArrayList<>()).add(words.get(at + 1));
        }
        return options;
    }

    /** The value of an option that must be there once. */
    public String one(String name) throws Mistake {
        String value = one(name, null);
        if (value == null) {
            throw new Mistake("--" + name + " is missing");
        }
        return value;
    }

    /** The value of an option that may be there once. */
    public String one(String name, String otherwise) throws Mistake {
        List<String> given = all(name);
        if (given.size() > 1) {
            throw new Mistake("--" + name + " is given more than once");
        }
        return given.isEmpty() ? otherwise : given.get(0);
    }

    /** All values of an option, in their order. */
    public List<String> all(String name) {
        return values.getOrDefault(name, List.of());
    }

    /** A whole number within bounds, both included. */
    public int number(String name, int otherwise, int least, int most) throws Mistake {
        String value = one(name, Integer.toString(otherwise));
        try {
            int number = Integer.parseInt(value);
            if (number >= least && number <= most) {
                return number;
            }
        } catch (NumberFormatException none) {
            // Told below, as one that is out of bounds.
        }
        throw new Mistake("--" + name + " " + value + " is no whole number from " + least + " to " + most);
    }
}
