package tontine.elastic.cassandra;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.management.Attribute;
import javax.management.InstanceNotFoundException;
import javax.management.JMException;
import javax.management.MBeanServerConnection;
import javax.management.MalformedObjectNameException;
import javax.management.ObjectName;
import javax.management.openmbean.CompositeData;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;
import tontine.elastic.Options;

/**
 * JMX to one member. It connects when it is first asked, and anew after any failure.
 *
 * <p>Calls block, and are made on threads that may be lost for a while; {@link #abandonIfItHangs} sets them free.
 */
final class Connection {
    private static final ObjectName STORAGE = name("org.apache.cassandra.db:type=StorageService");
    private static final ObjectName GOSSIP = name("org.apache.cassandra.net:type=FailureDetector");
    private static final ObjectName STREAMS = name("org.apache.cassandra.net:type=StreamManager");
    private static final ObjectName SYSTEM = name("java.lang:type=OperatingSystem");
    private static final ObjectName LOAD = name("org.apache.cassandra.metrics:type=Storage,name=Load");
    private static final ObjectName PENDING = name("org.apache.cassandra.metrics:type=Compaction,name=PendingTasks");
    /** Requests of clients, each counted once: a conditional read counts as a read, too. */
    private static final List<ObjectName> REQUESTS = List.of(
            requests("Read"), requests("RangeSlice"), requests("Write"), requests("CASWrite"));

    private static final String[] STATE = {
        "OperationMode", "LocalHostId", "NativeTransportRunning", "DecommissionFailed", "LiveNodesWithPort",
        "UnreachableNodesWithPort", "JoiningNodesWithPort", "LeavingNodesWithPort", "MovingNodesWithPort",
        "EndpointWithPortToHostId", "TokenToEndpointWithPortMap", "SchemaVersion", "RemovalStatusWithPort",
    };
    private static final String NO_REMOVAL = "No token removals in process.";
    private static final Pattern FACTOR = Pattern.compile("=([0-9]+)");

    private final String address;
    private final Settings settings;
    private final Sockets.Owner sockets = new Sockets.Owner();
    private final ReentrantLock connecting = new ReentrantLock();
    /** Threads that look, and since when. */
    private final Map<Thread, Long> looking = new ConcurrentHashMap<>();
    private volatile JMXConnector connector;

    Connection(String address, Settings settings) {
        this.address = address;
        this.settings = settings;
    }

    /** A call to a member. */
    private interface Call<T> {
        T on(MBeanServerConnection server) throws JMException, IOException;
    }

    /** Everything that it says, of this moment. */
    Look look(Duration limit) throws Exception {
        looking.put(Thread.currentThread(), System.nanoTime());
        try {
            return call(limit, this::look);
        } finally {
            looking.remove(Thread.currentThread());
        }
    }

    /** The greatest sum of replication factors of any keyspace whose data is spread over members. */
    int replicas(Duration limit) throws Exception {
        return call(limit, server -> {
            int most = 1;
            for (String keyspace : keyspaces(server)) {
                String strategy = (String) invoke(server, "getKeyspaceReplicationInfo", new Object[] {keyspace},
                        "java.lang.String");
                most = Math.max(most, replicas(strategy));
            }
            return most;
        });
    }

    /** {@code SimpleStrategy {replication_factor=3}}: the sum over data centers; of {@code 3/1} the first counts. */
    static int replicas(String strategy) {
        int sum = 0;
        Matcher factors = FACTOR.matcher(strategy);
        while (factors.find()) {
            sum += Integer.parseInt(factors.group(1));
        }
        return sum;
    }

    /** The name of the cluster. */
    String cluster(Duration limit) throws Exception {
        return call(limit, server -> (String) server.getAttribute(STORAGE, "ClusterName"));
    }

    /** Leaves the ring. It returns when the member has left; the member goes on also if this process ends. */
    void decommission(Duration limit) throws Exception {
        call(limit, server -> invoke(server, "decommission", new Object[] {false}, "boolean"));
    }

    /** Drops what it does not own any more. It returns when that is done. */
    void cleanUp(Duration limit) throws Exception {
        call(limit, server -> {
            for (String keyspace : keyspaces(server)) {
                Object[] words = {1, keyspace, new String[0]};
                invoke(server, "forceKeyspaceCleanup", words, "int", "java.lang.String", String[].class.getName());
            }
            return null;
        });
    }

    /** Ends all waiting for it if a look waits for that long; the next call connects anew. */
    void abandonIfItHangs(Duration limit) {
        long now = System.nanoTime();
        if (looking.values().stream().anyMatch(began -> now - began > limit.toNanos())) {
            connector = null;
            sockets.closeAll();
        }
    }

    private static Object invoke(MBeanServerConnection server, String operation, Object[] words, String... types)
            throws JMException, IOException {
        return server.invoke(STORAGE, operation, words, types);
    }

    @SuppressWarnings("unchecked")
    private static List<String> keyspaces(MBeanServerConnection server) throws JMException, IOException {
        return (List<String>) server.getAttribute(STORAGE, "NonLocalStrategyKeyspaces");
    }

    private <T> T call(Duration limit, Call<T> call) throws Exception {
        return sockets.run(() -> {
            JMXConnector used = connected(limit);
            try {
                return call.on(used.getMBeanServerConnection());
            } catch (IOException | RuntimeException broken) {
                // The next call connects anew. What the member itself answered comes as another exception.
                if (broken instanceof IOException && connector == used) {
                    connector = null;
                }
                throw broken;
            }
        });
    }

    private JMXConnector connected(Duration limit) throws Exception {
        JMXConnector there = connector;
        if (there != null) {
            return there;
        }
        if (!connecting.tryLock(limit.toMillis(), TimeUnit.MILLISECONDS)) {
            throw new TimeoutException("no connection yet");
        }
        try {
            if (connector == null) {
                Map<String, Object> environment = new HashMap<>();
                // Without a thread that asks now and then whether it is still there: each call finds that out.
                environment.put("jmx.remote.x.client.connection.check.period", 0L);
                String[] login = settings.login();
                if (login != null) {
                    environment.put(JMXConnector.CREDENTIALS, login);
                }
                String url = "service:jmx:rmi:///jndi/rmi://" + settings.jmxOf(address) + "/jmxrmi";
                connector = JMXConnectorFactory.connect(new JMXServiceURL(url), environment);
            }
            return connector;
        } finally {
            connecting.unlock();
        }
    }

    @SuppressWarnings("unchecked")
    private Look look(MBeanServerConnection server) throws JMException, IOException {
        Map<String, Object> state = new HashMap<>();
        for (Attribute one : server.getAttributes(STORAGE, STATE).asList()) {
            state.put(one.getName(), one.getValue());
        }
        for (String needed : STATE) {
            if (state.get(needed) == null) {
                throw new IOException("it does not tell " + needed + "; this adapter speaks to Cassandra 5.0");
            }
        }
        Map<String, String> hostIds = new TreeMap<>();
        ((Map<String, String>) state.get("EndpointWithPortToHostId"))
                .forEach((endpoint, id) -> hostIds.put(Addresses.withoutPort(endpoint), id));
        Map<String, String> owners = new TreeMap<>();
        ((Map<String, String>) state.get("TokenToEndpointWithPortMap"))
                .forEach((token, endpoint) -> owners.put(token, Addresses.withoutPort(endpoint)));
        return new Look(
                address, (String) state.get("LocalHostId"), (String) state.get("OperationMode"),
                (Boolean) state.get("NativeTransportRunning"), (Boolean) state.get("DecommissionFailed"),
                addresses(state.get("LiveNodesWithPort")), addresses(state.get("UnreachableNodesWithPort")),
                addresses(state.get("JoiningNodesWithPort")), addresses(state.get("LeavingNodesWithPort")),
                addresses(state.get("MovingNodesWithPort")), hostIds, owners, (String) state.get("SchemaVersion"),
                !NO_REMOVAL.equals(state.get("RemovalStatusWithPort")),
                Look.gossip((String) server.getAttribute(GOSSIP, "AllEndpointStatesWithPort")),
                streams(server), figures(server));
    }

    @SuppressWarnings("unchecked")
    private static Set<String> addresses(Object endpoints) {
        return Addresses.withoutPorts((List<String>) endpoints);
    }

    @SuppressWarnings("unchecked")
    private static List<Look.Stream> streams(MBeanServerConnection server) throws JMException, IOException {
        List<Look.Stream> streams = new ArrayList<>();
        for (CompositeData stream : (Set<CompositeData>) server.getAttribute(STREAMS, "CurrentStreams")) {
            Set<String> peers = new LinkedHashSet<>();
            for (CompositeData session : (CompositeData[]) stream.get("sessions")) {
                peers.add(Addresses.withoutPort((String) session.get("peer")));
                peers.add(Addresses.withoutPort((String) session.get("connecting")));
            }
            streams.add(new Look.Stream(
                    peers, (Double) stream.get("rxPercentage"), (Double) stream.get("txPercentage")));
        }
        return streams;
    }

    private static Look.Figures figures(MBeanServerConnection server) throws JMException, IOException {
        Number processorNanos = number(server, SYSTEM, "ProcessCpuTime");
        Number processors = number(server, SYSTEM, "AvailableProcessors");
        Long operations = 0L;
        for (ObjectName one : REQUESTS) {
            Number count = number(server, one, "Count");
            // A member that shows no such counter yet is not one without load.
            operations = operations == null || count == null ? null : operations + count.longValue();
        }
        Number bytes = number(server, LOAD, "Count");
        Number pending = number(server, PENDING, "Value");
        return new Look.Figures(
                System.nanoTime(), processorNanos == null ? null : processorNanos.longValue(),
                processors == null ? null : processors.intValue(), operations,
                bytes == null ? null : bytes.longValue(), pending == null ? null : pending.intValue());
    }

    private static Number number(MBeanServerConnection server, ObjectName bean, String attribute)
            throws JMException, IOException {
        try {
            return server.getAttribute(bean, attribute) instanceof Number number ? number : null;
        } catch (InstanceNotFoundException notYet) {
            return null;
        }
    }

    private static ObjectName requests(String scope) {
        return name("org.apache.cassandra.metrics:type=ClientRequest,scope=" + scope + ",name=Latency");
    }

    private static ObjectName name(String name) {
        try {
            return new ObjectName(name);
        } catch (MalformedObjectNameException defect) {
            throw new IllegalStateException(name, defect);
        }
    }

    /** Why a call failed, for people; without anything that is secret. */
    String words(Throwable why) {
        if (why instanceof SecurityException) {
            String remedy = settings.credentials() == null ? "name a file with --credentials" : "see to "
                    + settings.credentials() + ", and to the member's file of access rights";
            return "JMX of " + address + " rejected these credentials; " + remedy;
        }
        if (why instanceof TimeoutException) {
            return "JMX of " + address + " (" + settings.jmxOf(address) + ") does not answer in time";
        }
        if (why instanceof Options.Mistake) {
            return why.getMessage();
        }
        Throwable cause = why;
        while (cause.getCause() != null && cause.getCause() != cause) {
            cause = cause.getCause();
        }
        return "JMX of " + address + " (" + settings.jmxOf(address) + "): " + cause.getMessage();
    }
}
