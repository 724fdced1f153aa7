"""What operators reach the gateway by, put together: the policy store, orders to workers, and the record of changes."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.admin.access import VISITOR
from gateway.admin.views import View, story_view
from gateway.audit import AuditLog
from gateway.events import Events
from gateway.history import History
from gateway.metrics import BUDGETS_TUNED, POLICY_GUARDED, POLICY_REJECTED
from gateway.orders import Orders, OrdersError
from gateway.policy_journal import Journal
from gateway.policy_seed import GUARDED
from gateway.policy_shared import SharedPolicy
from gateway.policy_store import LAG_S, Current, PolicyStore
from gateway.recent import Recent, Story
from gateway.simulation import Simulator
from gateway.start import StartError, background
from gateway.stories import Stories
from gateway.traffic import Traffic
from gateway.trials import Trial, Trials
from gateway.tuning import Tuning, change_view
from gateway.upkeep import keep_doing
from policies.guards import FleetFacts, WorkerFact
from policies.work import preset_for

if TYPE_CHECKING:
    from aiohttp import web

    from gateway.dispatcher import Dispatcher
    from gateway.fleet_sync import FleetSync
    from gateway.log import Log
    from gateway.metrics import Metrics
    from gateway.redis_link import RedisLink
    from gateway.scheduling.listeners import Watch
    from gateway.scheduling.model import WorkerChange
    from gateway.settings import Settings
    from policies.revisions import Revision
    from policies.tuning import BudgetChange

MAX_TOLD = 20  # problems of one document in a log line


class Control:
    """The operators' side of one gateway. `adopt` is called with every new revision once it is current.

    There must be a policy before there is a scheduler, so this is made first and learns of the rest by `know`.
    """

    dispatcher: Dispatcher
    fleet: FleetSync
    orders: Orders
    stories: Stories | None = None
    tuning: Tuning | None = None
    _recent: Recent

    def __init__(
        self,
        settings: Settings,
        log: Log,
        link: RedisLink | None,
        metrics: Metrics,
        adopt: Callable[[Current], None],
    ) -> None:
        self.metrics = metrics
        self.events = Events()
        self._settings = settings
        self._log = log
        self._link = link
        self._adopt = adopt
        self._reloads: set[asyncio.Task[bool]] = set()
        self.audit = AuditLog(self._kept("audit.jsonl"))
        self.history = History()
        self.traffic = Traffic(file=self._kept(f"traffic-{settings.fleet}.jsonl"))
        self.simulator = Simulator()
        self._name = replica_name()
        self.trials = Trials(link, settings.fleet, self._name, now=time.time, held=self._held, on_end=self._trial_ended)
        self.policy = self._open_store()

    def _kept(self, name: str) -> Path | None:
        """A file of the state directory; None where nothing is to be kept."""
        return None if self._settings.ephemeral else self._settings.state_dir / name

    def _open_store(self) -> PolicyStore:
        file = self._kept(f"policy-{self._settings.fleet}.jsonl")
        shared = None if self._link is None else SharedPolicy(self._link, self._settings.fleet, self._name)
        try:
            return PolicyStore(
                self._settings.policy,
                self._adopted,
                journal=None if file is None else Journal(file),
                shared=shared,
                facts=self.facts,
                on_reject=self._refused,
            )
        except OSError as error:
            raise StartError(f"cannot read {error.filename}: {error.strerror}") from error

    def watch(self, recent: Recent) -> Watch:
        """Who hears of leases: what tunes pools' budgets by them, and the recent requests."""
        self._recent = recent
        self.tuning = Tuning(self.policy.current(), recent, self._tuned)
        self.metrics.gauges.budgets = self.tuning.budgets
        return self.tuning

    def know(self, dispatcher: Dispatcher, fleet: FleetSync) -> None:
        """What exists only once there is a policy."""
        self.dispatcher = dispatcher
        self.fleet = fleet
        # Redis is the truth where there is one; a file of this host would bring back what was taken off elsewhere.
        file = self._kept(f"orders-{self._settings.fleet}.json") if self._link is None else None
        self.orders = Orders(dispatcher, self._link, self._settings.fleet, file)
        if self._link is not None:
            self.stories = Stories(self._link, self._settings.fleet, self.policy.replica, self.own_story)

    async def start(self, stack: AsyncExitStack) -> None:
        """Agree with the other replicas and begin to watch. Raises `StartError`."""
        await self.traffic.load()
        await self.policy.start()
        stack.push_async_callback(self.policy.leave)
        stack.push_async_callback(self.traffic.flush)
        try:
            await self.orders.start()
        except OrdersError as error:
            raise StartError(str(error)) from error
        if self.stories is not None:
            background(stack, keep_doing(self.stories.keep_writing, "write-stories"), "write-stories")
        for work, name in (
            (self.policy.watch, "watch-policy-file"),
            (self.policy.follow, "follow-policy"),
            (self.orders.follow, "follow-orders"),
            (self.traffic.keep_writing, "write-traffic"),
            (self.trials.follow, "follow-trial"),
            (self._tune, "tune-budgets"),
        ):
            background(stack, keep_doing(work, name), name)

    def reload(self) -> None:
        """Read the policy file now; what cannot be used is logged and changes nothing."""
        task = asyncio.get_running_loop().create_task(self.policy.reload(), name="reload-policy")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def warning(self) -> str:
        """What is wrong with this replica's policy, and yet no reason not to serve by it; empty for nothing."""
        lag_s = self.policy.lag_s()
        if lag_s <= LAG_S:
            return ""
        why = self.policy.refused_remote or "Redis was not heard"
        held = self.policy.current().revision.number
        return f"policy revision {held} may be behind the fleet's since {lag_s:.0f} s ({why})"

    def facts(self) -> FleetFacts:
        """What guard rails protect now."""
        fleet: FleetSync | None = getattr(self, "fleet", None)
        specs = [known.spec() for known in fleet.workers().values()] if fleet is not None else []
        workers = [
            WorkerFact(
                spec.id,
                spec.pool,
                spec.models,
                spec.max_num_seqs if spec.max_num_seqs is not None else preset_for(spec.preset).max_num_seqs,
                spec.kv_tokens,
            )
            for spec in specs
        ]
        return FleetFacts(tuple(workers), self.traffic.asked_models())

    def own_story(self, request_id: str) -> View | None:
        """Why a request of this gateway went where it did, or why it waits; None where it is not remembered."""
        story = self._recent.find(request_id)
        ended = story is not None and story.record is not None
        waiting = None if ended else self.dispatcher.waiting(request_id)
        if story is None and waiting is None:
            return None
        classes = [one.name for one in self.policy.current().revision.policy.classes]
        return story_view(request_id, story or Story(), classes, waiting)

    async def story(self, request_id: str) -> Mapping[str, Any] | None:
        """The same whichever gateway served it."""
        found = self.own_story(request_id)
        if found is not None or self.stories is None:
            return found
        return await self.stories.find(request_id)

    async def note(
        self,
        request: web.Request,
        action: str,
        target: str,
        result: str,
        detail: Mapping[str, Any],
        author: str = "",
    ) -> None:
        """Write down a change, or one that was refused: in the audit log, the event log, and to who listens."""
        visitor = request[VISITOR]
        role = str(visitor.role) if visitor.role is not None else ""
        who = author or role
        entry = await asyncio.to_thread(self.audit.note, who, role, visitor.peer, action, target, result, detail)
        self._log.event("audit", **entry)
        if self.audit.error is not None:
            self._log.event("audit_not_kept", why=self.audit.error)
        self.events.put("audit", lambda: entry)

    @property
    def budgets(self) -> Mapping[str, int]:
        """The largest budgets at home in the pools that are tuned, as they are now."""
        return {} if self.tuning is None else self.tuning.budgets

    async def _tune(self) -> None:
        if self.tuning is not None:
            await self.tuning.run(self.dispatcher.snapshot)

    def _tuned(self, change: BudgetChange) -> None:
        """A pool's budget was moved."""
        assert self.tuning is not None
        self.metrics.gauges.budgets = self.tuning.budgets
        self.metrics.count(BUDGETS_TUNED, change.pool)
        self._log.event("budget_tuned", **change_view(change))
        self.events.put("budget", lambda: change_view(change))

    def worker_changed(self, change: WorkerChange) -> None:
        """Tell who listens."""
        self.events.put("worker", lambda: {"worker": change.worker, "state": str(change.state), "why": change.why})

    def _adopted(self, current: Current) -> None:
        self._adopt(current)
        if self.tuning is not None:
            self.tuning.adopt(current)
            self.metrics.gauges.budgets = self.tuning.budgets
        revision = current.revision
        self.trials.adopted(revision)
        self._log.event(
            "policy_adopted",
            revision=revision.number,
            digest=revision.digest,
            source=revision.source,
            author=revision.author,
        )
        self.events.put(
            "policy",
            lambda: {
                "number": revision.number,
                "digest": revision.digest,
                "source": revision.source,
                "author": revision.author,
                "note": revision.note,
                "replica": self.policy.replica,
            },
        )

    def _held(self) -> Revision:
        return self.policy.current().revision

    def _trial_ended(self, trial: Trial, why: str) -> None:
        """A policy is tried no more."""
        self._log.event("policy_trial_ended", mode=str(trial.mode), digest=trial.revision.digest, why=why)
        self.events.put("policy", lambda: {"trial_ended": str(trial.mode), "digest": trial.revision.digest, "why": why})

    def _refused(self, why: str, problems: list[str]) -> None:
        """A content of the policy file is not taken over."""
        self.metrics.count(POLICY_GUARDED if why == GUARDED else POLICY_REJECTED)
        self._log.event(why, source="file", problems=problems[:MAX_TOLD])
        self.events.put("policy", lambda: {"refused": why, "source": "file", "problems": problems[:MAX_TOLD]})


def replica_name() -> str:
    """A name for this process among the gateways of the fleet, new with every start."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(3)}"
