"""Runs the instances of a `workers.yaml`: starts them in turn and again, and changes one without the others.

Every instance has a slot; a slot has one runner, and for the time of a rolling change a second one beside it. All lives
are kept here and change only through `lifecycle.step`; what is due is asked of `lifecycle.due` after each change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random

from workers.engines.base import Planned
from workers.instances import Instance, WorkersFile
from workers.lifecycle import Event, RestartPolicy, State, due, next_due, step
from workers.preflight import Preflight
from workers.rolling import TIMING, Change, changes, moved, only_timing
from workers.runner import Runner, Surroundings

TAKEN_BACK = "the change was taken back"

log = logging.getLogger("headrace.supervisor")

Check = Callable[[WorkersFile, Collection[int]], Preflight]
"""(file, ports of ours) -> both ledgers."""


@dataclass(slots=True)
class Slot:
    """One instance of the file and who serves for it."""

    wanted: Instance  # as the file has it
    runner: Runner


class Supervisor:
    """All instances of one host. `run` until told to stop; `adopt` another file meanwhile."""

    def __init__(
        self,
        around: Surroundings,
        check: Check,
        rng: Random,
        on_change: Callable[[Runner, Event, str], None],
        restarts: RestartPolicy | None = None,
    ) -> None:
        self._around = around
        self._check = check
        self._rng = rng
        self._on_change = on_change
        self._restarts = restarts or RestartPolicy()
        self._slots: dict[str, Slot] = {}
        self._runners: dict[str, Runner] = {}  # by worker id; those of slots, and those coming up beside or leaving
        self._timer: asyncio.TimerHandle | None = None
        self._pumping = False
        self._changing = asyncio.Lock()
        self._newest = around.file  # the file that was wanted last, even while an older one is being adopted
        self._news = asyncio.Event()  # a life or the newest file has changed
        self._closing = False

    @property
    def runners(self) -> tuple[Runner, ...]:
        """Everybody there is now."""
        return tuple(self._runners.values())

    @property
    def all_ready(self) -> bool:
        """Whether every instance of the file serves."""
        return all(slot.runner.life.state is State.READY for slot in self._slots.values())

    def start(self) -> None:
        """Begin to bring up everything in the file."""
        for spec in self._around.file.instances:
            self._slots[spec.name] = Slot(spec, self._add(spec.name, spec))
        self._pump()

    async def close(self, *, drain: bool = True) -> None:
        """End everything, all at once; returns when nothing runs. Calling it again without drain hurries."""
        self._closing = True
        if not drain:
            for runner in self.runners:
                runner.kill()
        await asyncio.gather(*(runner.stop(drain=drain) for runner in self.runners))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def adopt(self, file: WorkersFile) -> list[str]:
        """Make another file the wanted one, instance by instance; untouched ones stay as they are.

        Returns what went wrong, one line each: a file that fails its checks changes nothing, and an instance that
        does not come up in its new form goes on, or comes back, in its old one. While an earlier file is being
        adopted this one waits for it; what the earlier one changes and this one does not want is taken back at once.
        """
        checked = await self._checked(file)
        if checked.faults:
            return list(checked.faults)
        self._newest = file
        self._tell_news()
        waited = self._changing.locked()
        async with self._changing:
            if waited and (checked := await self._checked(file)).faults:
                return list(checked.faults)
            self._around = replace(self._around, file=file, memory=checked.memory)
            for slot in self._slots.values():
                if slot.wanted in file.instances:
                    slot.runner.planned = checked.memory.planned(slot.wanted.name)
            wrong = []
            for change in changes({name: slot.wanted for name, slot in self._slots.items()}, file):
                if self._closing:
                    break
                if (fault := await self._change(change)) is not None:
                    wrong.append(fault)
            return wrong

    async def _checked(self, file: WorkersFile) -> Preflight:
        ours = {port for runner in self.runners for port in runner.ports}
        return await asyncio.to_thread(self._check, file, ours)

    async def _change(self, change: Change) -> str | None:
        name, spec = change.name, change.spec
        if spec is None:
            slot = self._slots.pop(name)
            await self._remove(slot.runner)
            return None
        if name not in self._slots:
            self._slots[name] = Slot(spec, self._add(name, spec))
            self._pump()
            return None
        slot = self._slots[name]
        if only_timing(slot.wanted, spec):
            slot.runner.spec = slot.runner.spec.model_copy(update={field: getattr(spec, field) for field in TIMING})
            slot.wanted = spec
            return None
        if slot.runner.life.state is not State.READY:
            # Nobody is served by it, so there is nothing to move and nothing to return to.
            await self._remove(slot.runner)
            slot.wanted, slot.runner = spec, self._add(name, spec)
            self._pump()
            return None
        fresh_id = f"{name}:2" if slot.runner.id == name else name
        beside = await self._beside(spec, fresh_id)
        return await (self._in_place(slot, spec) if beside is None else self._roll(slot, spec, fresh_id, *beside))

    # -- a rolling change of one instance --------------------------------------------------------------------------

    async def _beside(self, spec: Instance, fresh_id: str) -> tuple[Instance, Planned | None] | None:
        """The instance with ports of its own and its part of the ledger; None without room beside all that runs."""
        apart = moved(spec, [runner.spec for runner in self.runners], self._around.file.shared.ports)
        if apart is None:
            return None
        # Two of them have one name, and ledgers go by names: here everyone goes by the id of its worker.
        named = [runner.spec.model_copy(update={"name": runner.id}) for runner in self.runners]
        all_of_them = (*named, apart.model_copy(update={"name": fresh_id}))
        checked = await self._checked(self._around.file.model_copy(update={"instances": all_of_them}))
        if checked.faults:
            log.info("%s: no room beside the running one: %s", spec.name, checked.faults[0])
            return None
        return apart, checked.memory.planned(fresh_id)

    async def _roll(
        self, slot: Slot, spec: Instance, fresh_id: str, apart: Instance, planned: Planned | None
    ) -> str | None:
        """New beside old; the old one leaves when the new one has done well."""
        old = slot.runner
        fresh = self._add(fresh_id, apart)
        fresh.planned = planned
        if spec.canary_pool is not None:
            fresh.control.pool = spec.canary_pool
        self._pump()
        why = await self._comes_up(spec, fresh)
        if why is None and spec.canary_pool is not None:
            why = await self._does_well(spec, fresh)
        if why is not None:
            await self._remove(fresh)
            return f"{spec.name}: stays as it was; {why}"
        slot.wanted, slot.runner = spec, fresh
        await self._remove(old)
        return None

    async def _in_place(self, slot: Slot, spec: Instance) -> str | None:
        """Old out, new in; back to the old one when the new one does not come up."""
        former, planned = slot.runner.spec, slot.runner.planned
        name = slot.runner.id
        await self._remove(slot.runner)
        slot.runner = self._add(name, spec)
        self._pump()
        why = await self._comes_up(spec, slot.runner)
        if why is None or self._closing:
            slot.wanted = spec
            return None
        await self._remove(slot.runner)
        slot.runner = self._add(name, former)
        slot.runner.planned = planned
        self._pump()
        return f"{spec.name}: is as it was again; {why}"

    async def _comes_up(self, spec: Instance, fresh: Runner) -> str | None:
        """Wait until the new form of an instance is ready; why it is not to be, else."""
        while (state := fresh.life.state) is not State.READY:
            if state in {State.FAILED, State.STOPPED}:
                return f"the new one failed: {fresh.life.why or 'stopped'}"
            if self._form_now(spec) is None:
                return TAKEN_BACK
            await self._news.wait()
        return None

    async def _does_well(self, spec: Instance, fresh: Runner) -> str | None:
        """Let a ready canary serve its pool for its time, then its instance's; why it is not to be, else.

        The time is the newest file's: 0 there ends the canary well, at once.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        while fresh.life.state is State.READY:
            now = self._form_now(spec)
            if now is None:
                return TAKEN_BACK
            left = since + now.canary_s - loop.time()
            if left <= 0:
                fresh.control.tell(None, spec.pool)
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()
        return f"the new one failed: {fresh.life.why or 'stopped'}"

    def _form_now(self, spec: Instance) -> Instance | None:
        """The instance as the newest file has it; None if it no longer wants this process."""
        for one in self._newest.instances:
            if one.name == spec.name and only_timing(one, spec):
                return one
        return None

    # -- lives -----------------------------------------------------------------------------------------------------

    def _add(self, worker_id: str, spec: Instance) -> Runner:
        runner = Runner(worker_id, spec, self._around, self._happened)
        self._runners[worker_id] = runner
        return runner

    async def _remove(self, runner: Runner) -> None:
        await runner.stop()
        del self._runners[runner.id]

    def _happened(self, runner: Runner, event: Event, why: str) -> None:
        now = asyncio.get_running_loop().time()
        runner.set_life(step(runner.life, event, now, self._restarts, self._rng, why))
        self._on_change(runner, event, why)
        self._tell_news()
        self._pump()

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _pump(self) -> None:
        """Carry out what is due, and set the timer for what will be."""
        if self._pumping or self._closing:
            return
        self._pumping = True
        loop = asyncio.get_running_loop()
        try:
            while events := due([runner.life for runner in self.runners], loop.time()):
                for worker_id, event in events:
                    runner = self._runners[worker_id]
                    self._happened(runner, event, "")
                    if event is Event.START:
                        runner.start()
        finally:
            self._pumping = False
        if self._timer is not None:
            self._timer.cancel()
        at = next_due([runner.life for runner in self.runners])
        self._timer = None if at is None else loop.call_at(at, self._pump)
