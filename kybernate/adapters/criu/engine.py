"""Dumps and recreates the tree below a container's kyb-init: the recipe of
docs/concepts/criu.md."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate.adapters.container.inits import KernelInits
from kybernate.adapters.criu import container as containers
from kybernate.adapters.criu import (
    ended,
    features,
    holders,
    limits,
    pages,
    record,
    running,
    starving,
)
from kybernate.adapters.criu.checks import imagerights, ipc, looks, undumpable
from kybernate.adapters.criu.container import Container
from kybernate.adapters.criu.net import loans, tcp
from kybernate.dataclass import dataclass
from kybernate.errors import (
    DeadlineError,
    DumpError,
    DumpRefusedError,
    NotFoundError,
    RefusedError,
    RestoreError,
)
from kybernate.lib.deadline import Deadline
from kybernate.ports import DumpState

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from kybernate.ports import Freezer, Inits, Phases

_DUMP = (
    *("dump", "--leave-stopped", "--manage-cgroups=ignore", "--file-locks"),
    *("--tcp-established", "--network-lock", "skip", "--ghost-limit", str(undumpable.GHOST_LIMIT)),
    *("--freeze-cgroup", f"/proc/self/fd/{running.FREEZER}"),
)
_RESTORE = (
    *("restore", "-d", "--leave-stopped", "--manage-cgroups=ignore", "--file-locks"),
    "--tcp-established",
)
_CACHE_WORTH_DROPPING = 8 << 20
"""Bytes. To drop pages that nobody has synced yet writes them out; those are the dump's, not the
container's."""
_FIRST_STDIO = 80


@dataclass(frozen=True, slots=True)
class _How:
    """A restore: whether memory comes later, and whether it stays stopped."""

    lazy: bool
    stopped: bool


class Criu:
    """Implements `kybernate.ports.Dumper`.

    `work` is a folder of the agent's that survives its restarts, for logs and locks. `mount` is
    where the node mounts its cgroups; `inits` tells containers' kyb-inits from others, by default
    by the one that lies beside kyb-enter. `own_network`: each container must have a network of its
    own. Calls come from one event loop, one at a time for a seat.
    """

    def __init__(  # noqa: PLR0913 - all but the first three are for boxes and tests
        self,
        tools: running.Tools,
        freezer: Freezer,
        work: Path,
        mount: Path = Path("/sys/fs/cgroup"),
        proc: Path = Path("/proc"),
        inits: Inits | None = None,
        *,
        own_network: bool = True,
    ) -> None:
        tools.check()
        features.learn(tools)
        self._tools, self._freezer = tools, freezer
        self._check = partial(looks.check, own_network=own_network)
        self._inits = inits or KernelInits(tools.enter.parent, proc)
        self._work, self._mount, self._proc = work, mount, proc
        self._work.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._left: set[asyncio.Task[Any]] = set()
        self._looks: dict[Path, looks.Look] = {}
        # Before anything else, lest a server that dies leaves its tree with zeros.
        self._served = {one.work: one for one in pages.left_by_another(self._work, proc)}
        self._put_back_all()

    def state(self, init: int) -> DumpState:
        """Where the tree is, by kyb-init's word. Raises NotFoundError if it is gone; quick."""
        return containers.state_of(init, self._proc)

    async def check(self, init: int, handle: str, deadline: float) -> tuple[str, ...]:
        """Why this tree can't be dumped, as sentences; empty if nothing is known against it."""
        with self._opened(init, handle) as container:
            try:
                async with asyncio.timeout(deadline):
                    problems, look = await asyncio.to_thread(self._check, container)
            except TimeoutError as error:
                raise DeadlineError("To look at the tree took too long.") from error
            if look is not None:
                self._looks[container.work] = look
            return problems

    async def dump(
        self, init: int, handle: str, images: Path, deadline: float, *, continues: bool = False
    ) -> Phases:
        """Write the tree, frozen before and after; see the port."""
        until, began = Deadline(deadline), time.monotonic()
        with self._opened(init, handle) as container:
            await container.free(running.ENTERED, self._tools.criu, until)
            tree = self._dumpable(container)
            look = self._looks.pop(container.work, None)
            options = await asyncio.to_thread(looks.ready, container, tree, images, look)
            options += ["--skip-in-flight"] if continues else []
            await container.hold(until)
            held = time.monotonic()
            code = await self._dump(container, images, options, until)
            if code:
                await self._dump_failed(container, code, until)
            if container.tree() is None or not await container.stands(until):
                raise DumpError("The tree didn't stay frozen behind CRIU's dump.", suspect=True)
        return {"hold": held - began, "criu": time.monotonic() - held}

    async def end(self, init: int, handle: str, deadline: float) -> None:
        """Commit: kill every process of the tree; see the port."""
        until = Deadline(deadline)
        with self._opened(init, handle) as container:
            await container.free(running.ENTERED, self._tools.criu, until)
            if container.state is DumpState.RUNNING:
                raise DumpError(f"The tree of process {init} was not dumped; end its container.")
            half = container.state is DumpState.PARKED
            if not half:
                await asyncio.to_thread(ipc.remove, container)
            await (self._undo(container, until) if half else container.killed(self._freezer, until))
            await container.parked(until)

    async def keep(self, init: int, handle: str, deadline: float) -> None:
        """Abort: the tree stands frozen as before the dump; see the port."""
        until = Deadline(deadline)
        with self._opened(init, handle) as container:
            await container.free(running.ENTERED, self._tools.criu, until)
            self._looks.pop(container.work, None)
            if container.tree() is None:
                raise DumpError(f"There is no tree below process {init} to keep.", suspect=True)
            if not container.is_frozen():
                await self._freezer.freeze(handle, until.left)
            try:
                await asyncio.to_thread(tcp.heal, container)
            except OSError as error:
                raise DumpError(
                    f"Connections are left in repair mode: {error}", suspect=True
                ) from error
            self._continue(container, ())
            if container.state is DumpState.HOLDING:
                await container.resume(until)

    async def restore(
        self,
        init: int,
        handle: str,
        images: Path,
        deadline: float,
        *,
        lazy: bool = False,
        stopped: bool = False,
    ) -> Phases:
        """Recreate the tree in its container, frozen; see the port."""
        until, began = Deadline(deadline), time.monotonic()
        written = record.Record.read(images)
        with self._opened(init, handle) as container:
            await self._clear(container, until)
            await asyncio.to_thread(_see_rights, container, images)
            groups = limits.groups_of(init, self._mount, self._proc)
            await asyncio.to_thread(limits.lift, groups, container.work)
            try:
                ready = time.monotonic()
                cached = limits.cached(groups)
                how = _How(lazy=lazy, stopped=stopped)
                done = await self._bring_back(container, images, written, until, how)
                if limits.cached(groups) - cached > _CACHE_WORTH_DROPPING:
                    await asyncio.to_thread(forget_pages, images)
            finally:
                await asyncio.to_thread(limits.put_back, container.work)
        return {"clear": ready - began, "criu": done - ready, "settle": time.monotonic() - done}

    async def pages_done(self, init: int, deadline: float) -> None:
        """Return once all memory of a lazy restore is in; see the port."""
        until = Deadline(deadline)
        try:
            with self._opened(init, "") as container:
                await self._pages_done(container, until)
        except NotFoundError:
            for work in [one for one in self._served if one.name.startswith(f"{init}-")]:
                self._served.pop(work).end()
            raise

    # --- parts --------------------------------------------------------------------------------

    async def _pages_done(self, container: Container, until: Deadline) -> None:
        served = self._served.get(container.work) or pages.Served(container.work)
        if not served.begun:
            return
        well = await served.ended(until, container.pidfd)
        self._served.pop(container.work, None)
        if well:
            served.let_go()
            return
        # What is missing must be seen by nobody, not as zeros either.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(container.pidfd, signal.SIGKILL)
        self._reap(served.outlive(os.dup(container.pidfd)))
        said = " / ".join(running.complaints(container, "pages.log")[:3])
        raise RestoreError(f"CRIU's lazy-pages ended too soon: {said or 'it was killed'}")

    @contextmanager
    def _opened(self, init: int, handle: str) -> Iterator[Container]:
        with Container.opened(self._inits, init, handle, self._work, self._proc) as container:
            yield container

    def _put_back_all(self) -> None:
        for folder in self._work.iterdir():
            with suppress(OSError, ValueError):
                limits.put_back(folder)
            with suppress(OSError, ValueError, NotFoundError, RefusedError):
                loans.take_back_left(folder, self._proc)
        ended.forget(self._work, self._proc)

    def _dumpable(self, container: Container) -> int:
        tree = container.tree()
        if tree is None or container.state is DumpState.PARKED:
            raise DumpError(f"There is no tree below process {container.init} to dump.")
        if not container.is_frozen():
            raise DumpError(f"The tree in {container.handle} isn't frozen; freeze it first.")
        if pages.Served(container.work).well is None:
            raise DumpError(f"Memory of {container.init}'s tree is on its way in; wait for it.")
        return tree

    async def _dump(
        self, container: Container, images: Path, options: list[str], until: Deadline
    ) -> int:
        run = running.Run(
            argv=[*_DUMP, *options],
            images=images,
            log="dump.log",
            cgroups=_roots(self._mount),
            freezer=container.handle,
            but_ipc=record.Record.read(images).ipc,
        )
        process = await running.start(self._tools, container, run)
        self._reap(process.wait())
        return await running.ended(process, until, "dump")

    async def _dump_failed(self, container: Container, code: int, until: Deadline) -> None:
        """The tree is as before: CRIU saw to it, or was killed. Raises DumpError always."""
        said = running.complaints(container, "dump.log")
        suspect = not await container.stands(until)
        if suspect:
            with suppress(NotFoundError, DeadlineError):
                await self._freezer.freeze(str(container.handle), until.left)
        elif container.state is DumpState.HOLDING:
            await container.resume(until)
        if not suspect and (reason := undumpable.from_log(said)):
            raise DumpRefusedError(reason)
        tail = " / ".join(said[:3]) or _silence("dump", code)
        raise DumpError(f"CRIU's dump failed: {tail}", suspect=suspect)

    async def _clear(self, container: Container, until: Deadline) -> None:
        """Ends what an earlier restore left, half-made processes and CRIU itself."""
        if container.state is not DumpState.PARKED:
            raise RestoreError(
                f"The tree of process {container.init} is {container.state}, not parked."
            )
        container.handle.mkdir(exist_ok=True)
        await self._undo(container, until)
        await container.free(running.ENTERED, self._tools.criu, until)
        await self._forget_pages(container, until)

    async def _undo(self, container: Container, until: Deadline) -> None:
        """Nothing of what was being recreated is left, and nobody else has heard of it."""
        await asyncio.to_thread(tcp.hush, container)
        await container.killed(self._freezer, until)

    async def _forget_pages(self, container: Container, until: Deadline) -> None:
        """The tree that memory was on its way to is gone."""
        before = self._served.pop(container.work, None)
        if before is not None:
            before.end()
        await pages.clear(container.work, until)

    async def _bring_back(
        self,
        container: Container,
        images: Path,
        written: record.Record,
        until: Deadline,
        how: _How,
    ) -> float:
        """The tree, frozen; when CRIU was done with it."""
        await asyncio.to_thread(loans.lend, container, written.addresses)
        try:
            await self._restore(container, images, written, until, lazy=how.lazy)
            done = time.monotonic()
            await self._freezer.freeze(str(container.handle), until.left)
            await asyncio.to_thread(record.put_back, container, written)
            # What CRIU recreated stands stopped as well.
            if not how.stopped:
                self._continue(container, written.stopped)
            await container.resume(until)
        finally:
            await asyncio.to_thread(loans.take_back, container)
        return done

    async def _restore(
        self,
        container: Container,
        images: Path,
        written: record.Record,
        until: Deadline,
        *,
        lazy: bool,
    ) -> None:
        with ExitStack() as stack:
            options, keep = _stdio(container, written, stack)
            # In another container files have other numbers; links are refused in both.
            same = container.home == written.home
            options += ["--same-files"] if same else []
            served = await self._serve(container, images, until) if lazy else None
            run = running.Run(
                argv=[*_RESTORE, *options, *(["--lazy-pages"] if lazy else [])],
                images=images,
                log="restore.log",
                keep=keep,
                cgroups=_homes(container, self._mount, self._proc),
                last_pid=written.highest + 1,
                die_with_agent=True,
                but_ipc=written.ipc,
            )
            groups = limits.groups_of(container.init, self._mount, self._proc)
            memory = starving.Watch(groups)
            process = await running.start(self._tools, container, run)
            try:
                code = await running.ended(process, until, "restore")
            except BaseException:
                with suppress(ProcessLookupError):
                    process.kill()
                await self._undo(container, Deadline(1.0))
                raise
        what, log = "restore", "restore.log"
        if not code and served is not None:
            code, what, log = int(not await served.hold(until)), "lazy-pages", "pages.log"
        if code:
            await self._undo(container, Deadline(max(1.0, until.left)))
            await self._forget_pages(container, Deadline(max(1.0, until.left)))
            said = running.complaints(container, log)
            killed = memory.killed(code)
            why = " / ".join(said[:3]) or _silence(what, code)
            starved = killed or starving.lacked(said)
            raise RestoreError(
                f"CRIU's restore failed: {why}",
                starved=starved,
                killed=killed,
                refused=not killed and running.refused(said, same=same),
            )

    async def _serve(self, container: Container, images: Path, until: Deadline) -> pages.Served:
        served, process = await pages.serve(
            self._tools, container, images, _roots(self._mount), until
        )
        self._served[container.work] = served
        self._reap(pages.reaped(process))
        self._reap(served.seen_out())
        return served

    def _reap(self, end: Coroutine[Any, Any, Any]) -> None:
        """Sees a process's end, also if nobody waits for it any more."""
        task = asyncio.ensure_future(end)
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    def _continue(self, container: Container, stopped: Sequence[int]) -> None:
        """Takes back the stop that CRIU ended with, but for those that were stopped before."""
        for pid in container.pids():
            with suppress(ProcessLookupError, NotFoundError):
                if not stopped or container.number_inside(pid) not in stopped:
                    os.kill(pid, signal.SIGCONT)


def _silence(what: str, code: int) -> str:
    """What is known of a CRIU that told no error; 128 and more are a signal that killed it."""
    return f"its {what} ended with {code} and told no error"


def _see_rights(container: Container, images: Path) -> None:
    try:
        imagerights.check(container, images)
    except OSError as error:
        raise RestoreError(f"what the tree may do can't be read: {error}") from error


def _roots(mount: Path) -> list[Path]:
    """The node's own cgroups: there no limit and no end of the agent's container hits CRIU."""
    if (mount / "cgroup.controllers").exists():
        return [mount]
    return [path for path in mount.iterdir() if path.is_dir() and not path.is_symlink()]


def _homes(container: Container, mount: Path, proc: Path) -> list[Path]:
    """The container's cgroups, and the freezer's below it: the tree is born there."""
    groups = limits.groups_of(container.init, mount, proc)
    handle = container.handle
    homes = [group for group in groups.values() if group not in (handle, handle.parent)]
    return list(dict.fromkeys([*homes, handle]))


def _stdio(
    container: Container, written: record.Record, stack: ExitStack
) -> tuple[list[str], dict[int, int]]:
    """Options and descriptors by which the tree gets process 1's pipes in place of the old ones."""
    options: list[str] = []
    keep: dict[int, int] = {}
    for number, link in enumerate(written.stdio):
        if not link.startswith("pipe:") or any(link in option for option in options):
            continue
        # Not opened by its link: who opens a FIFO waits for its other end, which is a stranger's.
        opened = holders.duplicate(container.pidfd, number)
        stack.callback(os.close, opened)
        keep[_FIRST_STDIO + number] = opened
        options += ["--inherit-fd", f"fd[{_FIRST_STDIO + number}]:{link}"]
    return options, keep


def forget_pages(images: Path) -> None:
    """Drops the images from the page cache, where they count as the container's memory."""
    for path in images.iterdir():
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
