package tontine.elastic;

/** The log: a line on standard error for each thing that an operator would want to know. It never holds a secret. */
public final class Log {
    private Log() {}

    /** Writes one line; line ends within it become spaces. */
    public static void say(String message) {
        System.err.println(oneLine(message));
    }

    /** A text of any origin on one line. */
    public static String oneLine(String text) {
        return text.replaceAll("\\s*[\\r\\n]+\\s*", " ");
    }
}
