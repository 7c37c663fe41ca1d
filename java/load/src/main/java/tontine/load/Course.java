package tontine.load;

import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

/** A run, second by second: writes its CSV, and keeps the sum of all. */
final class Course {
    static final String HEADER = "time,second,offered,done,failed,absent,wrong,stale,unstarted,p50_ms,p99_ms,"
            + "served_p50_ms,served_p99_ms,lag_p99_ms,under_way,cpu,idle,box_idle";
    private static final long SECOND_NS = 1_000_000_000;

    private final Driver driver;
    private final Schedule schedule;
    private final PrintStream csv;
    private final Machine machine;
    private final Tally total = new Tally();
    private final long began = System.nanoTime();
    private final Thread thread = new Thread(this::watch, "course");
    private double cpu;
    private double idleLeast = 1;
    private double boxIdle;
    private int seconds;
    private volatile boolean isOver;

    Course(Driver driver, Schedule schedule, PrintStream csv, double processors) {
        this.driver = driver;
        this.schedule = schedule;
        this.csv = csv;
        machine = new Machine(processors);
        csv.println(HEADER);
        thread.setDaemon(true);
        thread.start();
    }

    private void watch() {
        for (var next = began + SECOND_NS; !isOver; next += SECOND_NS) {
            try {
                Thread.sleep(Math.max(0, (next - System.nanoTime()) / 1_000_000));
            } catch (InterruptedException over) {
                return;
            }
            tell();
        }
    }

    private synchronized void tell() {
        var tally = driver.take();
        var use = machine.look();
        var at = (System.nanoTime() - began) / 1e9;
        csv.println(String.format(Locale.ROOT,
                "%.3f,%.2f,%.1f,%d,%d,%d,%d,%d,%d,%s,%s,%s,%s,%s,%d,%.3f,%.3f,%.3f",
                System.currentTimeMillis() / 1e3, at, schedule.at(Math.max(0, at - 0.5)), tally.count(Finding.RIGHT),
                tally.count(Finding.FAILED), tally.count(Finding.ABSENT), tally.count(Finding.WRONG),
                tally.count(Finding.STALE), tally.count(Finding.UNSTARTED), known(tally.latency(50)),
                known(tally.latency(99)), known(tally.served(50)), known(tally.served(99)), known(tally.lag(99)),
                driver.underWay(), use.cpu(), use.idle(), use.boxIdle()));
        csv.flush();
        total.add(tally);
        cpu += use.cpu();
        boxIdle += use.boxIdle();
        // The first second has the warming up of the run's own code.
        idleLeast = seconds == 0 ? 1 : Math.min(idleLeast, use.idle());
        seconds++;
    }

    private static String known(double value) {
        return Double.isNaN(value) ? "" : String.format(Locale.ROOT, "%.3f", value);
    }

    /** Ends the CSV, and sums up the whole run. */
    Map<String, Object> end() throws InterruptedException {
        isOver = true;
        thread.interrupt();
        thread.join();
        tell();
        var summary = new LinkedHashMap<String, Object>();
        var took = (System.nanoTime() - began) / 1e9;
        summary.put("seconds", took);
        summary.put("throughput", total.count(Finding.RIGHT) / took);
        for (var finding : Finding.values()) {
            var name = finding == Finding.RIGHT ? "done" : finding.name().toLowerCase(Locale.ROOT);
            summary.put(name, total.count(finding));
        }
        summary.put("mean_ms", total.mean());
        summary.put("p50_ms", total.latency(50));
        summary.put("p99_ms", total.latency(99));
        summary.put("served_p50_ms", total.served(50));
        summary.put("served_p99_ms", total.served(99));
        summary.put("lag_p99_ms", total.lag(99));
        summary.put("cpu", cpu / Math.max(1, seconds));
        summary.put("idle_least", idleLeast);
        summary.put("box_idle", boxIdle / Math.max(1, seconds));
        summary.put("failures", Failures.counts());
        return summary;
    }
}
