"""The scheduler: delivers messages that wait, by level or for any time, when their time has come.

Owns:     `pending_delayed`, `delivered`, `undelivered`, `delay_floor`, `delay_sent`, `delay_over`;
          config/delayOffset.json; config/timercheck; penstock/scheduler; penstock/timers/.
Reads:    `queued`, `wrote`, `wrote_timestamp`, `recalled`, `dispatched`, `log_start`, `run_began`,
          `flushed`; the queues of SCHEDULE_TOPIC_XXXX and rmq_sys_wheel_timer, the log;
          config/topics.json.
Hears:    answers of the writer, whose client it is; the reput's doorbell.
Notifies: nobody.
On crash: the next one goes on at what was saved last, and sends again, as retries, everything that
          its predecessor may have sent since. A copy depends on nothing but the waiting record,
          so the writer finds the copies that are stored, and stores the others. Retries are slow,
          so two positions say what of this run need not be sent again.

Nothing comes early: the clock that counts is the one that stamps messages. Waiting messages stay in
the log: `delay_floor` holds the cleaner back. Those that would wait longer than segments are kept
are stored once more, at the log's end.
"""

from __future__ import annotations

import zmq

from penstock.actors.scheduler.copies import Batch, Targets, put_frames
from penstock.actors.scheduler.file_sums import load_sums
from penstock.actors.scheduler.keeping import SAVE_MS, Keeping
from penstock.actors.scheduler.levels import Level
from penstock.actors.scheduler.progress import Progress, ProgressFile
from penstock.actors.scheduler.rolling import Rolling
from penstock.actors.scheduler.surroundings import NO_DOUBT, Doubt, Surroundings
from penstock.actors.scheduler.taken_over import Deliveries
from penstock.actors.scheduler.timer_files import MINUTE_MS, TimerFiles
from penstock.actors.scheduler.timers import RECALL_MS, Timers
from penstock.client.core.sending.record_sender import Outcome, RecordSender
from penstock.client.core.topic_requests import WantedTopics
from penstock.shared.errors import (
    OffsetOutOfRange,
    PenstockError,
    QueueNotFound,
    StoreDamaged,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.faults import crash_point
from penstock.shared.formats.delay_levels import parse_delay_levels
from penstock.shared.formats.record import pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.delivered import Copy
from penstock.shared.messaging.system_topics import TIMER_TOPIC
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import QUIET_TICK_MS
from penstock.shared.queue.reader import QueueReader
from penstock.shared.wire.messages import Appended
from penstock.shared.wire.sockets import dial

# Messages that come due within this time leave together: frames cost more than messages.
PACE_MS = 5
# The same trouble is reported again after this time.
SAY_MS = 60_000


class Scheduler(Actor):
    """Delivers what waits."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._config = stage.config
        self._clock = stage.clock
        self._positions = stage.positions
        self._paths = StorePaths(stage.config.store)

    def start(self) -> None:
        config, run, positions = self._config, self._stage.run, self._positions
        with self._stage.disk:
            self._file = ProgressFile(self._paths.scheduler, self._paths.delay_offsets)
            self._files = TimerFiles(self._paths.timers)
            self._progress, foreign = self._file.load()
            progress = self._progress
            is_whole = self._has_all_timers(progress)
            if not is_whole and not progress.synced:
                self._files.clear()  # nothing vouches for any of them
        if progress.run == run.run_id:
            progress.delivered_ms = max(progress.delivered_ms, positions["delay_over"])
        doubt = self._doubt(progress)
        positions.publish("delay_sent", max(positions["delay_sent"], doubt.due_ms))
        self._sender = RecordSender(
            run.run_id, "scheduler", self._stage.generation, "durable", progress.floor
        )
        self._queues = QueueReader(config, run, positions)
        self._deliveries = Deliveries(
            config, positions, self._queues.log, positions["wrote_timestamp"] if foreign else -1
        )
        self._targets = Targets(self._paths, self._queues, config.default_topic_queue_nums)
        self._wanted = WantedTopics(run.run_id)
        around = Surroundings(
            self._queues,
            self._sender,
            self._targets,
            Shape(len(pack_host(config.broker_ip, 1)), config.enabled_append_prop_crc),
            doubt,
            self._deliveries,
        )
        delays = parse_delay_levels(config.message_delay_level)
        self._levels = [
            Level(number, delay_ms, progress.levels.get(number, 0), around)
            for number, delay_ms in enumerate(delays, 1)
        ]
        self._timers = Timers(around, self._files)
        self._timers.start(progress, is_whole, positions["wrote"])
        self._rolling = Rolling(self._timers, around)
        self._rolling.start(progress)
        progress.run, progress.clean = run.run_id, False
        now_ms = self._clock.monotonic_ms()
        floor = -1 if doubt is NO_DOUBT else progress.floor
        self._keeping = Keeping(self._stage, self._file, self._files, progress, floor, now_ms)
        self._keep(self._now_ms())
        self._timers_first = False
        self._put_ms = 0
        self._said: dict[str, int] = {}
        self._socket = dial(self._stage.context, run.endpoints.produce_ipc)
        self._stage.listen(self._socket)

    def _has_all_timers(self, progress: Progress) -> bool:
        """Whether the files have all that the last life had put there; if not, `synced` says up to
        where that is so. Within a run nobody looks: the kernel has what was written."""
        is_same_boot = progress.boot == self._stage.run.boot_id
        if is_same_boot and progress.run == self._stage.run.run_id:
            return True
        noted = load_sums(self._paths.timer_sums)
        over_ms = progress.delivered_ms - RECALL_MS + MINUTE_MS
        is_there = self._files.begin_with(noted.files, over_ms)
        progress.synced = min(progress.synced, noted.indexed) if is_there else 0
        is_last = noted.indexed == progress.indexed
        return is_there and is_same_boot and is_last and self._files.end_with(noted.files)

    def _doubt(self, progress: Progress) -> Doubt:
        """What the last life may have put without having recorded it."""
        if progress.clean:
            return NO_DOUBT
        of_this_run = progress.run == self._stage.run.run_id
        # nothing of another run is on its way any more, and what it stored was due by then
        due_ms = self._positions["delay_sent" if of_this_run else "wrote_timestamp"]
        return Doubt(due_ms, self._positions["wrote"])

    # --- work ---

    def work(self) -> int:
        monotonic_ms = self._clock.monotonic_ms()
        now_ms = self._now_ms()
        self._targets.look(monotonic_ms)
        if self._targets.trouble is not None:
            self._tell("topics stay as they were", self._targets.trouble)
        done = self._hear(monotonic_ms)
        if self._may_put() and self._begin_run() and not self._stage.stopping:
            done += self._read_ahead(now_ms)
            done += self._put_due(now_ms, monotonic_ms)
        self._send(monotonic_ms)
        self._keep(now_ms)
        if not done:
            self._queues.rest(monotonic_ms)
        return done

    def _may_put(self) -> bool:
        """Whether the disk has a note of this life, and the topics are known."""
        return self._keeping.has_begun and self._targets.is_known

    def _begin_run(self) -> bool:
        """Compare the saved offsets with the queues, once a run; whether that is done.

        A power failure takes messages that were not flushed, and some of them were delivered
        already. Messages of this run get their offsets, and must not be skipped.
        """
        progress, run_id = self._progress, self._stage.run.run_id
        if progress.begun == run_id:
            return True
        log_end = self._positions["run_began"]
        if self._queues.queued < log_end:
            return False
        for level in self._levels:
            level.begin(log_end)
        self._timers.begin(log_end)
        progress.begun = run_id
        return True

    def _now_ms(self) -> int:
        """Never before the last store time: store times never go back."""
        return max(self._clock.now_ms(), self._positions["wrote_timestamp"])

    def _keep(self, now_ms: int) -> None:
        self._keeping.turn(self._levels, self._timers, self._rolling, self._sender, now_ms)

    def _read_ahead(self, now_ms: int) -> int:
        with self._stage.disk:
            try:
                return self._timers.read_ahead(now_ms)
            except OSError as error:
                self._tell("timers cannot be kept, trying again", error)
                return 0

    def _put_due(self, now_ms: int, monotonic_ms: int) -> int:
        done = 0
        if monotonic_ms - self._put_ms < PACE_MS:
            return done
        self._put_ms = monotonic_ms
        positions = self._positions
        positions.publish("delay_over", max(positions["delay_over"], self._timers.delivered_ms()))
        # before anything is sent: if this process dies now, its successor must know
        positions.publish_before_loads("delay_sent", max(positions["delay_sent"], now_ms))
        if self._timers_first and self._sender.has_room:
            done += self._timers.turn(now_ms, positions["recalled"])
        self._timers_first = not self._timers_first
        for number, level in enumerate(self._levels):
            if not self._sender.has_room:
                # those that had no turn come first in the next one: none starves
                self._levels = self._levels[number:] + self._levels[:number]
                return done
            done += level.turn(now_ms, monotonic_ms)
        if self._sender.has_room:
            done += self._timers.turn(now_ms, positions["recalled"])
        return done + self._rolling.turn()

    def _send(self, now_ms: int) -> None:
        self._make_topics(now_ms)
        for parts in self._sender.outgoing(now_ms):
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.Again:
                self._sender.not_connected(now_ms)
                return
            if len(parts) > 1:
                crash_point("schedule.put")

    def _make_topics(self, now_ms: int) -> None:
        """Have missing topics made, such as a group's topic of retries. Report those that cannot be
        made: messages for them are not delivered."""
        for topic, queues in self._targets.missing.items():
            self._wanted.want(topic, queues)
        for request in self._wanted.outgoing(now_ms):
            try:
                self._socket.send(request, zmq.NOBLOCK)
            except zmq.Again:
                self._wanted.not_connected()
                break
        for topic, error in self._wanted.refused():
            disk = self._positions["disk_full"] or self._positions["read_only"]
            for_now = disk and isinstance(error, StoreUnavailable)
            if not for_now and self._targets.give_up(topic, now_ms):
                self._tell(f"topic {topic} is missing and cannot be made", error)
        for topic, count in self._targets.lost().items():
            self._tell(f"nothing is delivered to topic {topic}, which is gone", f"{count} messages")

    def _hear(self, now_ms: int) -> int:
        heard = 0
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if not self._wanted.received(parts):
                self._sender.received(parts, now_ms)
            heard += 1
        for outcome in self._sender.outcomes():
            crash_point("schedule.answered")
            self._settle(outcome)
        if self._sender.trouble is not None:
            self._tell("what is due cannot be stored now", self._sender.trouble)
        return heard

    def _settle(self, outcome: Outcome) -> None:
        batch: Batch = outcome.tag
        result, stored_after = outcome.result, outcome.stored_after
        if isinstance(result, Appended):
            batch.owner.settle(batch, True)
            return
        copies = batch.copies
        # the writer met damage as it looked for copies that an earlier try may have stored
        is_unknown = isinstance(result, StoreDamaged) and stored_after >= 0
        if isinstance(result, OffsetOutOfRange) or is_unknown:
            self._tell("a message may be delivered twice", result)
            stored_after = -1
        elif len(copies) == 1:
            moved = self._elsewhere(copies[0], result)
            if moved is None:
                self._tell("a delayed message cannot be delivered", result)
                batch.owner.settle(batch, False)
                return
            copies = [moved]
        parts: list[Batch] = []
        for each in zip(copies, batch.notes, strict=True):
            parts += put_frames(self._sender, batch.owner, [each], stored_after)
        batch.owner.again(batch, parts)

    def _elsewhere(self, copy: Copy, error: PenstockError) -> Copy | None:
        """The copy for another queue, if topics have changed; None if it has nowhere to go."""
        if not isinstance(error, TopicNotFound | QueueNotFound):
            return None
        self._targets.look(self._clock.monotonic_ms(), at_once=True)
        # a roll makes its copies again by itself
        return None if copy.topic == TIMER_TOPIC.encode() else self._targets.place(copy)

    def _tell(self, what: str, why: object) -> None:
        """Report at most once a minute: trouble that lasts an hour is no news each time."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._said.get(what, -SAY_MS) >= SAY_MS:
            self._said[what] = now_ms
            self._stage.report(f"{what}: {why}")

    # --- the rest of an actor ---

    def idle_ms(self) -> int:
        """Time until the next message is due, or the sender has something to repeat."""
        if not self._may_put():
            return SAVE_MS  # nothing may be sent before that
        now_ms = self._now_ms()
        due = [level.due_ms for level in self._levels] + [self._timers.next_ms]
        waits = [at - now_ms for at in due if at >= 0]
        sender_ms = self._sender.wait_ms(self._clock.monotonic_ms())
        rest_ms = PACE_MS - (self._clock.monotonic_ms() - self._put_ms)
        return max(
            1, min([QUIET_TICK_MS, sender_ms, *(max(rest_ms, wait_ms) for wait_ms in waits)])
        )

    def release_deleted(self) -> None:
        self._queues.release_deleted(self._clock.monotonic_ms())
        self._deliveries.release_deleted()

    def drained(self) -> bool:
        """Whether all that was sent has its outcome; messages not yet due wait for the next run."""
        return not len(self._sender) or self._sender.trouble is not None

    def close(self) -> None:
        self._socket.close(linger=0)
        self._keeping.end(self._levels, self._timers, self._rolling, self._sender)
        self._deliveries.close()
        self._queues.close()
        self._file.close()
        self._files.close()
