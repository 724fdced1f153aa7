"""TLS contexts from the files that the settings name: 1.2 and newer, peers verified, nothing by default turned off."""

from __future__ import annotations

import ssl
from pathlib import Path

HANDSHAKE_S = 5.0
"""A client that has not finished its handshake by then is cut off."""


def server_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """For a listener; with `client_ca` only clients with a certificate of these authorities get in.

    Raises ValueError that names the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, cert, key)
    if client_ca is not None:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """For connections to workers; `ca` instead of the system's authorities. Raises ValueError that names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        _trust(context, ca)
    else:
        context.load_default_certs()
    if cert is not None and key is not None:
        _load(context, cert, key)
    return context


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # SSLError is one
        raise ValueError(f"cannot use certificate {cert} with key {key}: {error.strerror or error}") from error


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise ValueError(f"cannot use the authorities in {ca}: {error.strerror or error}") from error
