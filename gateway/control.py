"""What operators reach the gateway by, put together: the policy store and all that watches or records its changes."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gateway.metrics import POLICY_GUARDED, POLICY_REJECTED
from gateway.policy_journal import Journal
from gateway.policy_seed import GUARDED
from gateway.policy_shared import SharedPolicy
from gateway.policy_store import LAG_S, Current, PolicyStore
from gateway.start import StartError, background
from gateway.upkeep import keep_doing
from policies.guards import FleetFacts, WorkerFact
from policies.work import preset_for

if TYPE_CHECKING:
    from gateway.fleet_sync import FleetSync
    from gateway.log import Log
    from gateway.metrics import Metrics
    from gateway.redis_link import RedisLink
    from gateway.settings import Settings

MAX_TOLD = 20  # problems of one document in a log line


class Control:
    """The operators' side of one gateway. `adopt` is called with every new revision once it is current."""

    def __init__(self, settings: Settings, log: Log, link: RedisLink | None, adopt: Callable[[Current], None]) -> None:
        self._log = log
        self._metrics: Metrics | None = None
        self._fleet: FleetSync | None = None
        self._reloads: set[asyncio.Task[bool]] = set()
        self.policy = self._open_store(settings, link, adopt)

    def _open_store(self, settings: Settings, link: RedisLink | None, adopt: Callable[[Current], None]) -> PolicyStore:
        journal = None if settings.ephemeral else Journal(settings.state_dir / f"policy-{settings.fleet}.jsonl")
        shared = None if link is None else SharedPolicy(link, settings.fleet, replica_name())
        try:
            return PolicyStore(
                settings.policy,
                adopt,
                journal=journal,
                shared=shared,
                facts=self._facts,
                on_reject=self._refused,
            )
        except OSError as error:
            raise StartError(f"cannot read {error.filename}: {error.strerror}") from error

    def know(self, metrics: Metrics, fleet: FleetSync) -> None:
        """What exists only once there is a policy."""
        self._metrics = metrics
        self._fleet = fleet

    async def start(self, stack: AsyncExitStack) -> None:
        """Agree with the other replicas and begin to watch."""
        await self.policy.start()
        stack.push_async_callback(self.policy.leave)
        for work, name in ((self.policy.watch, "watch-policy-file"), (self.policy.follow, "follow-policy")):
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

    def _facts(self) -> FleetFacts:
        """What guard rails protect now."""
        specs = [known.spec() for known in self._fleet.workers().values()] if self._fleet is not None else []
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
        return FleetFacts(tuple(workers))

    def _refused(self, why: str, problems: list[str]) -> None:
        """A content of the policy file is not taken over."""
        if self._metrics is not None:
            self._metrics.count(POLICY_GUARDED if why == GUARDED else POLICY_REJECTED)
        self._log.event(why, source="file", problems=problems[:MAX_TOLD])


def replica_name() -> str:
    """A name for this process among the gateways of the fleet, new with every start."""
    return f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(3)}"
