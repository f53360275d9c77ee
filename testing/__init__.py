"""What the tests of an application need: a real broker that starts quickly and leaves nothing.

`plugin` is a pytest plugin, found automatically where Penstock is installed; `Broker` serves other
test frameworks. May import `embedded` and `client`; nothing in the product imports it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING, because typing imports slowly
if TYPE_CHECKING:
    from penstock.embedded import Broker
    from penstock.testing.app_client import AppClient
    from penstock.testing.small_files import SMALL_FILES

__all__ = ["SMALL_FILES", "AppClient", "Broker"]


def __getattr__(name: str) -> object:
    # pytest imports the plugin in every run, so nothing else may be imported with it
    if name == "Broker":
        from penstock.embedded import Broker

        return Broker
    if name == "AppClient":
        from penstock.testing.app_client import AppClient

        return AppClient
    if name == "SMALL_FILES":
        from penstock.testing.small_files import SMALL_FILES

        return SMALL_FILES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
