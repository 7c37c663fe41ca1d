import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Reads the files whose URLs come on standard input, four at a time, with Hadoop's own client.
 * It prints how many seconds that took, without the start of this process.
 */
public final class Read {
    public static void main(String[] arguments) throws Exception {
        List<String> urls = new BufferedReader(new InputStreamReader(System.in)).lines().collect(Collectors.toList());
        FileSystem files = FileSystem.get(URI.create(urls.get(0)), new Configuration());
        long began = System.nanoTime();
        ExecutorService threads = Executors.newFixedThreadPool(4);
        List<Callable<Long>> reads = urls.stream().<Callable<Long>>map(url -> () -> read(files, url)).collect(Collectors.toList());
        for (Future<Long> read : threads.invokeAll(reads)) {
            read.get();
        }
        System.out.println((System.nanoTime() - began) / 1e9);
        threads.shutdown();
    }

    private static long read(FileSystem files, String url) throws Exception {
        byte[] buffer = new byte[1 << 20];
        long bytes = 0;
        try (InputStream input = files.open(new Path(url), buffer.length)) {
            for (int count = input.read(buffer); count >= 0; count = input.read(buffer)) {
                bytes += count;
            }
        }
        return bytes;
    }
}
