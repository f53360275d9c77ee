"""What an App's handler takes: its parameters, chosen by annotation, and their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.client.core import log
from penstock.client.groups.message import GroupMessage
from penstock.shared.errors import InvalidArgument, InvalidMessage

_FORM = "it takes the message's object, the message itself (GroupMessage), or both"


class Handler(NamedTuple):
    """A function, and which of its parameters are the message and the message's object."""

    function: Callable[..., Any]
    is_coroutine: bool
    message: str  # "" if it does not want the message
    body: str
    kind: Any

    def arguments(self, message: GroupMessage) -> dict[str, Any] | None:
        """What it is called with. None if the body is not such an object: that would be the same
        next time, so the message becomes a dead letter."""
        given: dict[str, Any] = {self.message: message} if self.message else {}
        if self.body:
            try:
                given[self.body] = message.decode(self.kind)
            except InvalidMessage as error:
                log().warning("%r is a dead letter: %s", message, error)
                message.retry(level=-1, reason=str(error))
                return None
        return given


def handler_of(function: Callable[..., Any]) -> Handler:
    """Raises InvalidArgument if no message can be given to the function."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except NameError as error:
        raise InvalidArgument(
            "an annotation of a handler names nothing that can be found",
            f"{name}: {error}",
            "define the type at the top of the module, and not inside a function",
        ) from None
    except (TypeError, ValueError) as error:
        raise InvalidArgument("this is no handler", f"{name}: {error}", _FORM) from None
    message = body = ""
    kind: Any = Any
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
            raise InvalidArgument("a handler has a parameter without a name", name, _FORM)
        is_message = each.annotation in (each.empty, GroupMessage)
        if (is_message and not message) or (not is_message and not body):
            if is_message:
                message = each.name
            else:
                body, kind = each.name, each.annotation
        elif each.default is each.empty:
            raise InvalidArgument(
                "a handler has a parameter that nothing is given for", f"{name}: {each.name}", _FORM
            )
    if not message and not body:
        raise InvalidArgument("a handler takes nothing", name, _FORM)
    # for a callable object, its __call__ decides
    is_coroutine = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
    return Handler(function, is_coroutine, message, body, kind)
