"""Selectors, by which a caller chooses the queue of a message: `send(..., selector=...)`.

A selector is any callable that is given the numbers of the topic's queues and returns one of them.
It is called when the message is sent. If the topic's queues are not known then, the producer's
thread calls it as soon as they are. Pure except for chance.

RocketMQ's third selector, by machine room, is missing here: a broker's queues are all in one place,
and RocketMQ's class chooses nothing either (it returns null, and the send fails).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.client.core.arguments import shown, wrong_type
from penstock.client.core.sending.round_robin import any_queue
from penstock.shared.errors import InvalidArgument, InvalidMessage
from penstock.shared.formats.java_hash import string_hash

Selector = Callable[[Sequence[int]], int]

_INT, _LONG = range(-(2**31), 2**31), range(-(2**63), 2**63)


def by_hash(argument: str | int) -> Selector:
    """Always the same queue for one argument, as RocketMQ's SelectMessageQueueByHash chooses it.

    A str goes to the same queue as with `shard=`, but without the property that `shard=` sets. A
    number is hashed as a Java Integer if it fits into 32 bits, else a Long. Raises InvalidArgument.
    """
    if isinstance(argument, str):
        code = string_hash(argument)
    elif isinstance(argument, int) and not isinstance(argument, bool) and argument in _LONG:
        code = argument if argument in _INT else _signed(argument ^ argument % 2**64 >> 32)
    else:
        raise wrong_type(InvalidArgument, "argument", argument, "a str, or an int of 64 bits")
    # Java takes abs() of the remainder, which has the sign of the hash: the result is the same
    return lambda queues: queues[abs(code) % len(queues)]


def at_random(queues: Sequence[int]) -> int:
    """Any queue, as RocketMQ's SelectMessageQueueByRandom chooses."""
    return queues[any_queue(len(queues))]


def _signed(number: int) -> int:
    """The lower 32 bits, as Java has them in an int."""
    return (number + 2**31) % 2**32 - 2**31


class SelectedBy(NamedTuple):
    """A selector on its way to the topic's queues."""

    selector: Selector

    def queue(self, topic: str, queues: int) -> int:
        """The queue. Raises InvalidArgument if the selector raises, or returns anything else.

        Its exceptions are converted because it may run in the producer's thread, which they must
        not end.
        """
        try:
            chosen: Any = self.selector(range(queues))
        except Exception as error:
            hint = "the error's __cause__ has where"
            what = f"the selector has failed on the queues of topic {topic}"
            raise InvalidArgument(what, repr(error), hint) from error
        if type(chosen) is int and 0 <= chosen < queues:
            return chosen
        raise InvalidArgument(
            f"the selector has chosen no queue of topic {topic}",
            shown(chosen),
            f"it is given the queues' numbers, 0 to {queues - 1} by now, and returns one of them",
        )


def queue_choice(
    selector: Selector | None, shard: str | None, queue: int | None
) -> int | SelectedBy | None:
    """What chooses the message's queue, if `shard` does not. Raises InvalidMessage."""
    named = {"queue": queue, "shard": shard, "selector": selector}
    given = [f"{name}={shown(value)}" for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InvalidMessage(
            "more than one argument chooses the message's queue",
            ", ".join(given),
            "leave all but one out",
        )
    if selector is None:
        return queue
    if not callable(selector):
        raise wrong_type(InvalidMessage, "selector", selector, "a callable")
    return SelectedBy(selector)
