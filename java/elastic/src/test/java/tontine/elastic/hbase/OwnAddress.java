package tontine.elastic.hbase;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import org.apache.hadoop.net.StandardSocketFactory;

/**
 * Sockets that call from the address of their machine. The NameNode knows a DataNode by the address that it called from,
 * and on the loopback interface everybody calls from 127.0.0.1 otherwise. Members of tests run with this.
 */
public final class OwnAddress extends StandardSocketFactory {
    @Override
    public Socket createSocket() throws IOException {
        Socket socket = super.createSocket();
        socket.bind(new InetSocketAddress(System.getenv("MACHINE_ADDRESS"), 0));
        return socket;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof OwnAddress;
    }

    @Override
    public int hashCode() {
        return OwnAddress.class.hashCode();
    }
}
