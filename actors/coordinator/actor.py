"""The coordinator: who is in a group, which member has which queue, and how far the group has come.

Owns:     penstock/groups, config/consumerOffset.json, config/subscriptionGroup.json; the group
          endpoint; `closed_members`, `group_count`, `member_count`, `group_error`.
Reads:    config/topics.json, penstock/deleted-topics.json and exact-offsets.json, the queue table,
          consume queues and log (where a group begins, how far it lags).
Hears:    members and operators at its endpoint; ZeroMQ, of connections' ends; writer and reput.
Says:     answers; Changed to members; to the writer CreateTopic, for the topics of retries, and
          an operator's offsets of groups that work exactly once.
On crash: the next one reads the offsets' file and the journal: who had which queue, with which
          epoch, and who was a member. Members come back by themselves; those that do not by the
          end of their session count as gone. Every answer followed its entry in the journal, so
          no two members have the same queue, and no acknowledged commit is lost.

A cycle takes the requests that have come and has the tables changed. Then it writes all changes
into the journal at once, and groups' settings into their file, and only then sends the answers. So
a claim is valid when its owner hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq
from msgspec.structs import replace

from penstock.actors.coordinator.claims import Claims
from penstock.actors.coordinator.connections import Connections
from penstock.actors.coordinator.group_files import GroupFiles
from penstock.actors.coordinator.log_offsets import LogOffsets
from penstock.actors.coordinator.long_requests import LongRequests
from penstock.actors.coordinator.member_requests import MemberRequests
from penstock.actors.coordinator.membership import ORDERLY_KEEP_MS, Member, Membership, return_ms
from penstock.actors.coordinator.notifications import GATHER_MS, Notifications
from penstock.actors.coordinator.operator_requests import OperatorRequests
from penstock.actors.coordinator.retry_topics import RetryTopics
from penstock.actors.coordinator.start_offsets import StartOffsets
from penstock.actors.coordinator.topic_watch import Deletions, TopicWatch
from penstock.shared.errors import PenstockError, ProtocolError, StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.system_topics import retry_topic
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import QUIET_TICK_MS
from penstock.shared.process.reception import Reception
from penstock.shared.progress.group_journal import Entry, Gone, Head, MemberRow, Row, TopicGone
from penstock.shared.queue.lag import Lag
from penstock.shared.queue.reader import QueueReader
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import WireMessage, encode, refusal
from penstock.shared.wire.sockets import serve
from penstock.shared.wire.unread_answers import UnreadAnswers

REQUESTS_AT_ONCE = 256
MAX_REQUEST_BYTES = 1 << 20
ANSWERS_WAITING = 256
LINGER_MS = 200
SOON_MS = 10
# How long a reset waits until messages acknowledged before it have reached their queues.
CATCH_UP_MS = 1000
# After a cycle of nothing but heartbeats, further requests may wait this long: the more members
# there are, the more heartbeats come meanwhile.
CALM_MS, MOST_CALM_MS, CALM_MEMBERS = 5, 10, 1000
# Even under more requests than it can read, it looks for silent members this often.
LATEST_BURIAL_MS = 2000


class Coordinator(Actor):
    """Groups: members, claims, offsets."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clock = stage.clock
        self._unread = UnreadAnswers()
        self._buried_ms = stage.clock.monotonic_ms()
        # whether the last cycle took heartbeats and nothing else
        self._calm = False
        # peer, request's number, answer, whether the journal must have its change first
        self._answers: list[tuple[bytes, int, WireMessage | PenstockError, bool]] = []

    def start(self) -> None:
        config, run, clock = self._stage.config, self._stage.run, self._clock
        paths = StorePaths(config.store)
        self._members, self._claims = Membership(), Claims()
        self._files = GroupFiles(self._stage)
        self._queues = QueueReader(config, run, self._stage.positions)
        self._topics = TopicWatch(paths.topics, clock.monotonic_ms)
        self._topics.changed(clock.monotonic_ms())
        self._tell = Notifications(self._members, self._topics.queues)
        self._log = LogOffsets(self._stage, self._queues, self._claims, self._tell)
        self._requests = MemberRequests(
            config, self._members, self._claims, self._files, self._topics,
            StartOffsets(self._queues, self._stage.positions), self._tell, self._log, clock.now_ms,
        )  # fmt: skip
        self._operators = OperatorRequests(
            self._members, self._claims, self._files, self._topics, Lag(self._queues),
            self._tell, self._log, clock.now_ms, clock.monotonic_ms,
        )  # fmt: skip
        self._load()
        self._deletions = Deletions(paths.deleted_topics, self._stage.positions, self._claims)
        self._deletions.look()
        self._log.begin()
        self._long = LongRequests(clock.monotonic_ms)
        self._reception = Reception("members", run, config.store)
        self._limit = self._stage.connection_limit(config.max_connections)
        self._socket = serve(
            self._stage.context,
            (run.endpoints.group, run.endpoints.group_ipc),
            MAX_REQUEST_BYTES,
            self._stage.listening,
            ANSWERS_WAITING,
        )
        self._connections = Connections(self._socket)
        self._inlet = self._stage.inlet(self._socket, "closed_members")
        self._retry_topics = RetryTopics(self._stage.context, run.endpoints.produce_ipc, run.run_id)
        for source in (self._socket, self._connections.events, self._retry_topics.socket):
            self._stage.listen(source)

    def _load(self) -> None:
        """Load what the previous coordinator left in files."""
        offsets, entries = self._files.load()
        now_ms, version = self._clock.monotonic_ms(), self._clock.now_ms()
        for group, topic, queue_id, offset in offsets.rows():
            self._claims.load(Row(group, topic, queue_id, offset, 0, ""))
        members: dict[tuple[str, str], MemberRow] = {}
        keeps: dict[tuple[str, str], int] = {}
        heartbeat_ms, is_same_boot = 0, False
        for entry in entries:
            if isinstance(entry, Head):
                self._claims.skip_epochs(entry.next_epoch)
                heartbeat_ms = entry.heartbeat_ms
                is_same_boot = entry.boot == self._stage.run.boot_id
            elif isinstance(entry, Row):
                self._claims.load(entry)
            elif isinstance(entry, MemberRow):
                members[entry.group, entry.client_id] = entry
            elif isinstance(entry, Gone) and entry.client_id:
                members.pop((entry.group, entry.client_id), None)
                keeps[entry.group, entry.client_id] = entry.keep_ms
            elif isinstance(entry, Gone):
                self._claims.forget(entry.group)
            elif isinstance(entry, TopicGone):
                self._claims.forget_topic(entry.topic)
        for row in members.values():
            after_ms = return_ms(row, heartbeat_ms)
            row = row if is_same_boot else replace(row, unheard_ms=0)
            self._members.restore(row, now_ms, after_ms, version)
        for owner in self._claims.owners():
            if owner not in members:
                until_ms = keeps.get(owner, 0) if is_same_boot else 0
                self._members.keep(*owner, until_ms or now_ms + ORDERLY_KEEP_MS)
        self._changes()  # drop these changes: the files have all of them
        if entries:
            # the file has the offsets of the last save; those that moved since may have no claim
            self._files.begin(
                self._head(), [*self._claims.rows(saved=False), *self._members.rows()]
            )
        else:
            self._files.begin(self._head(), ())

    # --- a cycle ---

    def work(self) -> int:
        now_ms = self._clock.monotonic_ms()
        self._limit.tend(now_ms)
        self._inlet.tend(self._unread.size_bytes)
        ended_now = self._connections.ended(now_ms)
        for connection in ended_now:
            self._members.lost(connection, now_ms)
        self._calm, done = not ended_now, len(ended_now)
        for _ in range(REQUESTS_AT_ONCE):
            parts = self._inlet.receive(copy=False)
            if parts is None:
                break
            if parts:
                self._receive(parts, now_ms)
            done += 1
        ended = self._long.work()
        self._answers += [(*each, True) for each in ended]
        # Whether a member lives shows only when everything that has come is read: this process
        # itself may have been held up meanwhile.
        if done < REQUESTS_AT_ONCE or now_ms - self._buried_ms > LATEST_BURIAL_MS:
            self._bury(now_ms)
        done += self._log.work(now_ms)
        self._look_at_topics(now_ms)
        self._write_down_and_answer(now_ms)
        done += self._retry_topics.work(now_ms)
        if self._files.due():
            self._files.save(self._claims.offsets, self._head(), self._rest)
        if not done:
            self._queues.rest(now_ms)
        more = len(ended) + self._long.busy
        # After heartbeats alone, let the next ones gather a moment: ten cost little more than one.
        self._calm &= 0 < done < REQUESTS_AT_ONCE and not more
        self._stage.listen(self._socket, not self._calm)
        return 0 if self._calm else done + more

    def idle_ms(self) -> int:
        if self._calm:
            return min(MOST_CALM_MS, CALM_MS + self._members.count // CALM_MEMBERS)
        if self._connections.settles or self._long.waits:
            return SOON_MS
        return min(GATHER_MS if self._tell.waits else QUIET_TICK_MS, self._inlet.idle_ms)

    def release_deleted(self) -> None:
        self._queues.release_deleted(self._clock.monotonic_ms())

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        self._files.save(self._claims.offsets, self._head(), self._rest)
        self._files.close()
        self._retry_topics.close()
        self._log.close()
        self._connections.close()
        self._socket.close(linger=LINGER_MS)
        self._queues.close()

    # --- requests ---

    def _receive(self, parts: list[Any], now_ms: int) -> None:
        peer = parts[0].bytes
        number = 0
        try:
            if len(parts) != 2:
                raise ProtocolError("a request is not one header", f"{len(parts) - 1} parts")
            request = self._reception.read(parts[1].bytes)
            if isinstance(request, bytes):
                self._socket.send_multipart((peer, request))
                return
            number = request.request
            self._serve(peer, parts[1], request, now_ms)
        except PenstockError as error:
            self._answers.append((peer, number, error, False))

    def _serve(self, peer: bytes, frame: Any, request: Any, now_ms: int) -> None:
        reads = isinstance(request, words.Beat | words.DescribeGroup | words.ListGroups)
        if not reads and (refused := self._files.refuses):
            raise refused
        answer: WireMessage
        work: Any
        self._calm &= isinstance(request, words.Beat)
        match request:
            case words.Beat():
                answer = self._requests.beat(request, peer, now_ms)
            case words.Join():
                self._join(peer, frame, request, now_ms)
                return
            case words.Claim():
                self._heard(request, peer, now_ms)
                member = request.group, request.client_id
                key: tuple[object, ...] = ("claim", *member, request.topic, request.queue_ids)
                work = self._requests.claim(request, peer, self._catches_up(now_ms))
                self._long.add(key, peer, request.request, work)
                return
            case words.Commit():
                self._heard(request, peer, now_ms)
                answer = self._requests.commit(request)
            case words.Release():
                self._heard(request, peer, now_ms)
                answer = self._requests.release(request)
            case words.Leave():
                answer = self._requests.leave(request, peer)
            case words.DescribeGroup():
                work = self._operators.describe(request)
                self._long.add(("describe", peer, request.group), peer, request.request, work)
                return
            case words.ListGroups():
                work = self._operators.list_all(request)
                self._long.add(("list", peer), peer, request.request, work)
                return
            case words.ResetOffsets():
                self._topics.expire()
                self._look_at_topics(now_ms)
                work = self._operators.reset(request, self._catches_up(now_ms))
                # one peer may ask for many: the gateway does
                key = ("reset", peer, request.group, request.topic, *request.offsets)
                self._long.add(key, peer, request.request, work)
                return
            case words.SetGroup():
                answer = self._operators.put(request)
            case _:
                work = self._operators.delete(request, self._catches_up(now_ms))
                self._long.add(("delete", peer, request.group), peer, request.request, work)
                return
        self._answers.append((peer, request.request, answer, not reads))

    def _join(self, peer: bytes, frame: Any, request: words.Join, now_ms: int) -> None:
        known = self._members.member(request.group, request.client_id)
        if known is not None and known.peer == peer and known.connection >= 0:
            connection, address = known.connection, known.address
        else:
            connection, address = self._connections.of(frame), _address(frame)
            if known is not None and connection < 0 <= known.connection:
                return  # a late frame of an ended connection; the member has a newer one
        answer = self._requests.join(request, peer, connection, now_ms)
        self._members.groups[request.group].members[request.client_id].address = address
        if request.retry_topic and not self._topics.queues(retry_topic(request.group)):
            self._retry_topics.want(request.group, self._requests.retry_queues(request.group))
        if answer is not None:
            self._answers.append((peer, request.request, answer, True))

    def _catches_up(self, now_ms: int) -> Callable[[], bool]:
        """Whether the queues have what was acknowledged until now; also True after a timeout."""
        positions, clock = self._stage.positions, self._clock
        acknowledged = positions["flushed" if self._stage.config.sync_flush else "wrote"]

        def is_queued() -> bool:
            waited_ms = clock.monotonic_ms() - now_ms
            return bool(positions["queued"] >= acknowledged) or waited_ms > CATCH_UP_MS

        return is_queued

    def _heard(
        self, request: words.Claim | words.Commit | words.Release, peer: bytes, now_ms: int
    ) -> None:
        member = self._members.member(request.group, request.client_id)
        if member is not None:
            self._members.heard(member, now_ms, peer)

    # --- what time brings ---

    def _bury(self, now_ms: int) -> None:
        """Remove members that are silent or whose connection is gone."""
        self._buried_ms = now_ms
        for member in self._members.dead(now_ms):
            self._remove(member, now_ms)
        for group, client in self._members.keeps_over(now_ms):
            self._requests.free_all(group, client)

    def _remove(self, member: Member, now_ms: int) -> None:
        group, client = member.group.name, member.client_id
        until_ms = self._members.keep_until(member)
        self._members.remove(member)
        if until_ms > now_ms:
            self._members.keep(group, client, until_ms)
        else:
            self._requests.free_all(group, client)

    def _look_at_topics(self, now_ms: int) -> None:
        self._deletions.look()
        if changed := self._topics.changed(now_ms):
            for topic in changed:
                if not self._topics.has(topic):
                    self._claims.forget_topic(topic)
            for group in self._members.subscribed(changed):
                self._members.change(group)

    # --- writing down, then saying ---

    def _changes(self) -> list[Entry]:
        return [*self._members.changes(), *self._claims.changes()]

    def _write_down_and_answer(self, now_ms: int) -> None:
        refused = _refused(lambda: self._files.write_down(self._changes()))
        unsaved = _refused(self._files.save_awaited)
        answers, self._answers = self._answers, []
        for peer, number, answer, must_be_written in answers:
            said: WireMessage | PenstockError = answer
            if must_be_written:
                said = refused or (isinstance(answer, words.GroupSet) and unsaved) or answer
            if isinstance(said, PenstockError):
                said = refusal(said, number)
            self._unread.send(self._socket, (peer, encode(said)))
        self._stage.positions.publish("group_count", len(self._members.groups))
        self._stage.positions.publish("member_count", self._members.count)
        for group in self._members.take_changed():
            self._tell.changed(group, now_ms)
        for each in self._tell.welcomed(now_ms, everyone=refused is not None):
            joined = refusal(refused, each.request) if refused else self._requests.joined(each)
            self._unread.send(self._socket, (each.member.peer, encode(joined)))
        for peers, told in self._tell.due(now_ms):
            header = encode(told)
            for peer in peers:
                self._unread.send(self._socket, (peer, header))

    def _head(self) -> Head:
        most_ms = self._requests.most_heartbeat_ms
        return Head((), self._claims.next_epoch, most_ms, self._stage.run.boot_id)

    def _rest(self) -> list[Entry]:
        return [*self._claims.rows(), *self._members.rows()]


def _refused(write: Callable[[], None]) -> StoreUnavailable | None:
    try:
        write()
    except StoreUnavailable as error:
        return error
    return None


def _address(frame: zmq.Frame) -> str:
    """Where a request came from: an IP address, "localhost:UID:GID:PID" for a Unix socket, or "" if
    ZeroMQ does not know."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
