"""HBase 2.6 on HDFS: a member is a region server with a DataNode; the masters and ZooKeeper are not capped.

`--rebalance regions` is the paper's column *No*: new region servers get regions, and no block moves.
`--rebalance all` also moves blocks with HDFS's balancer, and is the paper's *Reb*.
"""

import os
import re
import time
from pathlib import Path

from figures import size
from load import JavaLoad
from members import Member, run

HOST = "127.0.0.1"
ZOOKEEPER, NAMES, MASTER = 25181, 25800, 25600
# Of member number n: its region server, and its DataNode's three ports.
SERVERS, DATA = 26100, 26200
REGIONS_EACH = 8
# A member's two processes: heap, class and words.
DATA_NODE = ("192m", "org.apache.hadoop.hdfs.server.datanode.DataNode")
REGION_SERVER = ("320m", "org.apache.hadoop.hbase.regionserver.HRegionServer", "start")
# Bytes that a DataNode has at least.
ROOM_LEAST = 1 << 30
OPENS = (
    "java.base/java.lang java.base/java.nio java.base/sun.nio.ch java.base/java.lang.reflect java.base/java.util "
    "java.base/java.net java.base/java.io java.base/java.util.concurrent java.base/jdk.internal.ref"
)
EXPORTS = "java.base/jdk.internal.misc java.security.jgss/sun.security.krb5"
LOGGING = """\
log4j.rootLogger=WARN,OUT
log4j.appender.OUT=org.apache.log4j.ConsoleAppender
log4j.appender.OUT.layout=org.apache.log4j.PatternLayout
log4j.appender.OUT.layout.ConversionPattern=%d{HH:mm:ss} %p %c{1}: %m%n
"""


def page(settings):
    rows = "".join(f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in settings.items())
    return f"<configuration>\n{rows}</configuration>\n"


class HBase:
    name = "hbase"
    # Where the masters and ZooKeeper are.
    host = HOST

    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.members = arguments, folder, []
        self.what = {"none": "no rebalancing", "regions": "regions", "all": "regions, blocks"}[arguments.rebalance]
        self.libraries = Path(arguments.engines).resolve() / "hbase/lib"
        if not any(self.libraries.glob("hbase-server-*.jar")):
            raise SystemExit(f"{self.libraries} has no HBase; run java/elastic/engine hbase, and give --engines")
        regions = REGIONS_EACH * (arguments.members + arguments.add)
        self.generator = JavaLoad(arguments, "hbase", f"{self.host}:{ZOOKEEPER}", folder, ("--regions", regions))
        self.masters = Member("masters", folder / "masters", 0)
        for name in ("hdfs", "datanode"):
            (folder / "webapps" / name).mkdir(parents=True, exist_ok=True)

    def reserved(self):
        """Bytes of the disk that a DataNode may not use.

        HDFS's balancer goes by percents of what a DataNode may use, and stops within one of them. So that is kept small.
        """
        one, disk = self.arguments, os.statvfs(self.folder)
        room = max(ROOM_LEAST, 6 * one.records * one.value_bytes * one.copies // one.members)
        reachable = (disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize
        if one.rebalance == "all" and disk.f_blocks * disk.f_frsize - reachable > room:
            print(f"the disk of {self.folder} keeps much back, so the balancer may stop early: give --scratch /dev/shm")
        return max(0, reachable - room)

    def configured(self, folder, number=0):
        """A folder with the settings of a process."""
        conf = folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for of, settings in self.settings(folder, number).items():
            (conf / f"{of}-site.xml").write_text(page(settings))
        (conf / "log4j.properties").write_text(LOGGING)
        (conf / "zoo.cfg").write_text(
            f"tickTime=2000\ndataDir={self.folder}/zookeeper\nclientPort={ZOOKEEPER}\nclientPortAddress={self.host}\n"
            "admin.enableServer=false\nmaxClientCnxns=300\n"
        )
        return conf

    def settings(self, folder, number):
        """The settings of a process by their file. Number 0 is that of masters."""
        host, data = self.host, DATA + 3 * number
        hdfs = {
            "dfs.replication": self.arguments.copies, "dfs.permissions.enabled": "false",
            "dfs.namenode.name.dir": f"{self.folder}/names", "dfs.namenode.http-address": f"{host}:{NAMES + 70}",
            "dfs.namenode.rpc-bind-host": host, "dfs.heartbeat.interval": 1,
            "dfs.namenode.redundancy.interval.seconds": 1,
            "dfs.blocksize": 4 << 20, "dfs.namenode.fs-limits.min-block-size": 1 << 20,
            "dfs.balancer.block-move.timeout": 60000, "dfs.balancer.getBlocks.min-block-size": 1,
            "dfs.datanode.du.reserved": self.reserved(),
            "dfs.datanode.data.dir": f"{folder}/blocks", "dfs.datanode.hostname": host,
            "dfs.datanode.address": f"{host}:{data}", "dfs.datanode.ipc.address": f"{host}:{data + 1}",
            "dfs.datanode.http.address": f"{host}:{data + 2}",
        }
        hbase = {
            "hbase.rootdir": f"hdfs://{host}:{NAMES}/hbase", "hbase.cluster.distributed": "true",
            "hbase.zookeeper.quorum": host, "hbase.zookeeper.property.clientPort": ZOOKEEPER,
            "hbase.master.ipc.address": host, "hbase.master.hostname": host, "hbase.master.port": MASTER,
            "hbase.regionserver.ipc.address": host, "hbase.regionserver.hostname": host,
            "hbase.regionserver.port": SERVERS + number,
            "hbase.master.info.port": -1, "hbase.regionserver.info.port": -1, "hbase.regionserver.handler.count": 10,
            "hbase.tmp.dir": f"{folder}/tmp", "hbase.wal.provider": "filesystem",
            "hbase.unsafe.stream.capability.enforce": "false", "zookeeper.session.timeout": 30000,
            # Regions move when this program says so.
            "hbase.balancer.period": 86_400_000, "hbase.master.balancer.stochastic.minCostNeedBalance": "0.01",
        }
        return {"core": {"fs.defaultFS": f"hdfs://{host}:{NAMES}"}, "hdfs": hdfs, "hbase": hbase}

    def java(self, conf, heap, *words):
        command = ["java", f"-Xmx{heap}", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Djava.net.preferIPv4Stack=true"]
        command += [word for one in OPENS.split() for word in ("--add-opens", f"{one}=ALL-UNNAMED")]
        command += [word for one in EXPORTS.split() for word in ("--add-exports", f"{one}=ALL-UNNAMED")]
        return [*command, "-cp", self.classes(conf), *words]

    def classes(self, conf):
        return f"{conf}:{self.folder}:{self.libraries}/*"

    def begin(self):
        number = len(self.members) + 1
        member = Member(f"member {number}", self.folder / f"member{number}", self.arguments.cap)
        self.members.append(member)
        conf = self.configured(member.folder, number)
        for process in (DATA_NODE, REGION_SERVER):
            member.start(self.java(conf, *process))

    def listens(self, number):
        """Where a member's DataNode listens, and where its region server does."""
        return (self.host, DATA + 3 * number), (self.host, SERVERS + number)

    def await_members(self):
        for number, member in enumerate(self.members, 1):
            for address in self.listens(number):
                member.await_port(address)

    def start(self):
        conf, names = self.configured(self.masters.folder), "org.apache.hadoop.hdfs.server.namenode.NameNode"
        self.masters.start(self.java(conf, "128m", "org.apache.zookeeper.server.quorum.QuorumPeerMain", conf / "zoo.cfg"))
        self.masters.await_port((self.host, ZOOKEEPER))
        run(self.java(conf, "256m", names, "-format", "-nonInteractive"))
        self.masters.start(self.java(conf, "256m", names))
        self.masters.await_port((self.host, NAMES))
        for _ in range(self.arguments.members):
            self.begin()
        for number, member in enumerate(self.members, 1):
            member.await_port(self.listens(number)[0])
        self.masters.start(self.java(conf, "384m", "org.apache.hadoop.hbase.master.HMaster", "start"))
        self.masters.await_port((self.host, MASTER))
        self.await_members()

    def settle(self):
        """What was loaded goes to HDFS, so that there are blocks that can move."""
        self.generator.ask("flush")

    def grow(self, count):
        began = time.monotonic()
        for _ in range(count):
            self.begin()
        self.await_members()
        members = time.monotonic() - began
        regions, moved = None, 0
        if self.arguments.rebalance != "none":
            regions = self.generator.ask("balance")
        if self.arguments.rebalance == "all":
            moved = self.move_blocks()
        return {
            "seconds": time.monotonic() - began, "members_after_s": members, "bytes_moved": moved, "regions": regions,
        }

    def move_blocks(self):
        """Runs HDFS's balancer to its end, and returns the bytes that it says it moved."""
        words = ["org.apache.hadoop.hdfs.server.balancer.Balancer", "-threshold", 1]
        told = run(self.java(self.masters.folder / "conf", "256m", *words), patience=7200, check=False)
        rows = re.findall(r"^\w{3} \d+, .*?\s\d+\s+(\d[\d.]* \w?B)\s", told, re.MULTILINE)
        (self.folder / "balancer.log").write_text(told)
        if "balanced" not in told.lower() and not rows:
            raise SystemExit(f"HDFS's balancer did not say what it moved:\n{told[-1500:]}")
        return size(rows[-1]) if rows else 0

    def stop(self):
        for member in [*self.members, self.masters]:
            member.stop()
