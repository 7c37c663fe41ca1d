package tontine.load;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/** Load on Cassandra, HBase or Redis Cluster; each read is compared. */
public final class Main {
    private static final String USAGE = """
            usage: load COMMAND --engine cassandra|hbase|redis --at HOST:PORT[,HOST:PORT...] [OPTIONS]

            --at names members of Cassandra (port of CQL) or Redis, and the ZooKeeper of HBase.

            load      write each record once           --records 100000 --value-bytes 1024 --under-way 64
            sweep     read each record once, count what is absent or wrong: the same options
            run       an open loop                     --rate 500 | 500x60,2000x120 (operations a second, and seconds)
                        --seconds S        until SIGTERM or the end of the steps, if it is not given
                        --writes 0..1      the share of updates (0)
                        --keys             uniform or zipf
                        --arrivals         poisson or even
                        --under-way 1024   operations at once; --patience 10: seconds that others wait to begin
                        --csv FILE         a line for each second
            capacity  the greatest rate whose p99 is below --objective-ms (50), in steps of --step-seconds (10), from
                      --from (200) on, at most --most (100000) operations a second; the options of run
            flush, balance   of HBase: writes what is in memory to files; gives each region server its share

            All: --timeout 10 (seconds for a request), --processors N (what the generator may use), --json FILE.
            Cassandra: --copies 1 --consistency ONE. HBase: --regions 24.
            Exits with 1 if anything failed, was absent, wrong, stale or not started; with 2 if it could not be done.
            """;
    /** The least share of operations that must be done for their rate to count as served. */
    private static final double DONE_LEAST = 0.97;
    private static final double WARM_UP_SECONDS = 5;

    private Main() {}

    /** See the usage. */
    public static void main(String[] words) {
        if (words.length == 0) {
            System.err.print(USAGE);
            System.exit(2);
        }
        var stop = new Stop();
        var code = 2;
        try {
            var options = new Options(Arrays.asList(words).subList(1, words.length));
            code = answer(words[0], options, stop) ? 0 : 1;
        } catch (IllegalArgumentException refused) {
            System.err.println("load: " + refused.getMessage());
        } catch (Exception failure) {
            System.err.println("load: " + words[0] + " failed: " + failure);
            failure.printStackTrace();
        }
        stop.end();
        if (!stop.isAsked()) {
            System.exit(code);
        }
    }

    private static boolean answer(String command, Options options, Stop stop) throws Exception {
        var json = options.text("json", "");
        var processors = options.number("processors", Runtime.getRuntime().availableProcessors());
        try (var target = Target.open(options)) {
            return switch (command) {
                case "load" -> load(target, options, json);
                case "sweep" -> sweep(target, options, json);
                case "run" -> run(target, options, stop, json, processors);
                case "capacity" -> capacity(target, options, stop, json, processors);
                case "flush", "balance" -> order(command, target, options, json);
                default -> throw new IllegalArgumentException("there is no command " + command + "\n" + USAGE);
            };
        }
    }

    private static boolean order(String command, Target target, Options options, String json) throws Exception {
        if (!(target instanceof HBaseTarget hbase)) {
            throw new IllegalArgumentException(command + " is for --engine hbase");
        }
        for (var meantForOthers : List.of("records", "value-bytes")) {
            options.text(meantForOthers, "");
        }
        options.finish();
        if (command.equals("balance")) {
            write(json, hbase.balance());
        } else {
            hbase.flush();
            write(json, Map.of());
        }
        return true;
    }

    private static boolean load(Target target, Options options, String json) throws Exception {
        var closed = new Closed(target, options);
        options.finish();
        target.prepare();
        var began = System.nanoTime();
        var left = closed.load();
        write(json, Map.of("seconds", (System.nanoTime() - began) / 1e9, "failed", left));
        return left == 0;
    }

    private static boolean sweep(Target target, Options options, String json) throws Exception {
        var closed = new Closed(target, options);
        options.finish();
        target.prepare();
        var counts = closed.sweep();
        var told = new LinkedHashMap<String, Object>();
        for (var finding : List.of(Finding.RIGHT, Finding.FAILED, Finding.ABSENT, Finding.WRONG)) {
            told.put(finding.name().toLowerCase(Locale.ROOT), counts.getOrDefault(finding, 0));
        }
        write(json, told);
        return counts.keySet().equals(Set.of(Finding.RIGHT));
    }

    private static boolean run(Target target, Options options, Stop stop, String json, double processors)
            throws Exception {
        var schedule = new Schedule(options.text("rate"));
        var otherwise = schedule.seconds() > 0 ? schedule.seconds() : Double.POSITIVE_INFINITY;
        var seconds = options.number("seconds", otherwise);
        var file = options.text("csv", "");
        var driver = new Driver(target, options);
        options.finish();
        target.prepare();
        try (var csv = stream(file)) {
            var course = new Course(driver, schedule, csv, processors);
            driver.run(schedule, seconds, stop);
            driver.finish();
            var summary = course.end();
            write(json, summary);
            return List.of("failed", "absent", "wrong", "stale", "unstarted").stream()
                    .allMatch(name -> summary.get(name).equals(0L));
        }
    }

    private static PrintStream stream(String file) throws IOException {
        var to = file.isEmpty() ? new FileOutputStream(FileDescriptor.out) : new FileOutputStream(file);
        return new PrintStream(to, true, StandardCharsets.UTF_8);
    }

    private static boolean capacity(Target target, Options options, Stop stop, String json, double processors)
            throws Exception {
        var objective = options.number("objective-ms", 50);
        var step = options.number("step-seconds", 10);
        var from = options.number("from", 200);
        var most = options.number("most", 100_000);
        var driver = new Driver(target, options);
        options.finish();
        target.prepare();
        driver.run(new Schedule("" + from), WARM_UP_SECONDS, stop);
        var found = Capacity.find(from, most, rate -> {
            try {
                driver.finish();
                driver.take();
                var machine = new Machine(processors);
                driver.run(new Schedule("" + rate), step, stop);
                driver.finish();
                return !stop.isAsked() && isServed(rate, step, objective, driver.take(), machine.look());
            } catch (InterruptedException hurried) {
                Thread.currentThread().interrupt();
                return false;
            }
        });
        write(json, Map.of("capacity", found, "objective_ms", objective));
        return found > 0;
    }

    private static boolean isServed(double rate, double step, double objective, Tally tally, Machine.Use use) {
        var done = tally.count(Finding.RIGHT);
        // Arrivals are by chance, so what came is compared, and not what was to come.
        var isServed = done >= DONE_LEAST * tally.all() && tally.latency(99) <= objective;
        System.err.printf(Locale.ROOT, "%.0f/s: %d of %d done in %.0f s, p99 %.1f ms, idle %.2f, box idle %.2f: %s%n", rate,
                done, tally.all(), step, tally.latency(99), use.idle(), use.boxIdle(),
                isServed ? "served" : "not served");
        return isServed;
    }

    private static void write(String file, Map<String, ?> told) throws IOException {
        var json = new ObjectMapper();
        if (file.isEmpty()) {
            System.out.println(json.writeValueAsString(told));
        } else {
            json.writerWithDefaultPrettyPrinter().writeValue(new File(file), told);
        }
    }
}
