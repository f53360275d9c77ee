"""Says by name what needs Linux: clients run wherever Python does."""

from __future__ import annotations

import sys

from penstock.shared.errors import MissingDependency


def check_linux(what: str) -> None:
    """Raise MissingDependency on any other system. `what` names what needs Linux."""
    if sys.platform != "linux":
        raise MissingDependency(
            f"{what} needs Linux",
            f"this is {sys.platform}",
            "run the broker on Linux or in a container, and connect to it here by its endpoint: "
            'penstock.connect("tcp://HOST:20911"), or --endpoint tcp://HOST:20911',
        )
