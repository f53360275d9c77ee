"""The name server of a broker's gateway: it knows the broker's own topics, and other brokers too.

The broker itself is registered here like any other, but it never expires, and each change of its
topics is registered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.naming.settings_file import load_settings, save_settings
from penstock.actors.gateway.topics import TopicTable
from penstock.remoting.naming.registration import Registration
from penstock.remoting.naming.routes import MASTER_ID
from penstock.remoting.naming.server import NameServer
from penstock.remoting.naming.words import RegisterFields
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.layout import StorePaths

EXPIRE_EVERY_MS = 1000


class OwnNames:
    """The name server, and the broker in it."""

    def __init__(
        self, config: Config, address: str, topics: TopicTable, report: Callable[[str], None]
    ) -> None:
        """`address` is the broker's, as clients are told it. Raises OSError."""
        self._config, self._topics = config, topics
        file = StorePaths(config.store).name_server_settings
        try:
            settings = load_settings(file)
        except StoreDamaged as error:
            # no message depends on the settings, so the broker starts without them
            report(f"the name server begins without settings: {error}")
            settings = {}
        self.server = NameServer(
            topics.not_found,
            partial(save_settings, file),
            settings,
            {
                "bindAddress": config.bind_host,
                "kvConfigPath": file.absolute(),
                "listenPort": config.gateway_name_server_port,
            },
            config.order_message_enable,
        )
        self.fields = RegisterFields(config.broker_name, address, config.cluster_name, MASTER_ID)
        self._version = -1
        self._expire_ms = 0

    def work(self, now_ms: int) -> None:
        """Take up changes of topics, and forget brokers that are silent."""
        routes = self.server.routes
        if self._version != self._topics.version:
            self._version = self._topics.version
            topics = self._topics.all_routed()
            routes.register(self.fields, Registration(topics), None, now_ms)
            routes.set_topics(self._config.broker_name, topics)
        if now_ms >= self._expire_ms:
            self._expire_ms = now_ms + EXPIRE_EVERY_MS
            routes.expire(now_ms)

    def gone(self, connection: Connection) -> None:
        self.server.routes.gone(connection)
