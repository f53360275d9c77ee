"""The checked arguments of a producer, and the core that is made from them."""

from __future__ import annotations

from threading import Condition
from typing import NamedTuple

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.core.arguments import check_at_least, check_bool, check_ms
from penstock.client.core.sending.encoding import Encoder, check_ack
from penstock.client.core.sending.frame_ring import FrameRing
from penstock.client.core.sending.packing import Packer
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.core.sending.queue_faults import QueueFaults
from penstock.shared.formats.compression import check_compression
from penstock.shared.formats.message_id import key_origin


class ProducerOptions(NamedTuple):
    """The arguments of both producers about how they send."""

    timeout_ms: int
    ack: str
    compression: str | None
    compress_over_bytes: int
    ring: bool
    send_latency_fault_enable: bool

    @classmethod
    def checked(
        cls,
        timeout_ms: int,
        ack: str,
        compression: str | None,
        compress_over_bytes: int,
        ring: bool,
        send_latency_fault_enable: bool,
    ) -> ProducerOptions:
        """Raises InvalidArgument."""
        return cls(
            check_ms("timeout_ms", timeout_ms),
            check_ack(ack),
            check_compression(compression),
            check_at_least("compress_over_bytes", compress_over_bytes, 0),
            check_bool("ring", ring),
            check_bool("send_latency_fault_enable", send_latency_fault_enable),
        )

    def core(self, address: BrokerAddress, settled: Condition, now_ms: int) -> ProducerCore:
        """The core for a broker that was met. May look up a name. `settled` is the core's lock."""
        from penstock.client.connecting.local_address import is_loopback

        ip = address.local_ip()
        encoder = Encoder(ip, key_origin(ip, now_ms), self.compression, self.compress_over_bytes)
        packer = Packer(encoder, FrameRing(self.ring and is_loopback(ip)))
        core = ProducerCore(address.name, settled, self.timeout_ms, self.ack, packer)
        core.moves.faults = QueueFaults() if self.send_latency_fault_enable else None
        address.give(core.routes.aim)
        return core
