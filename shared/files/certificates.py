"""The certificates that a gateway shows its clients: read, and checked before anybody connects.

Paths are the configuration's. This file does not know what is said over TLS, and keeps no key.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from penstock.shared.config import Config
from penstock.shared.errors import ConfigError

_CLIENTS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


class Tls(NamedTuple):
    """How a port speaks TLS: not at all without a context, and only TLS where `is_required`."""

    context: ssl.SSLContext | None = None
    is_required: bool = False


def server_tls(config: Config) -> Tls:
    """TLS as the configuration has it. Raises ConfigError for files that cannot be used."""
    if config.tls_server_mode == "disabled" or not config.tls_server_cert_path:
        return Tls()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key = config.tls_server_cert_path, config.tls_server_key_path
    try:
        # otherwise OpenSSL would ask for a password at the terminal
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            "the certificate and its key cannot be used",
            f"{certificate}, {key}: {error}",
            "name two files of PEM that belong together, the key without a password",
        ) from None
    context.verify_mode = _CLIENTS[config.tls_server_need_client_auth]
    if config.tls_server_trust_cert_path:
        try:
            context.load_verify_locations(config.tls_server_trust_cert_path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                "the certificates that clients are checked by cannot be read",
                f"{config.tls_server_trust_cert_path}: {error}",
                "name a file of PEM",
            ) from None
    return Tls(context, config.tls_server_mode == "enforcing")
