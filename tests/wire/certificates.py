"""Certificates for tests, made by the openssl command: an authority, and what it has signed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates in a directory of its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._own = self._pair(name)
        self.ca = self._own.cert
        usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        openssl("req", "-x509", *_key(self._own), "-days", "2", "-subj", f"/CN={name}", *usage, "-out", str(self.ca))

    def sign(self, name: str, names: str = "IP:127.0.0.1,DNS:localhost", *, expired: bool = False) -> Pair:
        """A certificate for these subject alternative names."""
        pair, request, extra = self._pair(name), self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        openssl("req", "-new", *_key(pair), "-subj", f"/CN={name}", "-out", str(request))
        extra.write_text(f"subjectAltName={names}\n")
        days = "-1" if expired else "2"
        signer = ("-CA", str(self.ca), "-CAkey", str(self._own.key), "-CAcreateserial", "-extfile", str(extra))
        openssl("x509", "-req", "-in", str(request), *signer, "-days", days, "-out", str(pair.cert))
        return pair

    def _pair(self, name: str) -> Pair:
        return Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")


def _key(pair: Pair) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(pair.key))
