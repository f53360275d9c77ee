"""How long the gateway lets messages gather before it looks for them.

Clients that send one message after the other have few of them waiting at any time. Each look at
these, each frame to the writer and each batch of answers wakes threads here, in the writer and in
the client, which costs more than the messages themselves. So at thousands of messages a second the
gateway sleeps for a moment before it looks.

A client that waits for answers sends less during a pause. So spans with a pause and without one
alternate for a while; if about as many messages come with it, the pause is kept until the next
comparison. Spans are short because on a busy machine ten times as many messages may come in one
tenth of a second as in the next. If threads wait for each answer, a pause lets so few come that a
few spans show it. This file knows how much comes, not what. If a look leaves something to be read,
no pause makes sense: the caller sees to that.
"""

from __future__ import annotations

from typing import NamedTuple

# Requests that a pause is to gather. In fuller frames a message costs hardly less.
GATHERED = 16
MOST_MS = 2.0
# At fewer requests per ms no pause that is short enough gathers anything. For batches the limit is
# lower, as the few that are gathered have hundreds of messages; single messages at that rate often
# come from one thread that waits for each answer, and the comparisons would delay it, too.
FEWEST_PER_MS, FEWEST_BATCHES_PER_MS = 3.0, 1.0
# Requests with this many messages each, on average, count as batches.
BATCH = 8
# The share of what comes without a pause that has to come with it.
KEPT = 0.8
# What is compared: spans of each kind, and how long one lasts.
SPANS, SPAN_MS = 10, 10
# After this many spans of each kind a comparison ends if less than this share comes with the pause.
FEW_SPANS, HOPELESS = 2, 0.25
# Between two comparisons; and between two looks meanwhile whether there is anything to gather.
AGAIN_MS, COUNT_MS = 2000, 50


class _Counted(NamedTuple):
    """Requests that came within `ms`, the messages in them, and the looks that found any."""

    ms: int = 0
    came: int = 0
    messages: int = 0
    looks: int = 0

    def and_also(self, other: _Counted) -> _Counted:
        return _Counted(*(own + more for own, more in zip(self, other, strict=True)))

    @property
    def per_ms(self) -> float:
        return self.came / max(1, self.ms)

    @property
    def fewest_per_ms(self) -> float:
        is_batches = self.messages >= BATCH * self.came
        return FEWEST_BATCHES_PER_MS if is_batches else FEWEST_PER_MS

    @property
    def is_worth_a_pause(self) -> bool:
        return self.per_ms >= self.fewest_per_ms and self.came < GATHERED * self.looks


class Pace:
    """`pause_ms` is how long to sleep before the next look; 0 where that is of no use."""

    def __init__(self) -> None:
        self.pause_ms = 0.0
        self._since_ms = self._until_ms = self._again_ms = 0
        self._came = self._messages = self._looks = 0
        # of a comparison: the spans that are left, the pause, what came with it and without
        self._left, self._tried_ms = 0, 0.0
        self._paused = self._alone = _Counted()

    def note(self, now_ms: int, came: int, messages: int) -> None:
        """Take note of how many requests have come since the last call, and how many messages in
        them."""
        if came:
            self._came += came
            self._messages += messages
            self._looks += 1
        if now_ms < self._until_ms:
            return
        counted = _Counted(now_ms - self._since_ms, self._came, self._messages, self._looks)
        self._since_ms, self._came, self._messages, self._looks = now_ms, 0, 0, 0
        if self._left:
            self._compare(counted, now_ms)
        else:
            self._go_on(counted, now_ms)
        self._until_ms = now_ms + (SPAN_MS if self._left else COUNT_MS)

    def _go_on(self, counted: _Counted, now_ms: int) -> None:
        if counted.per_ms < counted.fewest_per_ms / 3:
            self.pause_ms = 0.0
        elif now_ms >= self._again_ms and (self.pause_ms or counted.is_worth_a_pause):
            self._left, self._paused, self._alone = 2 * SPANS, _Counted(), _Counted()
            self._tried_ms = self.pause_ms or _pause_ms(counted.per_ms)
            self.pause_ms = 0.0

    def _compare(self, counted: _Counted, now_ms: int) -> None:
        """A span is over."""
        if self.pause_ms:
            self._paused = self._paused.and_also(counted)
        else:
            self._alone = self._alone.and_also(counted)
        self._left -= 1
        self.pause_ms = 0.0 if self.pause_ms else self._tried_ms
        of_each, is_odd = divmod(2 * SPANS - self._left, 2)
        if of_each >= FEW_SPANS and not is_odd:
            is_hopeless = self._paused.per_ms < HOPELESS * self._alone.per_ms
            self._left = 0 if is_hopeless else self._left
        if not self._left:
            alone = self._alone
            harms = self._paused.per_ms < KEPT * alone.per_ms
            is_kept = alone.is_worth_a_pause and not harms
            self.pause_ms = _pause_ms(alone.per_ms) if is_kept else 0.0
            self._again_ms = now_ms + AGAIN_MS


def _pause_ms(per_ms: float) -> float:
    return min(MOST_MS, GATHERED / per_ms)
