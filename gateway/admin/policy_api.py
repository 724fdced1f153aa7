"""The policy on the admin plane: read, check, compare, change, go back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import hdrs, web

from gateway.admin.access import problem
from gateway.admin.bodies import BadBodyError, author_of, read_document, read_object, refused, text_of
from gateway.admin.views import View, policy_state, record_view, revision_view
from gateway.metrics import POLICY_CONFLICTS, POLICY_GUARDED, POLICY_REJECTED
from gateway.policy_draft import Applied, ConflictError, Draft, GuardError, StoreDownError
from gateway.simulation import SimulationError
from policies.diff import Change, diff, lines, text_diff
from policies.document import Policy, json_schema
from policies.guards import Guard, guards
from policies.problems import PolicyError
from policies.revisions import MAX_NOTE_CHARS, Revision, digest, from_record, matches

if TYPE_CHECKING:
    from gateway.control import Control

MAX_LISTED = 500
LISTED = 50
SIMULATED_S = 3600
MAX_AUDITED_LINES = 40


class PolicyApi:
    """The handlers."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._store = control.policy

    # -- reading ---------------------------------------------------------------------------------------------------

    async def get(self, request: web.Request) -> web.Response:
        """The current document, with its ETag."""
        current = self._store.current()
        tag = current.revision.etag
        if any(each.value == tag for each in request.if_none_match or ()):
            answer = web.Response(status=304)
        elif _wants_yaml(request):
            answer = web.Response(text=current.revision.text, content_type="application/yaml")
        else:
            document = current.policy.model_dump(mode="json", by_alias=True)
            state = policy_state(self._store)
            answer = reply({"revision": revision_view(current.revision), "policy": document, "state": state})
        answer.etag = tag
        return answer

    async def schema(self, _: web.Request) -> web.Response:
        """The document's JSON Schema."""
        return reply(json_schema())

    async def state(self, _: web.Request) -> web.Response:
        """The file, the replicas, how far behind this one may be."""
        return reply(policy_state(self._store))

    async def revisions(self, request: web.Request) -> web.Response:
        """The history, the newest first."""
        limit, before = number_of(request, "limit", LISTED), number_of(request, "before", None)
        found = [kept for kept in reversed(self._store.history) if before is None or kept.number < before]
        shown = found[: max(1, min(limit or LISTED, MAX_LISTED))]
        return reply({"revisions": [record_view(kept.record) for kept in shown], "more": len(found) > len(shown)})

    async def revision(self, request: web.Request) -> web.Response:
        """One revision of the history."""
        kept = self._store.history.find(int(request.match_info["number"]))
        if kept is None:
            return problem(404, "not_found", "no such revision in the history of this gateway")
        if _wants_yaml(request):
            return web.Response(text=kept.text, content_type="application/yaml")
        try:
            document: Any = from_record(kept.whole()).policy.model_dump(mode="json", by_alias=True)
        except ValueError:
            document = None  # written by another version: its text still shows
        return reply({"revision": record_view(kept.record), "policy": document, "text": kept.text})

    # -- checking --------------------------------------------------------------------------------------------------

    async def check(self, request: web.Request) -> web.Response:
        """Whether a document could be applied, and what would stand against it."""
        document = await read_document(request)
        try:
            draft = await document.decode()
        except PolicyError as error:
            told = [asdict(one) for one in error.problems]
            return reply({"ok": False, "digest": None, "problems": told, "guards": []})
        found = await self._guards(self._store.current().policy, draft.policy)
        return reply({"ok": True, "digest": digest(draft.policy), "problems": [], "guards": guard_views(found)})

    async def diff(self, request: web.Request) -> web.Response:
        """What a document, or another revision, would change."""
        old = self._revision_of(request, "from")
        new = self._revision_of(request, "to")
        document = await read_document(request)
        named = "sent"
        if document.text:
            try:
                wanted = (await document.decode()).policy
            except PolicyError as error:
                told = [asdict(one) for one in error.problems]
                nothing: View = {"different": None, "changes": [], "lines": [], "text": "", "guards": []}
                return reply({"ok": False, **nothing, "problems": told})
        elif new is not None:
            wanted, named = new.policy, f"revision {new.number}"
        else:
            return problem(400, "missing_parameter", "send a document as the body, or name revisions: ?from=N&to=M")
        start = old or self._store.current().revision
        changes, text = await asyncio.to_thread(_compare, start, wanted, named)
        found = await self._guards(start.policy, wanted)
        return reply(
            {
                "ok": True,
                "problems": [],
                "different": bool(changes),
                "from": revision_view(start),
                "to": revision_view(new) if new is not None and named != "sent" else None,
                "changes": change_views(changes),
                "lines": lines(changes),
                "text": text,
                "guards": guard_views(found),
            }
        )

    async def simulate(self, request: web.Request) -> web.Response:
        """What recorded traffic would have met under a document."""
        last_s = number_of(request, "last", SIMULATED_S) or SIMULATED_S
        document = await read_document(request)
        try:
            draft = await document.decode()
        except PolicyError as error:
            return refused(error)
        control, text = self._control, self._store.current().revision.text
        specs = [known.spec() for known in control.fleet.workers().values()]
        try:
            found = await control.simulator.run(text, draft.text, specs, control.traffic.lines(last_s))
        except SimulationError as error:
            return problem(500 if error.code == "simulation_failed" else 409, error.code, str(error))
        return reply(found)

    # -- changing --------------------------------------------------------------------------------------------------

    async def put(self, request: web.Request) -> web.Response:
        """Make a document current."""
        current = self._store.current().revision
        expected = _if_match(request, current)
        if expected is None:
            message = f'If-Match is missing: send the ETag that you have seen; now it is "{current.etag}"'
            return problem(428, "precondition_required", message, current=revision_view(current))
        document = await read_document(request)
        try:
            draft = await document.decode()
        except PolicyError as error:
            self._control.metrics.count(POLICY_REJECTED)
            await self._control.note(request, "policy.apply", "", "policy_invalid", {"problems": len(error.problems)})
            return refused(error)
        return await self._apply(request, "policy.apply", draft, expected)

    async def rollback(self, request: web.Request) -> web.Response:
        """Bring back the content of an earlier revision, as a new one."""
        said = await read_object(request, "to", "revision", "note", "author")
        current = self._store.current().revision
        wanted = said.get("to", said.get("revision"))
        if wanted is None:
            before = [kept.number for kept in self._store.history if kept.number < current.number]
            wanted = before[-1] if before else None
        if wanted is None:
            return problem(400, "invalid_value", "there is no revision before this one to go back to")
        if type(wanted) is not int:
            return problem(400, "invalid_value", f"to must be the number of a revision, got {ascii(wanted)[:40]}")
        try:
            old = self._store.revision(wanted)
        except PolicyError as error:
            return refused(error)
        if old is None:
            return problem(404, "not_found", f"revision {wanted} is not in the history of this gateway")
        note = text_of(said, "note", MAX_NOTE_CHARS) or f"back to revision {wanted}"
        draft = Draft(old.policy, old.text, author_of(request, said), note, "rollback", wanted)
        return await self._apply(request, "policy.rollback", draft, _if_match(request, current) or "*")

    async def _apply(self, request: web.Request, action: str, draft: Draft, expected: str) -> web.Response:
        force = request.query.get("force") in {"1", "true"}

        async def act() -> Applied:
            return await self._store.apply(draft, expected, force=force)

        return await self.changed(request, action, draft.author, act)

    async def changed(
        self, request: web.Request, action: str, author: str, act: Callable[[], Awaitable[Applied]]
    ) -> web.Response:
        """Carry a change out and answer what became of it; noted, however it ends."""
        note, metrics = self._control.note, self._control.metrics
        try:
            applied = await act()
        except ConflictError as error:
            metrics.count(POLICY_CONFLICTS)
            await note(request, action, error.current.etag, "policy_conflict", {}, author)
            message = f"{error}, not what you have seen: look at it, then send your change with its ETag"
            return problem(412, "policy_conflict", message, current=revision_view(error.current))
        except GuardError as error:
            metrics.count(POLICY_GUARDED)
            await note(request, action, "", "policy_guard", {"guards": [one.rule for one in error.guards]}, author)
            message = f"{error}. Nothing was changed; ?force=1 applies it all the same"
            return problem(409, "policy_guard", message, guards=guard_views(error.guards))
        except StoreDownError as error:
            await note(request, action, "", "policy_store_down", {}, author)
            return problem(503, "policy_store_down", str(error))
        changes = await asyncio.to_thread(diff, applied.before.policy, applied.revision.policy)
        detail: View = {"lines": lines(changes)[:MAX_AUDITED_LINES], "from": applied.before.number}
        if applied.guards:
            detail["forced"] = [one.rule for one in applied.guards]
        result = "ok" if applied.changed else "unchanged"
        await note(request, action, applied.revision.etag, result, detail, author)
        answer = reply(
            {
                "changed": applied.changed,
                "revision": revision_view(applied.revision),
                "changes": change_views(changes),
                "lines": lines(changes),
                "guards": guard_views(applied.guards),
            }
        )
        answer.etag = applied.revision.etag
        return answer

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _guards(self, old: Policy, new: Policy) -> tuple[Guard, ...]:
        return await asyncio.to_thread(guards, old, new, self._control.facts())

    def _revision_of(self, request: web.Request, name: str) -> Revision | None:
        number = number_of(request, name, None)
        if number is None:
            return None
        found = self._store.revision(number)
        if found is None:
            raise BadBodyError(problem(404, "not_found", f"revision {number} is not in the history of this gateway"))
        return found


def _compare(old: Revision, new: Policy, name: str) -> tuple[tuple[Change, ...], str]:
    return diff(old.policy, new), text_diff(old.policy, new, f"revision {old.number}", name)


def _if_match(request: web.Request, current: Revision) -> str | None:
    """What the caller has seen: of several tags the one that is current; None without the field."""
    given = request.headers.get(hdrs.IF_MATCH)
    if given is None:
        return None
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in given.split(",")]
    return next((tag for tag in tags if matches(current, tag)), tags[0])


def _wants_yaml(request: web.Request) -> bool:
    return "yaml" in request.headers.get(hdrs.ACCEPT, "")


def number_of(request: web.Request, name: str, default: int | None) -> int | None:
    """A whole number of the query, `default` where it is not there. Raises `BadBodyError`."""
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise BadBodyError(problem(400, "invalid_value", f"{name} must be a whole number, got {text[:40]!r}"))
    return int(text)


def guard_views(found: tuple[Guard, ...]) -> list[View]:
    """Guard rails for JSON."""
    return [asdict(one) for one in found]


def change_views(changes: tuple[Change, ...]) -> list[View]:
    """Differences for JSON."""
    return [asdict(one) for one in changes]


def reply(value: Mapping[str, Any], status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
