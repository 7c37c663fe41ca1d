"""Until when a session is known to be there, whatever happened to this process.

What: the time at which the newest request was sent that has its answer. The server
counts a session's time anew when a request arrives, so the session lives for all of it
after that moment.

Why not the time at which an answer was read: it may have waited in the socket while
this process was stopped (SIGSTOP, a suspended machine, a long garbage collection), and
the session may have expired meanwhile.

Must never: take for proof what was sent later than it is said to be, or be held up by
a clock that stands still while the process or the machine does.
"""

from __future__ import annotations

import time

# Goes on while the machine is suspended, as the servers' clocks do.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds of a clock that neither SIGSTOP nor a suspended machine holds up."""
    return time.clock_gettime(_CLOCK)


class Proof:
    """Kept by the connection's thread; anybody may read `until`.

    `at`: the session was there then. `seconds`: how long that is trusted: two thirds
    of the session's time, after which a silent server is given up, too.
    `probe`: the number of one request that is under way, 0 if there is none;
    `probed_at`: when it was sent, or before. `pinged_at`: the same of a heartbeat.
    """

    __slots__ = ("at", "began_at", "pinged_at", "probe", "probed_at", "seconds")

    def __init__(self) -> None:
        self.at = self.began_at = self.pinged_at = self.probed_at = self.seconds = 0.0
        self.probe = 0

    @property
    def until(self) -> float:
        """The session lives half as long again after the last proof as this says."""
        return self.at + self.seconds

    def connecting(self) -> None:
        self.probe, self.began_at = 0, now()

    def connected(self, seconds: float) -> None:
        self.at, self.seconds = self.began_at, seconds

    def sending(self, number: int, since: float) -> None:
        """This request is about to be sent, the last of those serialized `since`."""
        if not self.probe:
            self.probe, self.probed_at = number, since

    def answered(self) -> None:
        """The probe was."""
        self.probe = 0
        self.at = max(self.at, self.probed_at)

    def pinging(self) -> None:
        self.pinged_at = now()

    def pinged(self) -> None:
        self.at = max(self.at, self.pinged_at)
