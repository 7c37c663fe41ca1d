package tontine.elastic.hbase;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;

/**
 * The pages on which HBase's and HDFS's processes show their management beans, as JSON under {@code /jmx}. A page that
 * does not come in time, or not in this form, gives an empty bean.
 */
final class Pages {
    /** How long a page may take: it is there at once or not worth waiting for. */
    static final Duration TIME_MAX = Duration.ofMillis(1_500);

    private static final ObjectMapper JSON = new ObjectMapper();

    // A DataNode answers an offer of HTTP/2 with nothing.
    private final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(TIME_MAX)
            .followRedirects(HttpClient.Redirect.NEVER).build();

    /** The bean of a process; empty if it cannot be had. */
    CompletableFuture<JsonNode> bean(String address, int port, String name) {
        URI at = URI.create("http://" + address + ":" + port + "/jmx?qry="
                + URLEncoder.encode(name, StandardCharsets.UTF_8));
        return client.sendAsync(HttpRequest.newBuilder(at).timeout(TIME_MAX).build(),
                        HttpResponse.BodyHandlers.ofByteArray())
                .thenApply(Pages::first)
                .exceptionally(none -> JSON.createObjectNode());
    }

    private static JsonNode first(HttpResponse<byte[]> page) {
        try {
            return page.statusCode() == HTTP_OK ? JSON.readTree(page.body()).path("beans").path(0)
                    : JSON.createObjectNode();
        } catch (IOException malformed) {
            return JSON.createObjectNode();
        }
    }

    private static final int HTTP_OK = 200;
}
