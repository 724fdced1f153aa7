"""Policies tried out on the admin plane: begin, compare, promote, withdraw."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.admin.access import problem
from gateway.admin.bodies import author_of, read_document, read_object, refused, text_of
from gateway.admin.policy_api import PolicyApi, reply
from gateway.admin.views import revision_view
from gateway.policy_draft import Applied, ConflictError, Draft
from gateway.trials import Mode
from policies.problems import PolicyError
from policies.revisions import MAX_NOTE_CHARS, digest
from policies.splitting import inseparable

if TYPE_CHECKING:
    from gateway.control import Control

MOST_NAMED = 10


class TrialApi:
    """The handlers."""

    def __init__(self, control: Control, policy: PolicyApi) -> None:
        self._control = control
        self._policy = policy

    async def get(self, _: web.Request) -> web.Response:
        """The trial, with its comparison over all gateways."""
        trials = self._control.trials
        return reply({"trial": await trials.view(), "pending": trials.pending})

    async def begin(self, request: web.Request) -> web.Response:
        """Try a document."""
        mode, said = request.query.get("mode", ""), request.query.get("share", "0.1")
        share = _share(said)
        if mode not in set(Mode):
            return problem(400, "invalid_value", "mode must be canary or shadow")
        if share is None:
            return problem(400, "invalid_value", f"share must be more than 0 and at most 1 (100%), got {said[:32]!r}")
        document = await read_document(request)
        try:
            draft = await document.decode()
        except PolicyError as error:
            return refused(error)
        held = self._control.policy.current().revision
        if digest(draft.policy) == held.digest:
            return problem(409, "no_difference", f"revision {held.number} says the same: there is nothing to try")
        if mode == Mode.CANARY:
            fixed = await asyncio.to_thread(inseparable, held.policy, draft.policy)
            if fixed:
                message = (
                    f"these hold for all requests at once: {', '.join(fixed[:MOST_NAMED])}. "
                    "Leave them out of a canary, or try them as a shadow or by simulation"
                )
                return problem(422, "not_separable", message, paths=fixed)
        replaced = await self._control.trials.view()
        share = 1.0 if mode == Mode.SHADOW else share
        try:
            trial = await self._control.trials.start(Mode(mode), share, draft, held)
        except ConflictError as error:
            message = f"{error}, not revision {held.number} any more: compare it with that one and try again"
            return problem(412, "policy_conflict", message, current=revision_view(error.current))
        if trial is None:
            return problem(503, "policy_store_down", "Redis does not answer: the replicas would try different things")
        detail = {"share": share, "digest": trial.revision.digest}
        await self._control.note(request, f"policy.{mode}", held.etag, "ok", detail, draft.author)
        return reply({"trial": await self._control.trials.view(), "replaced": replaced})

    async def promote(self, request: web.Request) -> web.Response:
        """Make what is tried the current revision."""
        trial = self._control.trials.trial
        if trial is None:
            return problem(409, "no_trial", "nothing is being tried")
        said = await read_object(request, "note", "author")
        revision, force = trial.revision, request.query.get("force") in {"1", "true"}
        note = text_of(said, "note", MAX_NOTE_CHARS) or revision.note or f"promoted after a {trial.mode}"
        draft = Draft(revision.policy, revision.text, author_of(request, said), note, "promote")

        async def act() -> Applied:
            return await self._control.policy.apply(draft, trial.base.etag, force=force)

        answer = await self._policy.changed(request, "policy.promote", draft.author, act)
        if answer.status == 200:
            await self._control.trials.withdraw("promoted")
        return answer

    async def withdraw(self, request: web.Request) -> web.Response:
        """End the trial."""
        view = await self._control.trials.view()
        ended = await self._control.trials.withdraw("withdrawn")
        if ended is None:
            return problem(409, "no_trial", "nothing is being tried")
        detail = {"digest": ended.revision.digest}
        await self._control.note(request, "policy.withdraw", ended.base.etag, "ok", detail)
        return reply({"trial": None, "ended": view, "pending": self._control.trials.pending})


def _share(text: str) -> float | None:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None
