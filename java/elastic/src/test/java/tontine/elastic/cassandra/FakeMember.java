package tontine.elastic.cassandra;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.rmi.registry.LocateRegistry;
import java.rmi.registry.Registry;
import java.rmi.server.UnicastRemoteObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import javax.management.Attribute;
import javax.management.AttributeList;
import javax.management.AttributeNotFoundException;
import javax.management.DynamicMBean;
import javax.management.MBeanException;
import javax.management.MBeanInfo;
import javax.management.MBeanServer;
import javax.management.MBeanServerFactory;
import javax.management.ObjectName;
import javax.management.remote.JMXAuthenticator;
import javax.management.remote.JMXConnectorServer;
import javax.management.remote.JMXConnectorServerFactory;
import javax.management.remote.JMXServiceURL;
import javax.security.auth.Subject;

/** The JMX of a member without the member: real sockets and real RMI, and figures that a test sets. */
final class FakeMember implements AutoCloseable {
    final String address;
    final int port;
    /** What it was told to do, such as {@code decommission[false]}. */
    final List<String> told = new CopyOnWriteArrayList<>();
    final Map<String, Object> state = new ConcurrentHashMap<>();
    /** Counts of the beans of metrics, by name. */
    final Map<String, Object> counts = new ConcurrentHashMap<>();
    /** Whether it keeps whoever asks waiting. */
    volatile boolean hangs;
    private final Registry registry;
    private final JMXConnectorServer server;

    /** A bean whose attributes are in a map. */
    private record Bean(Map<String, Object> attributes, FakeMember member) implements DynamicMBean {
        @Override
        public Object getAttribute(String name) throws AttributeNotFoundException {
            Object value = attributes.get(name);
            if (value == null) {
                throw new AttributeNotFoundException(name);
            }
            return value;
        }

        @Override
        public AttributeList getAttributes(String[] names) {
            try {
                while (member.hangs) {
                    Thread.sleep(20);
                }
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            AttributeList list = new AttributeList();
            for (String name : names) {
                if (attributes.containsKey(name)) {
                    list.add(new Attribute(name, attributes.get(name)));
                }
            }
            return list;
        }

        @Override
        public Object invoke(String operation, Object[] words, String[] types) throws MBeanException {
            if (operation.equals("getKeyspaceReplicationInfo")) {
                return words[0].equals("shop") ? "SimpleStrategy {replication_factor=2}" : "X {dc1=1}";
            }
            List<String> texts = new ArrayList<>();
            for (Object word : words) {
                texts.add(word instanceof String[] all ? List.of(all).toString() : word.toString());
            }
            member.told.add(operation + texts);
            Object fails = attributes.get(operation + " fails with");
            if (fails != null) {
                throw new MBeanException(new UnsupportedOperationException(fails.toString()));
            }
            return 0;
        }

        @Override
        public void setAttribute(Attribute attribute) throws AttributeNotFoundException {
            throw new AttributeNotFoundException("nothing is set");
        }

        @Override
        public AttributeList setAttributes(AttributeList list) {
            return new AttributeList();
        }

        @Override
        public MBeanInfo getMBeanInfo() {
            return new MBeanInfo("fake", "fake", null, null, null, null);
        }
    }

    /** One of a ring of these addresses. */
    FakeMember(String address, List<String> all, String user, String password) throws Exception {
        this.address = address;
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            this.port = free.getLocalPort();
        }
        ring(all);
        MBeanServer beans = MBeanServerFactory.newMBeanServer();
        register(beans, "org.apache.cassandra.db:type=StorageService", state);
        register(beans, "org.apache.cassandra.net:type=FailureDetector", state);
        register(beans, "org.apache.cassandra.net:type=StreamManager", state);
        register(beans, "java.lang:type=OperatingSystem", state);
        for (String scope : List.of("Read", "RangeSlice", "Write", "CASWrite")) {
            register(beans, "org.apache.cassandra.metrics:type=ClientRequest,scope=" + scope + ",name=Latency", counts);
        }
        register(beans, "org.apache.cassandra.metrics:type=Storage,name=Load", counts);
        register(beans, "org.apache.cassandra.metrics:type=Compaction,name=PendingTasks", counts);
        registry = LocateRegistry.createRegistry(port);
        JMXAuthenticator login = given -> {
            if (given instanceof String[] words && words[0].equals(user) && words[1].equals(password)) {
                return new Subject();
            }
            throw new SecurityException("no such user");
        };
        JMXServiceURL url = new JMXServiceURL("service:jmx:rmi:///jndi/rmi://127.0.0.1:" + port + "/jmxrmi");
        server = JMXConnectorServerFactory.newJMXConnectorServer(
                url, Map.of(JMXConnectorServer.AUTHENTICATOR, login), beans);
        server.start();
    }

    private void register(MBeanServer beans, String name, Map<String, Object> attributes) throws Exception {
        beans.registerMBean(new Bean(attributes, this), new ObjectName(name));
    }

    private static List<String> withPorts(List<String> addresses) {
        return new ArrayList<>(addresses.stream().map(one -> one + ":7000").toList());
    }

    static String id(String address) {
        return "id-of-" + address;
    }

    /** From now on it sees a ring of these addresses, in which all is at rest. */
    void ring(List<String> all) {
        Map<String, String> ids = new TreeMap<>();
        Map<String, String> owners = new TreeMap<>();
        StringBuilder gossip = new StringBuilder();
        for (String one : all) {
            ids.put(one + ":7000", id(one));
            owners.put("token-" + one, one + ":7000");
            gossip.append('/').append(one).append(":7000\n  STATUS_WITH_PORT:5:NORMAL,1\n  HOST_ID:2:").append(id(one))
                    .append("\n");
        }
        state.putAll(new TreeMap<>(Map.of(
                "OperationMode", "NORMAL", "LocalHostId", id(address), "NativeTransportRunning", true,
                "DecommissionFailed", false, "LiveNodesWithPort", withPorts(all),
                "UnreachableNodesWithPort", withPorts(List.of()), "JoiningNodesWithPort", withPorts(List.of()),
                "LeavingNodesWithPort", withPorts(List.of()), "MovingNodesWithPort", withPorts(List.of()),
                "SchemaVersion", "schema")));
        state.put("EndpointWithPortToHostId", ids);
        state.put("TokenToEndpointWithPortMap", owners);
        state.put("RemovalStatusWithPort", "No token removals in process.");
        state.put("ClusterName", "fake");
        state.put("NonLocalStrategyKeyspaces", new ArrayList<>(List.of("shop", "system_auth")));
        state.put("AllEndpointStatesWithPort", gossip.toString());
        state.put("CurrentStreams", Set.of());
        state.put("ProcessCpuTime", 1L);
        state.put("AvailableProcessors", 2);
        counts.put("Count", 10L);
        counts.put("Value", 3);
    }

    /** One of the lists of its ring. */
    void list(String name, String... addresses) {
        state.put(name + "NodesWithPort", withPorts(List.of(addresses)));
    }

    @Override
    public void close() throws IOException {
        server.stop();
        UnicastRemoteObject.unexportObject(registry, true);
    }
}
