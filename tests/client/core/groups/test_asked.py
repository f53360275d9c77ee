"""A member's unanswered requests."""

from __future__ import annotations

from penstock.client.core.groups.asked import REPEAT_MS, AllAsked
from penstock.shared.wire.group_messages import Commit, Leave, QueueCommit


def test_a_queue_is_taken_out_of_all_commits_and_no_other_with_it() -> None:
    asked = AllAsked()
    commits = [QueueCommit(*queue, 5, 1) for queue in (("a", 0), ("a", 1), ("b", 0))]
    asked.ask(Commit, "group", "client", tuple(commits))
    asked.ask(Commit, "group", "client", (commits[0],))
    asked.ask(Leave, "group", "client")
    asked.unsay(("a", 0))
    first, second, _ = [each.request for each in asked]
    assert isinstance(first, Commit) and first.commits == tuple(commits[1:])
    assert isinstance(second, Commit) and second.commits == ()


def test_all_requests_are_due_when_a_connection_is_lost() -> None:
    asked = AllAsked()
    for _ in range(3):
        asked.ask(Leave, "group", "client")
    for each in asked:
        each.sent(1000)
        each.sent(3000)
    asked.are_due_at(3010)
    assert [each.due_ms for each in asked] == [3010] * 3
    for each in asked:
        each.sent(3010)
    assert [each.due_ms for each in asked] == [3010 + REPEAT_MS] * 3, "the first pause again"
    assert [each.first_ms for each in asked] == [1000] * 3
