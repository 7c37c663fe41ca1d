package tontine.load;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Records whose values prove of which key and version they are.
 *
 * <p>A key is 16 digits of hexadecimal, spread evenly, so that an engine that splits by key order can be split beforehand.
 * A value is its key, its version in 16 digits, and bytes that only these two give. So a read needs no copy of what was
 * written to be compared.
 */
final class Records {
    /** Bytes of the least value: key and version. */
    static final int LENGTH_MIN = 32;

    private final int length;

    /** @param length bytes of each value, at least {@link #LENGTH_MIN} */
    Records(int length) {
        if (length < LENGTH_MIN) {
            throw new IllegalArgumentException("a value has at least " + LENGTH_MIN + " bytes, not " + length);
        }
        this.length = length;
    }

    /** The key of a record. Different numbers have different keys. */
    static String key(long number) {
        return digits(mixed(number));
    }

    /** The value of a record in a version. */
    byte[] value(long number, long version) {
        var value = new byte[length];
        var head = (key(number) + digits(version)).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(head, 0, value, 0, head.length);
        var state = mixed(mixed(number) ^ version);
        for (var at = LENGTH_MIN; at < length; at++) {
            if (at % 8 == 0) {
                state = mixed(state + 1);
            }
            value[at] = (byte) (state >>> 8 * (at % 8));
        }
        return value;
    }

    /** The version of a value, or -1 if this record never had this value. */
    long version(long number, byte[] value) {
        if (value.length != length) {
            return -1;
        }
        try {
            var version = Long.parseUnsignedLong(new String(value, 16, 16, StandardCharsets.US_ASCII), 16);
            return version >= 0 && Arrays.equals(value, value(number, version)) ? version : -1;
        } catch (NumberFormatException notOurs) {
            return -1;
        }
    }

    private static String digits(long number) {
        var digits = Long.toHexString(number);
        return "0".repeat(16 - digits.length()) + digits;
    }

    /** A permutation of all numbers that looks like chance: xor-shifts and multiplications by odd numbers undo each other. */
    static long mixed(long number) {
        var mixed = (number ^ number >>> 31) * 0x9e3779b97f4a7c15L;
        mixed = (mixed ^ mixed >>> 29) * 0xd6e8feb86659fd93L;
        return mixed ^ mixed >>> 32;
    }
}
