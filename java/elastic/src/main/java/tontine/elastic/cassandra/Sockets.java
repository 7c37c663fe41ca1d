package tontine.elastic.cassandra;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.rmi.server.RMISocketFactory;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The sockets of RMI, which has no deadlines of its own: a connect ends in time, and whoever waits for a member that
 * answers no more is set free by {@link Owner#closeAll}.
 */
final class Sockets extends RMISocketFactory {
    /** How long a connect may take. */
    private static final Duration CONNECT_TIME_MAX = Duration.ofSeconds(2);
    private static final ThreadLocal<Owner> CURRENT = new ThreadLocal<>();

    /** The sockets of one member. */
    static final class Owner {
        private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();

        /** Runs something whose new sockets are of this owner. */
        <T> T run(java.util.concurrent.Callable<T> work) throws Exception {
            Owner before = CURRENT.get();
            CURRENT.set(this);
            try {
                return work.call();
            } finally {
                CURRENT.set(before);
            }
        }

        /** Ends all waiting for this member. */
        void closeAll() {
            for (Socket socket : sockets) {
                sockets.remove(socket);
                try {
                    socket.close();
                } catch (IOException closed) {
                    // It is of no use any more either way.
                }
            }
        }
    }

    /** From now on RMI's sockets come from here. */
    static void install() {
        try {
            if (RMISocketFactory.getSocketFactory() == null) {
                RMISocketFactory.setSocketFactory(new Sockets());
            }
        } catch (IOException set) {
            throw new IllegalStateException("another part of this process has set RMI's sockets", set);
        }
    }

    @Override
    public Socket createSocket(String host, int port) throws IOException {
        Socket socket = new Socket();
        Owner owner = CURRENT.get();
        if (owner != null) {
            owner.sockets.removeIf(Socket::isClosed);
            owner.sockets.add(socket);
        }
        try {
            socket.connect(new InetSocketAddress(host, port), Math.toIntExact(CONNECT_TIME_MAX.toMillis()));
            socket.setTcpNoDelay(true);
            socket.setKeepAlive(true);
            return socket;
        } catch (IOException failed) {
            socket.close();
            throw failed;
        }
    }

    @Override
    public ServerSocket createServerSocket(int port) throws IOException {
        return RMISocketFactory.getDefaultSocketFactory().createServerSocket(port);
    }
}
