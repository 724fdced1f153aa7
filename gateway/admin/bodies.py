"""Bodies of admin calls: a policy document with who sends it and why, or a small JSON object."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import hdrs, web

from gateway.admin.access import VISITOR, problem
from gateway.policy_draft import Draft
from policies.document import Policy, parse_policy, policy_from_mapping
from policies.problems import PolicyError, Problem, closest
from policies.revisions import MAX_AUTHOR_CHARS, MAX_NOTE_CHARS

BODY_S = 30.0
JOINERS = frozenset("\u200c\u200d")  # scripts and emoji are written with them
TOO_LARGE = "larger than"  # how the reader's message begins


class BadBodyError(Exception):
    """A body that cannot be used; `answer` says why."""

    def __init__(self, answer: web.Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Document:
    """What was sent: text that is not read yet, or data that is parsed already, and the words around it."""

    text: str | bytes
    data: Mapping[str, Any] | None
    author: str
    note: str

    async def decode(self) -> Draft:
        """The draft it holds. Raises `PolicyError`."""
        # In a thread: a document of the largest size takes longer than streams should wait for the loop.
        policy = await asyncio.to_thread(self._policy)
        text = self.text.decode("utf-8-sig", "replace") if isinstance(self.text, bytes) else self.text
        return Draft(policy, text, self.author, self.note)

    def _policy(self) -> Policy:
        return parse_policy(self.text) if self.data is None else policy_from_mapping(self.data)


async def read_document(request: web.Request) -> Document:
    """The document in a body: YAML or JSON as it is, or inside of `{"policy": …, "note", "author"}`.

    Raises `BadBodyError` for an envelope that is none.
    """
    raw = await read_body(request)
    said: Mapping[str, Any] = request.query
    data: Mapping[str, Any] | None = None
    text: str | bytes = raw
    envelope = _envelope(raw) if request.content_type == "application/json" else None
    if envelope is not None:
        said = {**request.query, **envelope}
        inner = envelope["policy"]
        if isinstance(inner, str):
            text = inner
        elif isinstance(inner, Mapping):
            data = inner
            text = json.dumps(inner, indent=2, ensure_ascii=False)
        else:
            raise BadBodyError(problem(400, "invalid_value", "policy must be a document or its text"))
    return Document(text, data, author_of(request, said), text_of(said, "note", MAX_NOTE_CHARS))


def _envelope(raw: bytes) -> Mapping[str, Any] | None:
    """The body as an envelope, where it is one; documents have no section called `policy`."""
    try:
        found = _parsed(raw)
    except json.JSONDecodeError:
        return None  # the document's own reader says what is wrong, and where
    return found if isinstance(found, Mapping) and "policy" in found else None


async def read_body(request: web.Request) -> bytes:
    """The body. Raises `BadBodyError` for one that is packed, or that does not come."""
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
    if coding.lower() != "identity":
        raise BadBodyError(problem(415, "unsupported_encoding", f"a body is taken as it is, not as {coding[:40]}"))
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        answer = problem(408, "request_timeout", f"the body did not come within {BODY_S:g} s")
        answer.force_close()
        raise BadBodyError(answer) from None
    except web.RequestPayloadError as error:
        raise BadBodyError(problem(400, "invalid_request", "the body cannot be read")) from error


def _parsed(raw: bytes) -> Any:
    """JSON as it was meant: a key that is given twice is refused, and a large number stays what it is.

    Raises `json.JSONDecodeError` for what is not JSON, `BadBodyError` for what two readers would read differently.
    """
    try:
        return json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise BadBodyError(problem(400, "invalid_json", "the body is nested too deep")) from None
    except UnicodeDecodeError as error:
        raise BadBodyError(problem(400, "invalid_json", f"the body is not UTF-8: {error.reason}")) from error
    except ValueError as error:  # a number of thousands of digits
        raise BadBodyError(problem(400, "invalid_json", "the body has a number with too many digits")) from error


def _no_constant(name: str) -> float:
    raise BadBodyError(problem(400, "invalid_json", f"{name} is no number in JSON"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        message = f"the key {ascii(twice)[:80]} is given twice: leave one of the two out"
        raise BadBodyError(problem(400, "invalid_json", message))
    return found


async def read_object(request: web.Request, *known: str) -> Mapping[str, Any]:
    """A JSON object with these members; an empty body is an empty one. Raises `BadBodyError`, also for a member that is
    not known: what is misspelt would be passed over."""
    raw = await read_body(request)
    if not raw.strip():
        return {}
    try:
        found = _parsed(raw)
    except json.JSONDecodeError as error:
        raise BadBodyError(problem(400, "invalid_json", f"the body is not JSON: {error}")) from error
    if not isinstance(found, Mapping):
        raise BadBodyError(problem(400, "invalid_json", "the body must be a JSON object"))
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        meant = closest(unknown, known)
        hint = f"; did you mean {meant}?" if meant is not None else f"; known are {', '.join(known)}"
        raise BadBodyError(problem(400, "invalid_value", f"unknown member {ascii(unknown)[:80]}{hint}"))
    return found


def text_of(said: Mapping[str, Any], name: str, most: int) -> str:
    """A text among the fields of a body, empty when it is not there. Raises `BadBodyError`."""
    value = said.get(name, "")
    if not isinstance(value, str) or len(value) > most:
        raise BadBodyError(problem(400, "invalid_value", f"{name} must be text of at most {most} characters"))
    # It will be shown in terminals, logs and pages: nothing in it may move a cursor or turn text around.
    odd = next((one for one in value if unicodedata.category(one)[0] == "C" and one not in JOINERS), None)
    if odd is not None:
        message = f"{name} has a character that cannot be shown: U+{ord(odd):04X}"
        raise BadBodyError(problem(400, "invalid_value", message))
    return value


def author_of(request: web.Request, said: Mapping[str, Any]) -> str:
    """Who sends it: the name given, else the token's role."""
    role = request[VISITOR].role
    return text_of(said, "author", MAX_AUTHOR_CHARS) or (str(role) if role is not None else "anybody")


def refused(error: PolicyError) -> web.Response:
    """The answer to a document with faults: all of them."""
    first = error.problems[0]
    told = [asdict(one) for one in error.problems]
    count = f"{len(told)} problem{'s' if len(told) > 1 else ''}, nothing was changed. First: {first}"
    if first.message.startswith(TOO_LARGE):
        return problem(413, "request_too_large", count, problems=told)
    unreadable = all(_about_the_whole(one) for one in error.problems)
    return problem(400 if unreadable else 422, "policy_invalid", count, problems=told)


def _about_the_whole(one: Problem) -> bool:
    """Whether a problem is that there is no document to look into."""
    return not one.path
