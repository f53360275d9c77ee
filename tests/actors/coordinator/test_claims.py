"""Claims against a plain model, and the coordinator killed at any byte of its journal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.actors.coordinator.claim_spans import MANY_SEATS, MOST_SPANS, NONE, Span
from penstock.actors.coordinator.claims import Claims
from penstock.shared.progress.group_journal import (
    Entry,
    Gone,
    Head,
    Row,
    TopicGone,
    decode_journal,
    encode_blocks,
    encode_journal,
)
from penstock.shared.wire.group_messages import HeldClaim

GROUPS = st.sampled_from(("g", "h"))
CLIENTS = st.sampled_from(("a", "b", "c"))
QUEUES = st.tuples(st.sampled_from(("orders", "%RETRY%g")), st.integers(0, 1))
OFFSETS = st.integers(0, 9)

Key = tuple[str, tuple[str, int]]


def restored(raw: bytes) -> Claims:
    """What a new coordinator has of a journal."""
    claims = Claims()
    for entry in decode_journal(raw)[0]:
        if isinstance(entry, Row):
            claims.load(entry)
        elif isinstance(entry, Gone):
            claims.forget(entry.group)
        elif isinstance(entry, TopicGone):
            claims.forget_topic(entry.topic)
        elif isinstance(entry, Head):
            claims.skip_epochs(entry.next_epoch)
    claims.changes()
    return claims


class ClaimsMachine(RuleBasedStateMachine):
    """The model: offset and owner of each queue, the epoch with which it was given, all epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = Claims()
        self.raw = encode_journal(Head((), 1), [])
        self.offsets: dict[Key, int] = {}
        self.owners: dict[Key, tuple[str, int]] = {}
        self.given: set[int] = set()
        # epochs of claims that were given up on purpose
        self.released: set[int] = set()
        # claims that clients believe they have, rightly or not
        self.believed: list[tuple[str, str, HeldClaim]] = []
        # epoch -> number of the last commit that this coordinator has of it
        self.numbers: dict[int, int] = {}
        # whose offset an operator has set since the last commit
        self.moved: set[tuple[str, tuple[str, int]]] = set()

    def write(self) -> None:
        """As the actor does before it answers."""
        if changes := self.claims.changes():
            self.raw += encode_blocks(changes)

    @rule(group=GROUPS, client=CLIENTS, queue=QUEUES, start=OFFSETS)
    def claim(self, group: str, client: str, queue: tuple[str, int], start: int) -> None:
        key = group, queue
        found = self.claims.claim(group, client, queue, start)
        self.write()
        owner = self.owners.get(key)
        if owner is not None and owner[0] != client:
            assert found is None
            return
        assert found is not None
        assert found.offset == self.offsets.setdefault(key, start)
        assert found.is_moved == (key in self.moved)
        if owner is None:
            assert found.epoch not in self.given, "no epoch is given twice"
            self.given.add(found.epoch)
            self.owners[key] = client, found.epoch
            self.believed.append((group, client, HeldClaim(*queue, found.epoch)))
        else:
            assert found.epoch == owner[1]

    @rule(data=st.data(), offset=OFFSETS, number=st.integers(1, 4))
    def commit(self, data: Any, offset: int, number: int) -> None:
        if not self.believed:
            return
        group, client, held = data.draw(st.sampled_from(self.believed))
        queue = held.topic, held.queue_id
        is_own = self.claims.commit(group, client, queue, offset, held.epoch, number)
        self.write()
        assert is_own == (self.owners.get((group, queue)) == (client, held.epoch))
        if is_own and number >= self.numbers.get(held.epoch, 0):
            self.offsets[group, queue] = offset
            self.numbers[held.epoch] = number
            self.moved.discard((group, queue))

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        if not self.believed:
            return
        group, client, held = data.draw(st.sampled_from(self.believed))
        queue = held.topic, held.queue_id
        was_own = self.claims.release(group, client, queue, held.epoch)
        self.write()
        assert was_own == (self.owners.get((group, queue)) == (client, held.epoch))
        if was_own:
            del self.owners[group, queue]
            self.released.add(held.epoch)

    @rule(data=st.data())
    def hold(self, data: Any) -> None:
        """A member comes back with what it believes it has."""
        if not self.believed:
            return
        group, client, held = data.draw(st.sampled_from(self.believed))
        key = group, (held.topic, held.queue_id)
        has = self.claims.hold(group, client, held)
        self.write()
        owner = self.owners.get(key)
        assert not has or owner in (None, (client, held.epoch))
        assert not has or held.epoch not in self.released, "a release is for good"
        if has and owner is None:
            newest = max(
                each.epoch
                for at, _, each in self.believed
                if (at, (each.topic, each.queue_id)) == key
            )
            assert held.epoch == newest, "nobody has had the queue since"
            self.owners[key] = client, held.epoch

    @rule(group=GROUPS, client=CLIENTS)
    def leave(self, group: str, client: str) -> None:
        freed = self.claims.release_all(group, client)
        self.write()
        mine = [key for key, who in self.owners.items() if key[0] == group and who[0] == client]
        assert sorted(freed) == sorted(queue for _, queue in mine)
        for key in mine:
            del self.owners[key]

    @rule(group=GROUPS, queue=QUEUES, offset=OFFSETS)
    def reset(self, group: str, queue: tuple[str, int], offset: int) -> None:
        owner, _ = self.claims.reset(group, queue, offset)
        self.write()
        before = self.owners.pop((group, queue), None)
        assert owner == (before[0] if before else "")
        self.offsets[group, queue] = offset
        self.moved.add((group, queue))
        self.believed = [
            each
            for each in self.believed
            if (each[0], (each[2].topic, each[2].queue_id)) != (group, queue)
        ]

    @rule(topic=st.sampled_from(("orders", "%RETRY%g")))
    def delete_topic(self, topic: str) -> None:
        self.claims.forget_topic(topic)
        self.write()
        for known in (self.offsets, self.owners):
            for key in [each for each in known if each[1][0] == topic]:
                del known[key]
        self.moved = {each for each in self.moved if each[1][0] != topic}
        self.believed = [each for each in self.believed if each[2].topic != topic]

    @rule()
    def kill(self) -> None:
        """Another process, which has the journal alone."""
        self.claims = restored(self.raw)
        self.numbers = {}

    @rule()
    def compact(self) -> None:
        self.raw = encode_journal(Head((), self.claims.next_epoch), [*self._all_rows(self.claims)])

    @staticmethod
    def _all_rows(claims: Claims) -> list[Row]:
        found = list(claims.rows())
        # what has no epoch stands in the offsets' file
        for group, topics in claims.offsets().items():
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    seat = claims.seat(group, (topic, queue_id))
                    if seat is not None and not seat.epoch:
                        found.append(Row(group, topic, queue_id, offset, 0, ""))
        return found

    @invariant()
    def agrees(self) -> None:
        for (group, queue), offset in self.offsets.items():
            seat = self.claims.seat(group, queue)
            assert seat is not None and seat.offset == offset
            owner = self.owners.get((group, queue))
            assert (seat.owner, seat.epoch) == owner if owner else seat.owner == ""
            assert seat.is_moved == ((group, queue) in self.moved)
        owned = {
            (group, queue)
            for group, client in self.claims.owners()
            for queue in self.claims.owned(group, client)
        }
        assert owned == self.owners.keys()


TestClaims = ClaimsMachine.TestCase
TestClaims.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(("claim", "commit", "commit", "release")),
        CLIENTS,
        QUEUES,
        OFFSETS,
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=40)
@given(_STEPS, st.data())
def test_a_kill_at_any_byte_of_the_journal_loses_nothing_that_was_answered(
    steps: list[tuple[str, str, tuple[str, int], int]], data: Any
) -> None:
    """Each step is one block, answered when all of it is written."""
    claims = Claims()
    raw = encode_journal(Head((), 1), [])
    states: list[tuple[int, dict[Key, tuple[int, str, int]]]] = [(len(raw), {})]
    for what, client, queue, offset in steps:
        seat = claims.seat("g", queue)
        epoch = seat.epoch if seat else 0
        if what == "claim":
            claims.claim("g", client, queue, offset)
        elif what == "commit":
            claims.commit("g", client, queue, offset, epoch, len(states))
        else:
            claims.release("g", client, queue, epoch)
        entries: list[Entry] = claims.changes()
        raw += encode_blocks(entries) if entries else b""
        states.append((len(raw), _state(claims)))
    cut = data.draw(st.integers(states[0][0], len(raw)))
    torn = raw[:cut] + data.draw(st.binary(max_size=20))
    answered = [state for end, state in states if end <= cut][-1]
    found = restored(torn)
    assert _state(found) == answered
    used = [epoch for _, _, epoch in answered.values()]
    assert found.next_epoch > max(used, default=0)


def _state(claims: Claims) -> dict[Key, tuple[int, str, int]]:
    return {
        (group, (topic, queue_id)): (seat.offset, seat.owner, seat.epoch)
        for group in claims.groups()
        for topic, seats in claims.topics(group).items()
        for queue_id, seat in seats.items()
        if seat.offset != NONE
    }


def test_a_claim_of_a_lost_journal_is_believed_and_one_that_was_forgotten_is_not() -> None:
    old = HeldClaim("orders", 0, 41)
    claims = Claims()
    assert claims.take_over("g", "a", old), "nothing is known: the journal is gone"
    assert claims.commit("g", "a", ("orders", 0), 5, 41, 1)
    claims.forget_topic("orders")
    assert not claims.take_over("g", "a", old)
    raw = encode_journal(Head((), claims.next_epoch), claims.rows())
    assert not restored(raw).take_over("g", "a", old), "nor by the next coordinator"
    given = claims.claim("g", "a", ("orders", 0), 0)
    assert given is not None
    claims.forget("g")
    assert not claims.take_over("g", "a", HeldClaim("orders", 0, given.epoch))


def test_a_claim_of_a_lost_journal_that_another_has_had_the_queue_after_is_not_believed() -> None:
    """Its owner would set the group back to where it was then."""
    claims, queue = Claims(), ("orders", 0)
    for client in "ab":
        given = claims.claim("g", client, queue, 0)
        assert given is not None and claims.release("g", client, queue, given.epoch)
        assert not claims.take_over("g", client, HeldClaim(*queue, given.epoch))
    assert not claims.owners()


def test_claims_of_a_lost_journal_leave_no_epoch_to_be_given_twice_in_any_order() -> None:
    claims = Claims()
    for queue, epoch in enumerate((41, 40, 7)):
        assert claims.take_over("g", "a", HeldClaim("orders", queue, epoch))
    given = claims.claim("g", "b", ("orders", 3), 0)
    assert given is not None and given.epoch == 42


def test_queues_of_groups_are_counted_until_their_group_or_their_topic_is_gone() -> None:
    claims = Claims()
    claims.claim("f", "a", ("bills", 0), 0)
    for group in "gh":
        for queue_id in (0, 1, 1, 2):
            claims.claim(group, "a", ("orders", queue_id), 0)
    assert claims.count == 7
    claims.forget("g")
    assert (claims.count, claims.owners()) == (4, [("f", "a"), ("h", "a")])
    claims.forget_topic("orders")
    assert (claims.count, claims.owners()) == (1, [("f", "a")]), "also of a group that comes later"
    claims.forget_topic("orders")
    assert claims.count == 1


def test_a_claim_that_was_released_is_not_given_back_to_a_join_that_still_names_it() -> None:
    claims = Claims()
    given = claims.claim("g", "a", ("orders", 0), 5)
    assert given is not None
    assert claims.commit("g", "a", ("orders", 0), 8, given.epoch, 2)
    assert claims.release("g", "a", ("orders", 0), given.epoch)
    assert not claims.hold("g", "a", HeldClaim("orders", 0, given.epoch))
    # a commit from before, which comes once more
    assert not claims.commit("g", "a", ("orders", 0), 7, given.epoch, 1)
    again = claims.claim("g", "b", ("orders", 0))
    assert again is not None and again.offset == 8 and again.epoch > given.epoch


@pytest.mark.parametrize("offset", [5, 6], ids=["where it was set to", "further on"])
def test_an_operators_word_is_over_when_its_claim_commits_and_the_journal_says_so(
    offset: int,
) -> None:
    claims, queue = Claims(), ("orders", 0)
    claims.reset("g", queue, 5)
    given = claims.claim("g", "a", queue)
    assert given is not None and given.is_moved
    assert claims.commit("g", "a", queue, offset, given.epoch, 1)
    for each in claims, restored(encode_journal(Head((), 1), claims.changes())):
        assert each.claim("g", "a", queue) == (offset, given.epoch, False)


def test_commits_of_another_claim_are_numbered_from_the_beginning() -> None:
    """Clients count their own requests: the next one's are not late because they are few."""
    claims, queue = Claims(), ("orders", 0)
    for client, number, offset in (("a", 900, 5), ("b", 1, 6), ("a", 2, 7)):
        claim = claims.claim("g", client, queue, 0)
        assert claim is not None
        assert claims.commit("g", client, queue, offset, claim.epoch, number)
        assert claims.release("g", client, queue, claim.epoch)
        assert claims.offsets()["g"]["orders"][0] == offset


def test_the_last_claims_that_got_on_are_remembered_with_their_times() -> None:
    claims, queue = Claims(), ("orders", 0)
    claims.load(Row("g", "orders", 0, 5, 1, "before"))
    claims.commit("g", "before", queue, 7, 1, 1)
    claims.release_all("g", "before", now_ms=100)
    idle = claims.claim("g", "idle", queue, now_ms=100)
    assert idle is not None and claims.release("g", "idle", queue, idle.epoch, 150)
    first = claims.claim("g", "a", queue, now_ms=200)
    assert first is not None
    claims.commit("g", "a", queue, 9, first.epoch, 1)
    claims.reset("g", queue, 2, 300)
    claims.claim("g", "b", queue, now_ms=400)
    seat = claims.seat("g", queue)
    assert seat is not None
    assert seat.spans == (Span("before", 5, 7, NONE, 100), Span("a", 7, 9, 200, 300))
    assert seat.span == Span("b", 2, 2, 400) and not seat.span.has_moved
    claims.count = MANY_SEATS
    for number in range(20):
        claims.move("g", queue, 3 + number)
        claims.release_all("g", f"c{number - 1}" if number else "b", now_ms=500 + number)
        claims.claim("g", f"c{number}", queue, now_ms=500 + number)
    assert len(seat.spans) == MOST_SPANS and seat.spans[-1] == Span("c18", 21, 22, 518, 519)
    claims.count = MANY_SEATS + 1
    claims.move("g", queue, 30)
    claims.release_all("g", "c19", now_ms=601)
    assert [span.owner for span in seat.spans] == ["c19"], "as memory is bounded"


def test_a_claim_whose_start_its_member_decides_says_nothing_of_what_its_first_commit_passed() -> (
    None
):
    claims, queue = Claims(), ("orders", 0)
    claim = claims.claim("g", "a", queue)
    assert claim is not None and claim.offset == NONE
    assert claims.offsets() == {"g": {}}, "what nobody knows has no place in RocketMQ's file"
    claims.commit("g", "a", queue, 40, claim.epoch, 1)
    claims.commit("g", "a", queue, 44, claim.epoch, 2)
    seat = claims.seat("g", queue)
    assert seat is not None and seat.span == Span("a", 40, 44, NONE)


def test_a_claim_that_is_had_back_begins_where_its_queue_is_then_and_at_no_known_time() -> None:
    claims, queue = Claims(), ("orders", 0)
    claim = claims.claim("g", "a", queue, 3, 100)
    assert claim is not None and claims.commit("g", "a", queue, 5, claim.epoch, 1)
    claims.release_all("g", "a", now_ms=200)
    seat = claims.seat("g", queue)
    assert seat is not None and seat.since_ms == NONE, "it is nobody's"
    assert claims.hold("g", "a", HeldClaim(*queue, claim.epoch))
    assert claims.commit("g", "a", queue, 8, claim.epoch, 2)
    assert (seat.spans, seat.span) == ((Span("a", 3, 5, 100, 200),), Span("a", 5, 8, NONE))
    # the same where nothing but the offset was known
    other = "orders", 1
    claims.load(Row("g", *other, 5, 0, ""))
    claims.move("g", other, 9)
    assert claims.take_over("g", "b", HeldClaim(*other, 40))
    assert claims.commit("g", "b", other, 12, 40, 1)
    seat = claims.seat("g", other)
    assert seat is not None and seat.span == Span("b", 9, 12, NONE)
    assert claims.commit("g", "b", other, 4, 40, 2)
    assert not seat.span.has_moved, "it has gone back"
