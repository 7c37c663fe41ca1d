"""The vocabulary of multi-step operations: what a step machine yields and gets.

What: an operation is a generator. It yields one `Call` (or a list of calls that
may be sent together) and is resumed with the reply, or with the error raised at
the `yield`. It never waits, retries a connection or looks at a clock.

Why: the same generators are driven by the client over real connections, by the
model checker over every interleaving, and by fault tests that kill the process
between any two steps.

Must never: name an ensemble or a fence. A call names a shard; whoever drives it
adds the fence check to every write, and sends the call again when the shard turns
out to have moved. To the machine that is a delay, and it is correct for any delay.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Union


class Call(NamedTuple):
    """Send `request` to the ensemble that holds `shard`.

    `label` numbers the step within its operation, for instance "create.2.link".
    It is the name of the failpoint there; reads have none.
    """

    shard: int
    request: Any
    label: str = ""

    @property
    def shards(self) -> tuple[int, ...]:
        """Its shard, and all others that it writes to."""
        request = self.request
        also = request.also if type(request) is Multi else ()
        return (self.shard, *also)


class Multi(NamedTuple):
    """Writes that happen together or not at all, on one shard.

    `also` are further shards written to, which must be on the same ensemble. The
    reply is the list of the results. The error is `MultiFailed`, or `ShardsApart`.
    """

    operations: tuple[Any, ...]
    also: tuple[int, ...] = ()


class MultiFailed(Exception):
    """Operation number `index` was refused with `error`; none had an effect."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class ShardsApart(Exception):
    """The shards of one call are not on one ensemble any more. It was not sent."""


# What a list of calls is answered with: results, with errors in place.
Replies = list[Any]
Machine = Generator[Union[Call, "list[Call]"], Any, Any]

EPHEMERAL, SEQUENCE = 1, 2
