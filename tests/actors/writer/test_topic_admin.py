"""Route, create, list: what the broker says of topics is what its file says."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.writer.topic_admin import RESERVED_TOPICS, TopicAdmin
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import InvalidArgument, PenstockError, StoreUnavailable, TopicNotFound
from penstock.shared.messaging.system_topics import QUEUES
from penstock.shared.names import MAX_QUEUES_PER_TOPIC
from penstock.shared.store.topics import Topics, load_topics, save_topics
from penstock.shared.wire.messages import CreateTopic, ListTopics, Route, Routed, TopicList

ConfigMaker = Callable[..., Config]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "topics.json"


def test_a_topic_is_created_at_its_first_route(file: Path, make_config: ConfigMaker) -> None:
    admin = TopicAdmin(file, make_config(default_topic_queue_nums=6), ManualClock())
    assert admin.answer(Route(5, "orders", create=True)) == Routed(5, "orders", 6)
    assert admin.queues("orders") == 6
    assert load_topics(file).all() == {"orders": 6}, "durable before it is answered"
    before = file.read_bytes()
    assert admin.answer(Route(6, "orders", create=True)) == Routed(6, "orders", 6)
    assert file.read_bytes() == before, "a route of a topic that is there writes nothing"


@pytest.mark.parametrize(("allowed", "wanted"), [(False, True), (True, False), (False, False)])
def test_a_topic_is_not_created_unless_both_sides_want_it(
    file: Path, make_config: ConfigMaker, allowed: bool, wanted: bool
) -> None:
    admin = TopicAdmin(file, make_config(auto_create_topic_enable=allowed), ManualClock())
    with pytest.raises(TopicNotFound, match="orders"):
        admin.answer(Route(1, "orders", wanted))
    assert not file.exists()


@pytest.mark.parametrize("topic", sorted(RESERVED_TOPICS - {*QUEUES}))
def test_the_brokers_own_topics_are_closed_even_where_they_exist(
    file: Path, make_config: ConfigMaker, topic: str
) -> None:
    stored = Topics()
    stored.put(topic, 18, 1)
    save_topics(file, stored)
    admin = TopicAdmin(file, make_config(), ManualClock())
    for request in (Route(1, topic, True), CreateTopic(1, topic, 20)):
        with pytest.raises(InvalidArgument):
            admin.answer(request)
    assert admin.queues(topic) == 0, "a frame for it finds no queue"


@pytest.mark.parametrize("topic", ["", "../x", "a.b", "x" * 128, "%RETRY%" + "g" * 249])
def test_what_is_no_topic_is_refused(file: Path, make_config: ConfigMaker, topic: str) -> None:
    admin = TopicAdmin(file, make_config(), ManualClock())
    for request in (Route(1, topic, True), CreateTopic(1, topic, 1)):
        with pytest.raises(InvalidArgument):
            admin.answer(request)
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
    file = directory / "topics.json"
    admin = TopicAdmin(file, Config(), ManualClock())
    model: dict[str, int] = {}
    for request in wanted:
        try:
            answer = admin.answer(request)
        except PenstockError:
            answer = None
        if isinstance(request, ListTopics):
            assert answer == TopicList(3, dict(sorted(model.items())))
            continue
        now = model.get(request.topic, 0)
        if isinstance(request, Route):
            granted = now or 4 * request.create
        else:
            legal = max(now, 1) <= request.queues <= MAX_QUEUES_PER_TOPIC
            granted = request.queues if legal else 0
        if granted:
            model[request.topic] = granted
            assert answer == Routed(request.request, request.topic, granted)
        else:
            assert answer is None
        assert load_topics(file).all() == model
    shutil.rmtree(directory)


def test_a_file_that_cannot_be_written_is_a_typed_error_and_no_topic(
    file: Path, make_config: ConfigMaker
) -> None:
    admin = TopicAdmin(file, make_config(), ManualClock())
    admin.answer(CreateTopic(1, "orders", 4))
    file.with_name("topics.json.tmp").mkdir()  # in the way of the new file
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"topics\.json"):
            admin.answer(CreateTopic(2, "orders", 8))
        assert admin.queues("orders") == 4
    file.with_name("topics.json.tmp").rmdir()
    admin.answer(CreateTopic(2, "orders", 8))
    assert admin.queues("orders") == load_topics(file).queues("orders") == 8


def test_a_name_that_a_predecessor_left_unsynced_is_synced_before_anything_is_answered(
    file: Path, make_config: ConfigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks again for a topic that is there is told so without another write."""
    admin = TopicAdmin(file, make_config(), ManualClock())
    admin.answer(CreateTopic(1, "orders", 4))
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    TopicAdmin(file, make_config(), ManualClock())
    assert synced == [str(file.parent)]


def test_no_topic_is_made_whose_queues_the_broker_has_no_room_for(
    file: Path, make_config: ConfigMaker
) -> None:
    """Messages that no queue takes could be stored, and seen by nobody."""
    admin = TopicAdmin(file, make_config(max_queues=10), ManualClock())
    admin.answer(CreateTopic(1, "a", 8))
    with pytest.raises(StoreUnavailable, match="more than 10 queues: 11.*max_queues=11"):
        admin.answer(CreateTopic(2, "b", 3))
    with pytest.raises(StoreUnavailable, match="more than 10 queues: 11.*max_queues=11"):
        admin.answer(CreateTopic(2, "a", 11))
    admin.answer(CreateTopic(3, "b", 2))
    assert admin.answer(CreateTopic(4, "a", 8)) == Routed(4, "a", 8)
    assert load_topics(file).all() == {"a": 8, "b": 2}


def test_a_file_that_cannot_be_read_is_an_answer_and_not_the_end_of_the_writer(
    file: Path, make_config: ConfigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = TopicAdmin(file, make_config(), ManualClock())
    admin.answer(CreateTopic(1, "orders", 4))

    def fails(file: Path) -> Topics:
        raise OSError(errno.EIO, "Input/output error", str(file))

    with monkeypatch.context() as disk:
        disk.setattr("penstock.actors.writer.topic_admin.load_topics", fails)
        (answer,) = admin.answer_all([CreateTopic(2, "payments", 4)])
    assert isinstance(answer, StoreUnavailable) and "Input/output error" in str(answer)
    assert admin.answer(CreateTopic(3, "payments", 4)) == Routed(3, "payments", 4)
