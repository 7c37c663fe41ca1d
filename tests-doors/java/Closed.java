import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.SslVerifyMode;
import java.io.File;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * Redis clients of Java with TLS as a user: `Closed HOST PORT AUTHORITY USER`, and the secret on the standard input.
 * Each prints what it reads back, and how a key without a right is refused.
 */
public final class Closed {
    public static void main(String[] arguments) throws Exception {
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        String secret = new String(System.in.readAllBytes(), StandardCharsets.UTF_8).strip();
        jedis(host, port, Path.of(arguments[2]), arguments[3], secret);
        lettuce(host, port, new File(arguments[2]), arguments[3], secret);
        System.exit(0);
    }

    private static void jedis(String host, int port, Path authority, String user, String secret) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null);
        try (InputStream file = Files.newInputStream(authority)) {
            trusted.setCertificateEntry("node-authority", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        var managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext tls = SSLContext.getInstance("TLS");
        tls.init(null, managers.getTrustManagers(), null);
        // Without this Jedis does not compare the certificate with the address that it calls.
        SSLParameters verified = new SSLParameters();
        verified.setEndpointIdentificationAlgorithm("HTTPS");
        var settings = DefaultJedisClientConfig.builder()
                .ssl(true)
                .sslSocketFactory(tls.getSocketFactory())
                .sslParameters(verified)
                .user(user)
                .password(secret)
                .build();
        try (JedisPooled client = new JedisPooled(new HostAndPort(host, port), settings)) {
            client.set("shop:jedis", "hello");
            System.out.println("jedis " + client.get("shop:jedis"));
            try {
                client.set("other", "x");
                System.out.println("jedis wrote");
            } catch (JedisDataException refusal) {
                System.out.println("jedis " + refusal.getMessage());
            }
        }
    }

    private static void lettuce(String host, int port, File authority, String user, String secret) {
        RedisURI address = RedisURI.builder()
                .withHost(host)
                .withPort(port)
                .withSsl(true)
                .withVerifyPeer(SslVerifyMode.FULL)
                .withAuthentication(user, secret.toCharArray())
                .build();
        RedisClient client = RedisClient.create(address);
        client.setOptions(ClientOptions.builder()
                .sslOptions(SslOptions.builder().jdkSslProvider().trustManager(authority).build())
                .build());
        try (var connection = client.connect()) {
            connection.sync().set("shop:lettuce", "hello");
            System.out.println("lettuce " + connection.sync().get("shop:lettuce"));
            try {
                connection.sync().set("other", "x");
                System.out.println("lettuce wrote");
            } catch (RedisCommandExecutionException refusal) {
                System.out.println("lettuce " + refusal.getMessage());
            }
        }
        client.shutdown(0, 0, TimeUnit.SECONDS);
    }
}
