"""What a requester and a replier may say, checked before anything is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from penstock.client.core.arguments import check_timeout, wrong_type
from penstock.shared.errors import InvalidArgument, InvalidMessage


class Request(Protocol):
    """A message that was sent by `request`, as any consumer gives it."""

    @property
    def properties(self) -> Mapping[str, str]: ...


def check_wait(timeout: Any) -> float:
    """Seconds to wait for a reply. Raises InvalidArgument."""
    seconds = check_timeout(timeout)
    if seconds is None or seconds <= 0:
        raise InvalidArgument("a request waits for no time", timeout, "say how many seconds")
    return seconds


def merged(properties: Mapping[str, str] | None, own: dict[str, str]) -> Mapping[str, str]:
    """A sender's properties with those of a request or a reply. Raises InvalidMessage."""
    if properties is None:
        return own
    if not isinstance(properties, Mapping):
        expected = "a mapping from str to str"
        raise wrong_type(InvalidMessage, "properties", properties, expected)
    if taken := sorted(own.keys() & properties.keys()):
        raise InvalidMessage(
            "a property has a name that requests and replies use", taken[0], "use another name"
        )
    return dict(properties) | own
