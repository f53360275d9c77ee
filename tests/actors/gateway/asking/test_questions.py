"""What is asked of another actor: said again in its order, and answered or late."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.gateway.asking.questions import AGAIN_MS, Questions, Then
from penstock.actors.gateway.asking.shared_questions import SharedQuestions
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.connecting.peer_requests import PeerRequests
from penstock.shared.errors import BrokerBusy, BrokerTimeout, InvalidArgument
from penstock.shared.wire import group_messages as words

TIMEOUT_MS = 2500


class _Asker:
    def __init__(self) -> None:
        self.questions = Questions("coordinator", words.decode_group_request, TIMEOUT_MS)
        self.heard: list[tuple[int, object]] = []

    def commit(self, offset: int, now_ms: int, queue: int = 0) -> None:
        commits = (words.QueueCommit("t", queue, offset, 1),)
        make = partial(words.Commit, group="g", client_id="c", commits=commits)
        self.questions.ask(
            lambda n: make(n), lambda a: self.heard.append((offset, a)), now_ms, ("g", queue)
        )

    def leave(self, now_ms: int) -> None:
        make = partial(words.Leave, group="g", client_id="c")
        self.questions.ask(lambda n: make(n), lambda a: self.heard.append((-1, a)), now_ms)

    def said(self, now_ms: int) -> list[tuple[int, int]]:
        """Number and offset of each, as it goes out; -1 for what is no commit."""
        found = []
        for header in self.questions.outgoing(now_ms):
            request = words.decode_group_request(header)
            is_commit = isinstance(request, words.Commit)
            found.append((request.request, request.commits[0].offset if is_commit else -1))
        return found


def test_an_older_commit_is_not_said_again_after_a_newer_one() -> None:
    asker = _Asker()
    asker.commit(5, 0)
    assert asker.said(0) == [(1, 5)]
    asker.commit(9, 500)
    assert asker.said(500) == [(2, 9)]
    assert asker.said(AGAIN_MS) == []
    assert asker.said(500 + AGAIN_MS) == [(2, 9)]
    assert not asker.questions.answered(1, "an answer that is as good as late")
    assert asker.questions.answered(2, "done")
    assert asker.heard == [(5, "done"), (9, "done")]


def test_what_is_said_again_takes_along_all_that_came_after_it() -> None:
    asker = _Asker()
    asker.commit(5, 0)
    assert asker.said(0) == [(1, 5)]
    asker.leave(900)
    assert asker.said(900) == [(2, -1)]
    assert asker.said(AGAIN_MS) == [(1, 5), (2, -1)]
    assert asker.questions.answered(1, "done")
    assert asker.said(AGAIN_MS + 1) == []
    assert asker.said(2 * AGAIN_MS) == [(2, -1)]


def test_what_could_not_be_sent_is_said_first_when_it_can() -> None:
    asker = _Asker()
    asker.commit(5, 0, queue=1)
    asker.commit(6, 0, queue=2)
    assert next(asker.questions.outgoing(0))  # and whoever sends it says that it is not sent
    assert asker.said(1) == [(1, 5), (2, 6)]


def test_what_cannot_be_encoded_is_refused_and_leaves_all_else_as_it_was() -> None:
    asker = _Asker()
    asker.commit(5, 0)
    asker.commit(1 << 64, 0)
    assert [(offset, type(answer)) for offset, answer in asker.heard] == [
        (1 << 64, InvalidArgument)
    ]
    asker.leave(0)
    assert asker.said(0) == [(1, 5), (2, -1)]
    assert asker.questions.answered(1, "done") and len(asker.questions) == 1


def test_each_is_late_after_its_own_time() -> None:
    asker = _Asker()
    asker.commit(5, 0)
    asker.commit(9, 1000)
    asker.questions.give_up(TIMEOUT_MS - 1)
    assert asker.heard == []
    asker.questions.give_up(TIMEOUT_MS + 200)
    assert [(offset, type(answer)) for offset, answer in asker.heard] == [(5, BrokerTimeout)]
    assert len(asker.questions) == 1
    asker.questions.give_up(TIMEOUT_MS + 1200)
    assert [offset for offset, _ in asker.heard] == [5, 9] and not len(asker.questions)
    assert asker.said(TIMEOUT_MS + 5000) == []


def test_what_the_other_one_could_not_read_is_refused_at_once_and_not_said() -> None:
    asker, heard = _Asker(), list[object]()
    for make in (
        partial(words.Leave, group="", client_id="c"),
        partial(words.Claim, group="g", client_id="c", topic="t", queue_ids=(-1,)),
        partial(words.ResetOffsets, group="g", topic="t", offsets={0: 1 << 62}),
    ):
        asker.questions.ask(make, heard.append, 0)
    assert [type(each) for each in heard] == [InvalidArgument] * 3
    assert asker.said(0) == [] and not len(asker.questions)


def test_of_two_that_are_late_the_first_may_ask_the_second_again() -> None:
    questions, heard = Questions("coordinator", words.decode_group_request, TIMEOUT_MS), list[int]()
    make = partial(words.Leave, group="g", client_id="c")

    def again(_: object) -> None:
        heard.append(1)
        questions.ask(make, lambda _: heard.append(3), TIMEOUT_MS, "x")

    questions.ask(make, again, 0)
    questions.ask(make, lambda _: heard.append(2), 0, "x")
    questions.ask(make, lambda _: heard.append(4), 0)
    questions.give_up(TIMEOUT_MS)
    assert heard == [1, 4] and len(questions) == 1  # the third is late all the same
    questions.give_up(2 * TIMEOUT_MS)
    assert heard == [1, 4, 2, 3] and not len(questions)


def test_of_two_that_one_connection_has_the_first_may_end_the_second() -> None:
    reads = SimpleNamespace(address="a:1", may_receive=True)
    connection, heard = cast(Connection, reads), list[int]()
    requests = PeerRequests(lambda to, command: None)

    def ends(_: object) -> None:
        heard.append(1)
        requests.gone(connection)

    for step in (requests.work, lambda _: requests.gone(connection)):
        heard.clear()
        requests.ask(connection, 1, {}, b"", ends, 0)
        requests.ask(connection, 1, {}, b"", lambda _: heard.append(2), 0)
        step(60_000)
        assert heard == [1, 2]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["commit", "leave", "say", "lose", "answer"]),
            st.integers(0, 2),
            st.integers(0, 1500),
        ),
        max_size=40,
    )
)
def test_whoever_hears_them_ends_with_the_last_word_of_each(
    steps: list[tuple[str, int, int]],
) -> None:
    """A listener that takes words in their order, and may be a new one that has heard nothing."""
    asker, now_ms, offset = _Asker(), 0, 0
    asked: dict[int, int] = {}  # queue -> the last offset
    heard: dict[int, int] = {}
    answered: set[int] = set()
    for step, queue, pause_ms in steps:
        now_ms += pause_ms
        if step == "commit":
            offset += 1
            asker.commit(offset, now_ms, queue)
            asked[queue] = offset
        elif step == "leave":
            asker.leave(now_ms)
        elif step == "answer":
            for number in sorted(answered)[:1]:
                answered.discard(number)
                asker.questions.answered(number, "done")
        else:
            for header in asker.questions.outgoing(now_ms):
                request = words.decode_group_request(header)
                if step == "say":
                    answered.add(request.request)
                    if isinstance(request, words.Commit):
                        said = request.commits[0]
                        assert said.offset >= heard.get(said.queue_id, 0), "a step back"
                        heard[said.queue_id] = said.offset
    now_ms += AGAIN_MS
    for header in asker.questions.outgoing(now_ms):
        request = words.decode_group_request(header)
        if isinstance(request, words.Commit):
            heard[request.commits[0].queue_id] = request.commits[0].offset
    assert heard == asked


def test_a_client_that_reads_nothing_is_asked_nothing_more() -> None:
    silent = SimpleNamespace(address="a:1", may_receive=False, unread_bytes=9 << 20)
    sent: list[object] = []
    heard: list[object] = []
    requests = PeerRequests(lambda to, command: sent.append(command))
    requests.ask(cast(Connection, silent), 1, {}, b"", heard.append, 0)
    requests.tell(cast(Connection, silent), 1, {}, b"")
    assert not sent and isinstance(heard[0], BrokerBusy)
    requests.work(60_000)
    assert len(heard) == 1


def test_what_many_ask_is_asked_once_more_for_all_that_came_meanwhile() -> None:
    asked: list[Then] = []
    heard: list[tuple[int, object]] = []
    questions = SharedQuestions(lambda make, then: asked.append(then))

    def ask(number: int, kind: str) -> None:
        questions.ask(kind, words.ListGroups, lambda answer: heard.append((number, answer)))

    for number in range(4):
        ask(number, "list")
    ask(4, "another")
    assert len(asked) == 2, "the others wait for the first of their kind"
    asked[0]("old")
    assert heard == [(0, "old")] and len(asked) == 3
    ask(5, "list")
    asked[2]("new")
    assert heard[1:] == [(1, "new"), (2, "new"), (3, "new")]
    asked[1]("other")
    asked[3]("newest")
    assert heard[4:] == [(4, "other"), (5, "newest")] and len(asked) == 4
    ask(6, "list")
    assert len(asked) == 5, "nobody waits, so it is asked at once"
