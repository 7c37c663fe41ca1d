# Stands behind the classes of the program in docs/guides/http.md: writes or reads one share of the package index.
#
#   write SHARE STOP NODE...    writes the share, and again under other keys until the file STOP is there
#   read SHARE WRITTEN NODE...  reads back what it has written so, and compares
#
# It prints how many records are acknowledged while it goes on, and at the end a line of JSON.
import json
import pickle

KEY = "debian-package/{turn}/{name}"
# After so many records it makes new connections, and begins at the next node. A client that keeps its connections would
# meet neither the certificates that are new nor the node that is down.
NEW_EACH = 20


class Counted(requests.Session):
    """Counts what the program does not show: attempts after which it tried another node."""

    def __init__(self):
        super().__init__()
        self.statuses = {}
        self.failures = {}

    def request(self, method, url, **more):
        try:
            answer = super().request(method, url, **more)
        except requests.RequestException as error:
            node = url.split("/")[2]
            kind = "refused" if never_sent(error) else "broken"
            self.failures.setdefault(node, {}).setdefault(kind, []).append(str(error)[:300])
            raise
        self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
        return answer


def anew(turn):
    tontine.session.close()
    tontine.first = turn % len(nodes)


what, share, other, *nodes = sys.argv[1:]
tontine = Tontine(nodes, os.environ["TONTINE_TLS_AUTHORITY"], os.environ["TONTINE_SECRET_FILE"])
tontine.session = Counted()
with open(share, "rb") as file:
    records = pickle.load(file)
done = 0
if what == "write":
    turn = 0
    while turn == 0 or not os.path.exists(other):
        for name, stanza in records:
            if turn > 0 and os.path.exists(other):
                break
            if done % NEW_EACH == 0:
                anew(done // NEW_EACH)
            tontine.put("default", KEY.format(turn=turn, name=name), stanza)
            done += 1
            if done % 50 == 0:
                print(done, flush=True)
        turn += 1
else:
    for at in range(int(other)):
        name, stanza = records[at % len(records)]
        if at % NEW_EACH == 0:
            anew(at // NEW_EACH)
        key = KEY.format(turn=at // len(records), name=name)
        _, values = tontine.get("default", key)
        assert values == [stanza], f"{key}: {values} instead of {stanza}"
        done += 1
counts = {"done": done, "statuses": tontine.session.statuses, "failures": tontine.session.failures}
print(json.dumps(counts), flush=True)
