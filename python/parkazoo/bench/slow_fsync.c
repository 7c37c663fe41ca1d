/* Makes every fsync and fdatasync of a process take a known time.
 *
 * What: loaded before the C library (LD_PRELOAD), it answers both calls itself
 * after sleeping SLOW_FSYNC_US microseconds.
 *
 * Why: a ZooKeeper server writes at most maxBatchSize transactions per fsync, so
 * with both known its ceiling is known: batch / time. Several such servers on two
 * cores are then bound by their (pretended) log devices, as servers with disks of
 * their own are, and not by the cores they share here.
 *
 * Must never be used where data matters: nothing is synced at all. */

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static int pause_as_a_disk_would(void)
{
    const char *text = getenv("SLOW_FSYNC_US");
    long microseconds = text ? atol(text) : 0;
    struct timespec left = {microseconds / 1000000,
                            microseconds % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
    return 0;
}

int fsync(int descriptor)
{
    (void)descriptor;
    return pause_as_a_disk_would();
}

int fdatasync(int descriptor)
{
    (void)descriptor;
    return pause_as_a_disk_would();
}
