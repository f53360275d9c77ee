"""Names of groups: RocketMQ's characters, and RocketMQ's length."""

from __future__ import annotations

import pytest

from penstock.shared.errors import InvalidArgument
from penstock.shared.names import MAX_GROUP_CHARACTERS, check_group


@pytest.mark.parametrize("name", ["g", "%Group|2-of_b", "g" * MAX_GROUP_CHARACTERS])
def test_a_group_may_have_rocketmqs_names(name: str) -> None:
    assert check_group(name) == name


@pytest.mark.parametrize("name", ["", "g" * (MAX_GROUP_CHARACTERS + 1), "a b", "a/b", "grüße"])
def test_what_no_group_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="no name of a group"):
        check_group(name)
