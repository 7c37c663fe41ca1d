"""Members of Cassandra 5.0, one after the other: a ring takes one that joins at a time.

`seeds_itself` starts new members as the paper's released code did: each among its own seeds, so it streams nothing.
"""

import time
from pathlib import Path

from figures import streamed
from load import JavaLoad
from members import Member

CQL = 24042
HEAP = "384m"
EXPORTS = (
    "java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/sun.nio.ch java.base/java.lang.ref "
    "java.base/java.lang.reflect java.rmi/sun.rmi.registry java.rmi/sun.rmi.server java.sql/java.sql "
    "java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.transport.tcp"
)
OPENS = (
    "java.base/java.lang.module java.base/java.lang java.base/java.lang.reflect java.base/java.io java.base/java.net "
    "java.base/java.nio java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic "
    "java.base/jdk.internal.loader java.base/jdk.internal.math java.base/jdk.internal.module "
    "java.base/jdk.internal.ref java.base/jdk.internal.reflect java.base/jdk.internal.util java.base/sun.nio.ch "
    "jdk.management/com.sun.management.internal"
)
SETTINGS = """\
cluster_name: paper
num_tokens: 8
allocate_tokens_for_local_replication_factor: {copies}
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "{seeds}"
listen_address: {address}
rpc_address: {address}
storage_port: 24700
ssl_storage_port: 24701
native_transport_port: {cql}
endpoint_snitch: SimpleSnitch
data_file_directories: ["{folder}/data"]
commitlog_directory: "{folder}/commitlog"
saved_caches_directory: "{folder}/saved_caches"
hints_directory: "{folder}/hints"
cdc_raw_directory: "{folder}/cdc_raw"
commitlog_sync: periodic
commitlog_sync_period: 1000ms
auto_snapshot: false
memtable_heap_space: 64MiB
key_cache_size: 8MiB
file_cache_size: 32MiB
networking_cache_size: 16MiB
commitlog_segment_size: 8MiB
concurrent_reads: 8
concurrent_writes: 8
concurrent_compactors: 1
"""
LOGGING = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{HH:mm:ss.SSS} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


class Cassandra:
    name = "cassandra"
    what = "one bootstrap after the other"

    def __init__(self, arguments, folder, seeds_itself=False):
        self.arguments, self.folder, self.members = arguments, folder, []
        self.seeds_itself = seeds_itself
        self.libraries = Path(arguments.engines).resolve() / "cassandra/lib"
        self.jamm = next(self.libraries.glob("jamm-*.jar"), None)
        if self.jamm is None:
            raise SystemExit(f"{self.libraries} has no Cassandra; run java/elastic/engine cassandra, and give --engines")
        options = ("--copies", arguments.copies)
        self.generator = JavaLoad(arguments, "cassandra", f"{self.address(1)}:{CQL}", folder, options)

    @staticmethod
    def address(number):
        return f"127.0.43.{number}"

    def begin(self, is_own_seed=False):
        number = len(self.members) + 1
        member = Member(f"member {number}", self.folder / f"member{number}", self.arguments.cap)
        self.members.append(member)
        seeds = [self.address(1)] + ([self.address(number)] if is_own_seed else [])
        settings = SETTINGS.format(
            copies=self.arguments.copies, seeds=",".join(f"{one}:24700" for one in seeds),
            address=self.address(number), cql=CQL, folder=member.folder,
        )
        (member.folder / "cassandra.yaml").write_text(settings)
        (member.folder / "logback.xml").write_text(LOGGING)
        command = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-Xss256k", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=128m"]
        command += ["-XX:TieredStopAtLevel=1", f"-javaagent:{self.jamm}", "-Djdk.attach.allowAttachSelf=true"]
        command += ["-Djava.security.manager=allow", "-Dio.netty.tryReflectionSetAccessible=true"]
        command += [word for one in EXPORTS.split() for word in ("--add-exports", f"{one}=ALL-UNNAMED")]
        command += [word for one in OPENS.split() for word in ("--add-opens", f"{one}=ALL-UNNAMED")]
        command += [f"-Dcassandra.config=file://{member.folder}/cassandra.yaml", "-Dcassandra-foreground=yes"]
        command += [f"-Dcassandra.storagedir={member.folder}", f"-Dcassandra.ring_delay_ms={self.arguments.ring_delay_ms}"]
        command += [f"-Dlogback.configurationFile=file://{member.folder}/logback.xml", "-cp", f"{self.libraries}/*"]
        member.start([*command, "org.apache.cassandra.service.CassandraDaemon"])
        member.await_port((self.address(number), CQL), patience=1200)

    def start(self):
        for _ in range(self.arguments.members):
            self.begin()

    def settle(self):
        """Members flush and compact by themselves."""
        time.sleep(5)

    def grow(self, count):
        began, each = time.monotonic(), []
        for _ in range(count):
            at = time.monotonic()
            self.begin(self.seeds_itself)
            each.append(round(time.monotonic() - at, 1))
        new = self.members[-count:]
        moved = sum(streamed(member.log.read_text(errors="replace").splitlines()) for member in new)
        return {"seconds": time.monotonic() - began, "each_s": each, "bytes_moved": moved}

    def stop(self):
        for member in self.members:
            member.stop()
