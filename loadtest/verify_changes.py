"""Checks of `headrace verify` that change or misuse a gateway: policies, drains, a full queue, bad requests.

Each brings a situation about, notes what was seen, and leaves the judgement to `verify_judge_faults.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from loadtest.verify_client import CHAT, Told
from loadtest.verify_figures import Figure
from loadtest.verify_fleet import POLL_S, Fleet, VerifyError
from loadtest.verify_judge_faults import (
    Asked,
    BadInput,
    BadPolicy,
    Doors,
    Drained,
    Full,
    LivePolicy,
    judge_bad_input,
    judge_bad_policy,
    judge_doors,
    judge_drained,
    judge_full,
    judge_live_policy,
)
from loadtest.verify_stage import APART, Stage, load

RAW_S: Final = 10.0
RAW_BYTES: Final = 1 << 16
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
BODY_BYTES: Final = 65_536  # the largest body, where a check sets it
BOTH: Final = b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"
TO_LONG: Final = {
    "rules": [{"when": {"endpoint": "chat"}, "pool": "long-context"}],
    "pools": APART,
}
"""Sends all chat to the long pool, which borrows from no other."""

AGAIN: Final = 5  # rounds until a worker that was let in again gets work


async def live_policy(stage: Stage) -> list[Figure]:
    """Half-way through a load, all chat is sent to the other pool."""
    fleet = stage.fleet
    before = await _revision(fleet)
    bodies = stage.chats(stage.count(90), 40, 16)
    async with load(stage.caller, bodies) as coming:
        await coming.answers(len(bodies) // 3)
        after = await fleet.set_policy(TO_LONG)
        applied_s = time.monotonic()
    return judge_live_policy(LivePolicy(before, after, "long-context", applied_s, coming.told))


async def bad_policy(stage: Stage) -> list[Figure]:
    """Documents with faults, and good ones that come too late or empty a pool, under load."""
    fleet = stage.fleet
    _, before, headers = await fleet.call("GET", "policy")
    etag = headers.get("ETag", "")
    emptied = b"pools: {embeddings: {endpoints: [embeddings]}}\n"
    tries: tuple[tuple[str, bytes, str | None, int], ...] = (
        ("an unknown field", b"admission: {max_qeued: 5}\n", "*", 422),
        ("a negative number", b"limits: {max_in_flight_per_worker: -1}\n", "*", 422),
        ("a pool that does not exist", b"rules: [{when: {endpoint: chat}, pool: nowhere}]\n", "*", 422),
        ("no YAML", b"classes: [{name: \n", "*", 400),
        ("a revision that is not current", b"{}\n", '"999999"', 412),
        ("no revision", b"{}\n", None, 428),
        ("pools taken away that have workers", emptied, etag, 409),
    )
    tried: list[Asked] = []
    placed = faulty = 0
    async with load(stage.caller, stage.chats(stage.count(30))) as coming:
        for name, document, match, wanted in tries:
            fields = {} if match is None else {"If-Match": match}
            status, value, _ = await fleet.call("PUT", "policy", document, headers=fields)
            tried.append(Asked(name, (status, ""), (wanted, "")))
            if wanted == 422:
                faulty += 1
                problems = value.get("problems") if isinstance(value, dict) else None
                placed += bool(problems and problems[0].get("path") and problems[0].get("line"))
    _, after, _ = await fleet.call("GET", "policy")
    return judge_bad_policy(BadPolicy(tried, placed, faulty, _lasting(before), _lasting(after), coming.told))


def _lasting(policy: Any) -> Any:
    """The policy and its revision, without what changes by itself."""
    return {name: policy.get(name) for name in ("policy", "revision")} if isinstance(policy, dict) else policy


async def _revision(fleet: Fleet) -> int:
    _, value, _ = await fleet.call("GET", "policy")
    revision = value["revision"]
    return int(revision["number"] if isinstance(revision, Mapping) else revision)


async def drain(stage: Stage) -> list[Figure]:
    """Half-way through a load a worker is drained, and afterwards let in again."""
    fleet, name = stage.fleet, "short-1"
    first = int((await fleet.state(name))["generations_total"])
    bodies = stage.chats(stage.count(90), 40, 24)
    async with load(stage.caller, bodies) as coming:
        await coming.answers(len(bodies) // 3)
        await fleet.order(name, "drain")
        drained_s = time.monotonic()
        leases = await _leases_gone(fleet, name)
        at_rest = int((await fleet.state(name))["generations_total"])
        idle_s = time.monotonic()
    ended = int((await fleet.state(name))["generations_total"])
    before = sum(one.worker == name and one.sent_s < drained_s for one in coming.told)
    others = sum(one.worker != name and one.ended_s > idle_s for one in coming.told)
    await fleet.order(name, "undrain")
    again = 0
    for _ in range(AGAIN):
        await stage.caller.many(stage.chats(8))
        again = int((await fleet.state(name))["generations_total"]) - ended
        if again:
            break
    if at_rest == first:
        raise VerifyError(f"{name} had no work when it was drained")
    return judge_drained(Drained(coming.told, before, leases, ended - at_rest, others, again))


async def _leases_gone(fleet: Fleet, name: str, within_s: float = 15.0) -> float:
    until = time.monotonic() + within_s
    while True:
        leases = float((await fleet.worker(name)).get("leases", 0))
        if not leases or time.monotonic() > until:
            return leases
        await asyncio.sleep(POLL_S)


async def full_queue(stage: Stage) -> list[Figure]:
    """Engines that stand still: their places, the queue, and then more than that; then they go on."""
    fleet, caller, room = stage.fleet, stage.caller, 4
    await fleet.set_policy(
        {
            "admission": {"max_queued": room, "reject_when_hopeless": False},
            "limits": {"max_in_flight_per_worker": 1},
            "pools": APART,
        }
    )
    places = sum(engine.shape.pool == "short-chat" for engine in fleet.engines.values())
    await fleet.fault_all("stall")
    told: list[Told] = []
    async with asyncio.TaskGroup() as group:
        inside = [group.create_task(caller.ask(body)) for body in stage.chats(places)]
        await fleet.until("the places were not taken", 10.0, in_flight=places)
        inside += [group.create_task(caller.ask(body)) for body in stage.chats(room)]
        await fleet.until("the queue was not filled", 10.0, queued=room)
        told += await caller.many(stage.chats(stage.count(12)))
        await fleet.fault_all("none")
    told += [task.result() for task in inside]
    return judge_full(Full(told, places + room, await caller.ask(stage.writer.chat())))


# -- who may not come in ----------------------------------------------------------------------------------------------


async def bad_input(stage: Stage) -> list[Figure]:
    """Requests of every bad kind; and a good one."""
    fleet, caller = stage.fleet, stage.caller
    await fleet.set_policy({"limits": {"body_bytes": BODY_BYTES}})
    chat = stage.writer.chat()
    deep = b'{"model":"tiny","messages":' + b"[" * 100 + b"]" * 100 + b"}"
    long = {**chat, "messages": [{"role": "user", "content": "word " * (BODY_BYTES // 5 + 1)}]}
    tries: tuple[tuple[str, bytes | Mapping[str, Any], dict[str, str], tuple[int, str]], ...] = (
        ("half a JSON object", b'{"model": "tiny"', {}, (400, "invalid_json")),
        ("a list", b"[]", {}, (400, "invalid_json")),
        ("NaN", b'{"model": "tiny", "messages": [], "temperature": NaN}', {}, (400, "invalid_json")),
        ("nested a hundred deep", deep, {}, (400, "limit_exceeded")),
        ("a negative max_tokens", {**chat, "max_tokens": -1}, {}, (400, "invalid_value")),
        ("an unknown class", chat, {"X-Headrace-Priority": "royal"}, (400, "invalid_priority")),
        ("a time that is none", chat, {"X-Headrace-Timeout-Ms": "soon"}, (400, "invalid_value")),
        ("an unknown model", {**chat, "model": "nobody-serves-this"}, {}, (404, "model_not_found")),
        ("a body that is too long", long, {}, (413, "request_too_large")),
        ("a compressed body", b"x", {"Content-Encoding": "gzip"}, (415, "unsupported_encoding")),
        ("a form", b"x", {"Content-Type": "multipart/form-data; boundary=b"}, (415, "unsupported_media_type")),
        ("headers that are too long", chat, {"X-Long": "x" * 20_000}, (431, "headers_too_large")),
    )
    before = await fleet.generations()
    asked: list[Asked] = []
    for name, body, headers, wanted in tries:
        told = await caller.ask(body, headers)
        asked.append(Asked(name, (told.status, told.code), wanted))
    told = await caller.ask(b"", method="GET")
    asked.append(Asked("GET of a path for POST", (told.status, told.code), (405, "method_not_allowed")))
    for name, raw, wanted in (
        ("a malformed request line", b"POST\r\n\r\n", (400, "bad_request")),
        ("two lengths", _raw(b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{}"), (400, "bad_request")),
        (
            "length and chunks",
            _raw(b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"{}"),
            (400, "bad_request"),
        ),
        ("HTTP/2.0", b"GET /v1/models HTTP/2.0\r\nHost: a\r\n\r\n", (505, "http_version_not_supported")),
    ):
        asked.append(Asked(name, await _answer_to(fleet.url, raw), wanted))
    return judge_bad_input(BadInput(asked, await fleet.generations() - before, await caller.ask(chat)))


def _raw(fields: bytes, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n%s\r\n%s" % (CHAT.encode(), fields, body)


async def _answer_to(url: str, raw: bytes) -> tuple[int, str]:
    """Status and error code that these bytes are answered with; (0, "") for none."""
    where = urlsplit(url)
    async with asyncio.timeout(RAW_S):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(raw)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(min(int(length[1]), RAW_BYTES)) if length else b""
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return 0, ""
        finally:
            writer.close()
    words = head.split(None, 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    try:
        return status, str(orjson.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return status, ""


async def closed_doors(stage: Stage) -> list[Figure]:
    """Paths of engines and operators asked of the data listener, and changes asked for without a token."""
    fleet, caller = stage.fleet, stage.caller
    for_others = ("/metrics", "/admin/v1/fleet", "/dashboard", "/load", "/pause", "/sleep", "/update_weights",
                  "/collective_rpc", "/v1/load_lora_adapter", "/v1/../metrics", "//v1/models",
                  "/v1/models%2f..%2f..%2fmetrics")  # fmt: skip
    before = {name: int(state["generations_total"]) for name, state in (await fleet.states()).items()}
    paths = []
    for path in for_others:
        for method, body in (
            ("GET", b""),
            ("POST", b"{}"),
        ):  # one of them is what the path is asked by where it is open
            fields = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            paths.append(Asked(f"{method} {path}", await _answer_to(fleet.url, fields.encode() + body), (404, "")))
    changes = []
    for method, call in (
        ("PUT", "policy"), ("POST", "workers/short-1:drain"), ("POST", "workers/short-1:eject"), ("POST", "keys"),
        ("POST", "policy:rollback"),
    ):  # fmt: skip
        status, _, _ = await fleet.call(method, call, b"{}", token=False, headers={"If-Match": "*"})
        changes.append(Asked(call, (status, ""), (401, "")))
    await caller.ask(stage.writer.chat())  # the engines are there, and count
    after = await fleet.states()
    through = sum(int(state["generations_total"]) - before[name] for name, state in after.items()) - 1
    return judge_doors(Doors(paths, changes, through))
