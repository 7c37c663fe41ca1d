package tontine.elastic.hbase;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Get;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.util.Bytes;

/** Rows whose values follow from their numbers, written and read back all the time. */
final class Rows implements AutoCloseable {
    private final TableName table;
    private final short copies;
    private static final byte[] FAMILY = Bytes.toBytes("f");
    private static final byte[] COLUMN = Bytes.toBytes("v");
    private static final int VALUE_BYTES = 1_000;
    private static final int REGIONS = 12;
    private static final int BATCH = 500;

    private final Connection connection;
    private final AtomicInteger written = new AtomicInteger();
    final AtomicInteger reads = new AtomicInteger();
    final AtomicInteger wrong = new AtomicInteger();
    final AtomicInteger failed = new AtomicInteger();
    private volatile boolean ends;
    private Thread thread;

    /** Rows of a table whose files have so many copies: with one, nothing hides what is lost. */
    Rows(Configuration settings, String name, int copies) throws IOException {
        this.table = TableName.valueOf(name);
        this.copies = (short) copies;
        connection = ConnectionFactory.createConnection(settings);
    }

    void create(int rows) throws IOException {
        byte[][] splits = new byte[REGIONS - 1][];
        for (int at = 0; at < splits.length; at++) {
            splits[at] = new byte[] {(byte) ((at + 1) * 256 / REGIONS)};
        }
        try (Admin admin = connection.getAdmin()) {
            admin.createTable(TableDescriptorBuilder.newBuilder(table)
                    .setColumnFamily(ColumnFamilyDescriptorBuilder.newBuilder(FAMILY).setDFSReplication(copies).build())
                    .build(), splits);
            while (written.get() < rows) {
                write(BATCH);
            }
            admin.flush(table);
        }
    }

    /** Spread over all regions. */
    private static byte[] key(int number) {
        byte[] key = new byte[8];
        new Random(number * 7_919L).nextBytes(key);
        return key;
    }

    private static byte[] value(int number) {
        byte[] value = new byte[VALUE_BYTES];
        new Random(number).nextBytes(value);
        return value;
    }

    private void write(int rows) throws IOException {
        List<Put> puts = new ArrayList<>();
        int from = written.get();
        for (int number = from; number < from + rows; number++) {
            puts.add(new Put(key(number)).addColumn(FAMILY, COLUMN, value(number)));
        }
        try (Table open = connection.getTable(table)) {
            open.put(puts);
        }
        written.addAndGet(rows);
    }

    private void read(Table open, int number) throws IOException {
        Result found = open.get(new Get(key(number)));
        reads.incrementAndGet();
        if (!Arrays.equals(found.getValue(FAMILY, COLUMN), value(number))) {
            wrong.incrementAndGet();
        }
    }

    /** Reads every row that was written; how many are not as they were written. */
    int missing() throws IOException {
        int before = wrong.get();
        try (Table open = connection.getTable(table)) {
            for (int number = 0; number < written.get(); number++) {
                read(open, number);
            }
        }
        return wrong.get() - before;
    }

    void drop() throws IOException {
        try (Admin admin = connection.getAdmin()) {
            admin.disableTable(table);
            admin.deleteTable(table);
        }
    }

    int written() {
        return written.get();
    }

    /** Writes and reads in the background until `rest`. */
    void work() {
        ends = false;
        thread = new Thread(() -> {
            Random dice = new Random(1);
            while (!ends) {
                try (Table open = connection.getTable(table)) {
                    write(10);
                    for (int at = 0; at < 20; at++) {
                        read(open, dice.nextInt(written.get()));
                    }
                    Thread.sleep(50);
                } catch (IOException failure) {
                    failed.incrementAndGet();
                } catch (InterruptedException over) {
                    return;
                }
            }
        }, "rows");
        thread.start();
    }

    void rest() throws InterruptedException {
        ends = true;
        thread.join();
    }

    @Override
    public void close() throws IOException {
        connection.close();
    }
}
