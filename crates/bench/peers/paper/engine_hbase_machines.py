"""HBase whose members each have an address of their own, as machines of a fleet have: a controller adds and ends them.

Members that are there before, and machines, run with the same settings, which name their address and their folder by
environment. On the loopback interface everybody calls from 127.0.0.1, and the NameNode knows a DataNode by where it called
from. So members call from their own address, by a class of the tests of `java/elastic`.
"""

import math

from engine_hbase import DATA_NODE, REGION_SERVER, HBase
from load import ROOT
from members import Member

ADAPTER = ROOT / "java/elastic/target/elastic.jar"
TESTS = ROOT / "java/elastic/target/test-classes"
OWN_ADDRESS = "tontine.elastic.hbase.OwnAddress"
ADDRESS, DATA = "${env.MACHINE_ADDRESS}", "${env.MACHINE_DATA}"
# Ports of each member: DataNode, region server, and the page on which that tells its processor time.
BLOCKS, REGIONS, PAGE = 9866, 16020, 16030


class HBaseMachines(HBase):
    host = "127.0.44.100"

    def __init__(self, arguments, folder):
        super().__init__(arguments, folder)
        for needed in (ADAPTER, TESTS / (OWN_ADDRESS.replace(".", "/") + ".class")):
            if not needed.exists():
                raise SystemExit(f"{needed} is missing; build it with java/elastic/check")
        self.coordination = f"dir:{folder}/coordination"
        self.exclude = folder / "exclude"
        self.exclude.touch()
        # Java counts whole processors, and the adapter tells percents of them.
        self.processors = max(1, math.ceil(arguments.cap))
        self.processor_full = 100 * arguments.cap / self.processors

    def reserved(self):
        # Each log asks for 256 MiB at once, and nothing here goes by percents of the disk.
        return 0

    @staticmethod
    def address(number):
        return f"127.0.44.{number}"

    def settings(self, folder, number):
        all_of = super().settings(folder, number)
        all_of["hdfs"] |= {
            "dfs.hosts.exclude": self.exclude, "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.decommission.interval": 2,
        }
        # A removal waits until the master has begun a new log.
        all_of["hbase"]["hbase.master.store.region.walroll.period.ms"] = 20_000
        if number:
            all_of["core"]["hadoop.rpc.socket.factory.class.default"] = OWN_ADDRESS
            all_of["hdfs"] |= {
                "dfs.datanode.data.dir": f"{DATA}/blocks", "dfs.datanode.hostname": ADDRESS,
                "dfs.datanode.address": f"{ADDRESS}:{BLOCKS}", "dfs.datanode.ipc.address": f"{ADDRESS}:{BLOCKS + 1}",
                "dfs.datanode.http.address": f"{ADDRESS}:{BLOCKS + 2}",
            }
            all_of["hbase"] |= {
                "hbase.regionserver.ipc.address": ADDRESS, "hbase.regionserver.hostname": ADDRESS,
                "hbase.regionserver.port": REGIONS, "hbase.regionserver.info.port": PAGE,
                "hbase.regionserver.info.bindAddress": ADDRESS, "hbase.tmp.dir": f"{DATA}/tmp",
            }
        return all_of

    def classes(self, conf):
        return f"{super().classes(conf)}:{TESTS}"

    def process(self, conf, data, process):
        """The command line of a member's process. Its pages unpack into its own folder, and not into everybody's."""
        java, *words = self.java(conf, *process)
        return [java, f"-Djava.io.tmpdir={data}", f"-XX:ActiveProcessorCount={self.processors}", *words]

    def begin(self):
        number = len(self.members) + 1
        member = Member(f"member {number}", self.folder / f"member{number}", self.arguments.cap)
        self.members.append(member)
        conf = self.configured(member.folder, number)
        environment = {"MACHINE_ADDRESS": self.address(number), "MACHINE_DATA": str(member.folder)}
        for process in (DATA_NODE, REGION_SERVER):
            member.start(self.process(conf, member.folder, process), environment)

    def listens(self, number):
        return (self.address(number), BLOCKS), (self.address(number), REGIONS)

    def leave_to_controller(self):
        """Nothing to do: HBase's own balancer rests for a day."""

    def settle(self):
        super().settle()
        # A member that registered late got no regions, and would not serve.
        self.generator.ask("balance")

    def adapter(self):
        """The command line of its adapter."""
        words = ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", ADAPTER, "hbase"]
        words += ["--config", self.masters.folder / "conf", "--member-config", self.configured(self.folder / "machine", 1)]
        words += ["--exclude-file", self.exclude]
        return [*words, "--data-node", self.script(DATA_NODE), "--region-server", self.script(REGION_SERVER)]

    def script(self, process):
        """A process for the shell of a machine, which knows where its settings and its data are."""
        words = self.process("$HADOOP_CONF_DIR", "$MACHINE_DATA", process)
        return "exec " + " ".join(f'"{word}"' for word in words)
