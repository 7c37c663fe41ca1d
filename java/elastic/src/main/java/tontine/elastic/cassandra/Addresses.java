package tontine.elastic.cassandra;

import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.Set;

/** Addresses as Cassandra writes them, and as providers do: without a port. */
final class Addresses {
    private Addresses() {}

    /** {@code 10.0.0.1}, {@code 10.0.0.1:7000}, {@code [::1]:7000}, {@code host/10.0.0.1:7000}: the address alone. */
    static String withoutPort(String text) {
        String address = text.substring(text.indexOf('/') + 1);
        if (address.startsWith("[")) {
            int end = address.indexOf(']');
            return end < 0 ? address : address.substring(1, end);
        }
        int colon = address.indexOf(':');
        // Two colons are an IPv6 address without a port.
        return colon < 0 || address.indexOf(':', colon + 1) >= 0 ? address : address.substring(0, colon);
    }

    static Set<String> withoutPorts(Collection<String> texts) {
        Set<String> addresses = new LinkedHashSet<>();
        texts.forEach(text -> addresses.add(withoutPort(text)));
        return addresses;
    }

    /** As it stands before a port. */
    static String bracketed(String address) {
        return address.indexOf(':') >= 0 ? "[" + address + "]" : address;
    }
}
