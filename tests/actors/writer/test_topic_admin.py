"""Route, create, list: what the broker says of topics is what its file says."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.writer import Writer
from penstock.actors.writer.topic_admin import RESERVED_TOPICS, Change, TopicAdmin
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import (
    InvalidArgument,
    NoPermission,
    PenstockError,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.system_topics import QUEUES, SCHEDULE_TOPIC
from penstock.shared.messaging.topic_rules import TopicConfig
from penstock.shared.names import MAX_QUEUES_PER_TOPIC
from penstock.shared.queue.deleted_topics import DeletedTopics, save_deleted_topics
from penstock.shared.store.topics import Topics, load_topics, save_topics
from penstock.shared.wire.messages import (
    Appended,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    Route,
    Routed,
    TopicAnswer,
    TopicDescribed,
    TopicList,
    TopicRequest,
    UpdateTopic,
    encode,
)

ConfigMaker = Callable[..., Config]


class Log:
    """A log's end, of which only offsets matter here."""

    def __init__(self) -> None:
        self.wrote = 1000
        self.ends: dict[tuple[str, int], int] = {}

    def next_offset(self, topic: str, queue_id: int) -> int:
        return self.ends.get((topic, queue_id), 0)

    def forget_topic(self, topic: str) -> None:
        self.ends = {key: end for key, end in self.ends.items() if key[0] != topic}


def opened(file: Path, config: Config) -> TopicAdmin:
    return TopicAdmin(StorePaths(file.parent.parent), config, ManualClock())


def answer(admin: TopicAdmin, request: TopicRequest, log: Log | None = None) -> TopicAnswer:
    """What the broker says, a refusal raised."""
    if isinstance(request, ListTopics | DescribeTopic) or not admin.changes(request):
        return admin.look_up(request)
    (found,) = admin.answer_all([request], log or Log())
    if isinstance(found, PenstockError):
        raise found
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "penstock").mkdir()
    return tmp_path / "config" / "topics.json"


def test_a_topic_is_created_at_its_first_route(file: Path, make_config: ConfigMaker) -> None:
    admin = TopicAdmin(
        StorePaths(file.parent.parent), make_config(default_topic_queue_nums=3), ManualClock()
    )
    assert answer(admin, Route(5, "orders", create=True)) == Routed(5, "orders", 3)
    assert admin.queues("orders") == 3
    assert load_topics(file).all() == {"orders": 3}, "durable before it is answered"
    before = file.read_bytes()
    assert answer(admin, Route(6, "orders", create=True)) == Routed(6, "orders", 3)
    assert file.read_bytes() == before, "a route of a topic that is there writes nothing"


@pytest.mark.parametrize(("allowed", "wanted"), [(False, True), (True, False), (False, False)])
def test_a_topic_is_not_created_unless_both_sides_want_it(
    file: Path, make_config: ConfigMaker, allowed: bool, wanted: bool
) -> None:
    admin = TopicAdmin(
        StorePaths(file.parent.parent), make_config(auto_create_topic_enable=allowed), ManualClock()
    )
    with pytest.raises(TopicNotFound, match="orders"):
        answer(admin, Route(1, "orders", wanted))
    assert not file.exists()


@pytest.mark.parametrize("topic", sorted(RESERVED_TOPICS - {*QUEUES}))
def test_the_brokers_own_topics_are_closed_even_where_they_exist(
    file: Path, make_config: ConfigMaker, topic: str
) -> None:
    stored = Topics()
    stored.put(topic, 18, 1)
    save_topics(file, stored)
    admin = opened(file, make_config())
    for request in (Route(1, topic, True), CreateTopic(1, topic, 20)):
        with pytest.raises(InvalidArgument):
            answer(admin, request)
    assert admin.queues(topic) == 0, "a frame for it finds no queue"


@pytest.mark.parametrize("topic", ["", "../x", "a.b", "x" * 128, "%RETRY%" + "g" * 249])
def test_what_is_no_topic_is_refused(file: Path, make_config: ConfigMaker, topic: str) -> None:
    admin = opened(file, make_config())
    for request in (Route(1, topic, True), CreateTopic(1, topic, 1)):
        with pytest.raises(InvalidArgument):
            answer(admin, request)
    assert not file.exists()


requests = st.one_of(
    st.builds(Route, st.just(1), st.sampled_from("abc"), st.booleans()),
    st.builds(
        CreateTopic,
        st.just(2),
        st.sampled_from("abc"),
        st.sampled_from([-1, 0, 1, 3, 5, MAX_QUEUES_PER_TOPIC, MAX_QUEUES_PER_TOPIC + 1]),
    ),
    st.builds(ListTopics, st.just(3)),
)


@given(st.lists(requests, max_size=12))
def test_topics_only_ever_grow_and_the_file_always_agrees(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Route | CreateTopic | ListTopics]
) -> None:
    directory = tmp_path_factory.mktemp("topics")
    (directory / "config").mkdir()
    (directory / "penstock").mkdir()
    file = directory / "config" / "topics.json"
    admin = opened(file, Config())
    model: dict[str, int] = {}
    for request in wanted:
        try:
            said = answer(admin, request)
        except PenstockError:
            said = None
        if isinstance(request, ListTopics):
            assert said == TopicList(3, dict(sorted(model.items())))
            continue
        now = model.get(request.topic, 0)
        if isinstance(request, Route):
            granted = now or 4 * request.create
        else:
            legal = max(now, 1) <= request.queues <= MAX_QUEUES_PER_TOPIC
            granted = request.queues if legal else 0
        if granted:
            model[request.topic] = granted
            assert said == Routed(request.request, request.topic, granted)
        else:
            assert said is None
        assert load_topics(file).all() == model
    shutil.rmtree(directory)


def test_a_file_that_cannot_be_written_is_a_typed_error_and_no_topic(
    file: Path, make_config: ConfigMaker
) -> None:
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))
    file.with_name("topics.json.tmp").mkdir()  # in the way of the new file
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"topics\.json"):
            answer(admin, CreateTopic(2, "orders", 8))
        assert admin.queues("orders") == 4
    file.with_name("topics.json.tmp").rmdir()
    answer(admin, CreateTopic(2, "orders", 8))
    assert admin.queues("orders") == load_topics(file).queues("orders") == 8


def test_what_is_asked_with_a_change_that_the_disk_refuses_has_the_answer_that_is_true_of_it(
    file: Path, make_config: ConfigMaker
) -> None:
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))
    file.with_name("topics.json.tmp").mkdir()  # in the way of the new file
    asked = [
        CreateTopic(2, "payments", 4),
        CreateTopic(3, "no/topic", 4),
        CreateTopic(4, "orders", 4),
        CreateTopic(5, "orders", 8),
    ]
    unsaved, refused, unchanged, grown = admin.answer_all(asked, Log())
    assert isinstance(unsaved, StoreUnavailable) and isinstance(grown, StoreUnavailable)
    assert isinstance(refused, InvalidArgument), "which no disk would make a topic"
    assert unchanged == Routed(4, "orders", 4), "it is there"


def test_a_name_that_a_predecessor_left_unsynced_is_synced_before_anything_is_answered(
    file: Path, make_config: ConfigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks again for a topic that is there is told so without another write."""
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    opened(file, make_config())
    assert synced == [str(file.parent)]


def test_no_topic_is_made_whose_queues_the_broker_has_no_room_for(
    file: Path, make_config: ConfigMaker
) -> None:
    """Messages that no queue takes could be stored, and seen by nobody."""
    admin = opened(file, make_config(max_queues=10))
    answer(admin, CreateTopic(1, "a", 8))
    with pytest.raises(StoreUnavailable, match="more than 10 queues: 11.*max_queues=11"):
        answer(admin, CreateTopic(2, "b", 3))
    with pytest.raises(StoreUnavailable, match="more than 10 queues: 11.*max_queues=11"):
        answer(admin, CreateTopic(2, "a", 11))
    answer(admin, CreateTopic(3, "b", 2))
    assert answer(admin, CreateTopic(4, "a", 8)) == Routed(4, "a", 8)
    assert load_topics(file).all() == {"a": 8, "b": 2}


def test_queues_that_a_topic_has_no_longer_take_room_until_it_is_deleted(
    file: Path, make_config: ConfigMaker
) -> None:
    """They keep their messages, and their places in the queue table; also after a start."""
    config = make_config(max_queues=10)
    admin = opened(file, config)
    answer(admin, CreateTopic(1, "a", 8))
    answer(admin, UpdateTopic(2, "a", read_queues=2, write_queues=2))
    again = opened(file, config)
    again.note_queues([("a", number) for number in range(8)] + [(SCHEDULE_TOPIC, 17)])
    for each in (admin, again):
        with pytest.raises(StoreUnavailable, match="more than 10 queues, deleted ones .*: 11"):
            answer(each, CreateTopic(3, "b", 3))
    answer(again, CreateTopic(4, "b", 2))
    answer(again, UpdateTopic(5, "a", read_queues=8, write_queues=8))
    with pytest.raises(StoreUnavailable, match="more than 10 queues: 11"):
        answer(again, UpdateTopic(6, "a", read_queues=9))
    answer(again, DeleteTopic(7, "a"))
    answer(again, CreateTopic(8, "c", 8))


def test_a_file_that_cannot_be_read_is_an_answer_and_not_the_end_of_the_writer(
    file: Path, make_config: ConfigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))

    def fails(file: Path) -> Topics:
        raise OSError(errno.EIO, "Input/output error", str(file))

    with monkeypatch.context() as disk:
        disk.setattr("penstock.actors.writer.topic_admin.load_topics", fails)
        (said,) = admin.answer_all([CreateTopic(2, "payments", 4)], Log())
    assert isinstance(said, StoreUnavailable) and "Input/output error" in str(said)
    assert answer(admin, CreateTopic(3, "payments", 4)) == Routed(3, "payments", 4)


# --- what a first message makes ---


def test_a_topic_made_by_a_message_has_as_many_queues_as_client_and_template_allow(
    file: Path, make_config: ConfigMaker
) -> None:
    """RocketMQ: the smaller of the client's defaultTopicQueueNums and TBW102's write queues."""
    admin = opened(file, make_config())
    assert answer(admin, Route(1, "a", True)) == Routed(1, "a", 4)
    assert answer(admin, Route(2, "b", True, queues=16)) == Routed(2, "b", 8)
    described = answer(admin, DescribeTopic(3, "b"))
    assert described == TopicDescribed(3, "b", 8, 8, 6, False, {})


def test_a_template_in_the_file_is_followed_and_one_without_inherit_makes_nothing(
    file: Path, make_config: ConfigMaker
) -> None:
    stored = Topics()
    stored.set("TBW102", TopicConfig(3, 2, perm=5), 1)
    save_topics(file, stored)
    admin = opened(file, make_config())
    with pytest.raises(NoPermission, match="permission 4"):
        answer(admin, Route(1, "a", True))
    stored.set("TBW102", TopicConfig(3, 2, perm=7), 1)
    save_topics(file, stored)
    admin = opened(file, make_config())
    assert answer(admin, Route(1, "a", True)) == Routed(1, "a", 2)
    stored.set("TBW102", TopicConfig(3, 2, perm=6), 1)
    save_topics(file, stored)
    with pytest.raises(TopicNotFound):
        answer(opened(file, make_config()), Route(1, "a", True))


@pytest.mark.parametrize("topic", ["%RETRY%workers", "%DLQ%workers"])
def test_a_groups_own_topics_have_one_queue_and_are_made_whatever_is_configured(
    file: Path, make_config: ConfigMaker, topic: str
) -> None:
    admin = opened(file, make_config(auto_create_topic_enable=False))
    assert answer(admin, Route(1, topic, True)) == Routed(1, topic, 1)


# --- update ---


def test_what_is_not_named_stays_and_the_answer_says_all_that_is_set(
    file: Path, make_config: ConfigMaker
) -> None:
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))
    first = UpdateTopic(2, "orders", read_queues=8, attributes={"+message.type": "FIFO"})
    said = answer(admin, first)
    assert said == TopicDescribed(2, "orders", 8, 4, 6, False, {"message.type": "FIFO"})
    said = answer(admin, UpdateTopic(3, "orders", perm=4, attributes={"-message.type": ""}))
    assert said == TopicDescribed(3, "orders", 8, 4, 4, False, {})
    assert load_topics(file).get("orders") == TopicConfig(8, 4, perm=4)
    assert admin.queues("orders") == 8, "as RocketMQ: SEND asks for neither permission nor write"
    listed = answer(admin, ListTopics(4))
    assert listed == TopicList(4, {"orders": 4}, {"orders": (8, 4)})


@pytest.mark.parametrize(
    "request_",
    [
        UpdateTopic(1, "orders", perm=8),
        UpdateTopic(1, "orders", perm=-1),
        UpdateTopic(1, "orders", read_queues=0),
        UpdateTopic(1, "orders", write_queues=MAX_QUEUES_PER_TOPIC + 1),
        CreateTopic(1, "%LMQ%light", 1),
        Route(1, "%LMQ%light", create=True),
        UpdateTopic(1, "orders", attributes={"message.type": "FIFO"}),
        UpdateTopic(1, "orders", attributes={"-message.type": ""}),
        UpdateTopic(1, "orders", attributes={"+message.type": "SOMETHING"}),
        UpdateTopic(1, "orders", attributes={"+queue.type": "BatchCQ"}),
        UpdateTopic(1, "orders", attributes={"+reserve.time": "soon"}),
        UpdateTopic(1, "TBW102", perm=6),
        UpdateTopic(1, "rmq_sys_penstock_offsets", read_queues=2),
        DeleteTopic(1, "BenchmarkTest"),
        DeleteTopic(1, "SCHEDULE_TOPIC_XXXX"),
    ],
)
def test_what_no_topic_can_be_is_refused_and_nothing_changes(
    file: Path, make_config: ConfigMaker, request_: Change
) -> None:
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))
    before = file.read_bytes()
    with pytest.raises(InvalidArgument):
        answer(admin, request_)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("message.type", r"does not begin with \+ or -: 'message.type'"),
        ("+queue.type", r"of this name cannot be changed: queue.type"),
    ],
)
def test_an_attribute_that_is_refused_is_named_as_it_was_given(
    file: Path, make_config: ConfigMaker, name: str, words: str
) -> None:
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))
    with pytest.raises(InvalidArgument, match=words):
        answer(admin, UpdateTopic(1, "orders", attributes={name: "FIFO"}))


def test_queues_go_only_if_they_end_where_somebody_has_looked(
    file: Path, make_config: ConfigMaker
) -> None:
    admin, log = opened(file, make_config()), Log()
    answer(admin, CreateTopic(1, "orders", 4))
    log.ends = {("orders", 2): 7, ("orders", 3): 9}
    shrunk = UpdateTopic(2, "orders", read_queues=2, write_queues=2, ends={2: 7, 3: 8})
    with pytest.raises(StoreUnavailable, match="queue 3.*ends at 9"):
        answer(admin, shrunk, log)
    assert admin.queues("orders") == 4
    answer(admin, UpdateTopic(3, "orders", 2, 2, ends={2: 7, 3: 9}), log)
    assert admin.queues("orders") == 2


def test_a_dry_run_says_what_would_be_and_changes_nothing(
    file: Path, make_config: ConfigMaker
) -> None:
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))
    before, version = file.read_bytes(), admin.version
    said = answer(admin, UpdateTopic(2, "orders", write_queues=1, dry_run=True))
    assert isinstance(said, TopicDescribed) and said.write_queues == 1
    said = answer(admin, DeleteTopic(3, "orders", dry_run=True))
    assert isinstance(said, TopicDescribed) and not said.deleted
    assert (file.read_bytes(), admin.version) == (before, version)


def test_a_frame_is_held_to_what_its_topic_is_by_then(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    """A writer that has stored for a topic knows of each change, and of its end."""
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    producer.hello()
    assert isinstance(producer.append([b"a"])[0], Appended)
    assert producer.append([b"b"], queue_id=40)[0].status == "QUEUE_NOT_EXIST"
    producer.ask(encode(CreateTopic(1, "orders", 41)))
    producer.hello()
    assert isinstance(producer.append([b"b"], queue_id=40)[0], Appended)
    producer.ask(encode(DeleteTopic(2, "orders")))
    assert producer.append([b"c"])[0].status == "TOPIC_NOT_EXIST"


def test_a_topic_without_the_right_to_write_has_no_route(
    file: Path, make_config: ConfigMaker
) -> None:
    admin = opened(file, make_config())
    answer(admin, CreateTopic(1, "orders", 4))
    answer(admin, UpdateTopic(2, "orders", perm=4))
    with pytest.raises(NoPermission, match="orders has permission 4.*--perm rw"):
        answer(admin, Route(3, "orders", True))


# --- delete ---


def test_a_deleted_topic_is_gone_from_the_file_and_its_queues_begin_again(
    file: Path, make_config: ConfigMaker
) -> None:
    admin, log = opened(file, make_config()), Log()
    answer(admin, CreateTopic(1, "orders", 4))
    log.ends = {("orders", 1): 5, ("other", 0): 3}
    said = answer(admin, DeleteTopic(2, "orders"), log)
    assert isinstance(said, TopicDescribed) and said.deleted
    assert load_topics(file).all() == {} and log.ends == {("other", 0): 3}
    assert admin.gone.ends() == {"orders": 1000} and admin.deleted == 1
    with pytest.raises(TopicNotFound):
        answer(admin, DeleteTopic(3, "orders"), log)
    log.wrote = 2000
    answer(admin, CreateTopic(4, "orders", 2), log)
    answer(admin, DeleteTopic(5, "orders"), log)
    assert admin.gone.ends() == {"orders": 2000} and admin.deleted == 2
    assert opened(file, make_config()).gone == admin.gone


def test_a_deletion_that_is_refused_keeps_no_other_from_being_done(
    file: Path, make_config: ConfigMaker
) -> None:
    admin = opened(file, make_config())
    for topic in ("orders", "payments"):
        answer(admin, CreateTopic(1, topic, 4))
    asked = [DeleteTopic(2, each) for each in ("none", "orders", "orders", "payments")]
    none, orders, twice, payments = admin.answer_all(asked, Log())
    assert isinstance(none, TopicNotFound) and isinstance(twice, TopicNotFound)
    for said, topic in ((orders, "orders"), (payments, "payments")):
        assert isinstance(said, TopicDescribed) and (said.topic, said.deleted) == (topic, True)
    assert load_topics(file).all() == {}


def test_a_writer_that_died_in_a_deletion_is_followed_by_one_that_ends_it_or_strikes_it_off(
    file: Path, make_config: ConfigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    for dies_at, is_deleted in (
        ("topic.deletion_noted", False),
        ("topic.deleted", True),
        ("topic.deletion_done", True),
    ):
        admin = opened(file, make_config())
        answer(admin, CreateTopic(1, "orders", 4))

        def die(name: str, at: str = dies_at) -> None:
            if name == at:
                raise Killed

        with monkeypatch.context() as points:
            points.setattr("penstock.actors.writer.topic_admin.crash_point", die)
            with pytest.raises(Killed):
                answer(admin, DeleteTopic(2, "orders"))
        successor = opened(file, make_config())
        assert (successor.queues("orders") == 0) is is_deleted, dies_at
        assert ("orders" in successor.gone.ends()) is is_deleted, dies_at
        assert all(row.is_done for row in successor.gone.rows)


def test_a_deletion_whose_last_step_the_disk_refuses_is_done_before_anything_else(
    file: Path, make_config: ConfigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name must not come again before its old queues are known to be gone."""
    admin, log = opened(file, make_config()), Log()
    answer(admin, CreateTopic(1, "orders", 4))
    calls = []

    def fails_second(path: Path, deleted: DeletedTopics) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_deleted_topics(path, deleted)

    monkeypatch.setattr("penstock.actors.writer.topic_admin.save_deleted_topics", fails_second)
    with pytest.raises(StoreUnavailable, match="No space"):
        answer(admin, DeleteTopic(2, "orders"), log)
    assert admin.deleted == 0, "nobody is told of it"
    answer(admin, CreateTopic(3, "orders", 2), log)
    assert admin.deleted == 1 and admin.gone.ends() == {"orders": 1000}
