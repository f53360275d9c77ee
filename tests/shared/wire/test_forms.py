"""What goes over the wire has its fields in an order, and no names with each of them."""

from __future__ import annotations

import msgspec
import pytest

from penstock.shared.wire import group_messages, messages, topic_messages, transaction_messages


@pytest.mark.parametrize("module", [messages, group_messages, topic_messages, transaction_messages])
def test_every_struct_is_an_array(module: object) -> None:
    kinds = [each for each in vars(module).values() if isinstance(each, type)]
    structs = [each for each in kinds if issubclass(each, msgspec.Struct)]
    named = {each.__name__ for each in structs if not each.__struct_config__.array_like}
    assert len(structs) > 3 and named <= {"Struct"}
