"""Instances that outlive their gateway, and the folder in which the next gateway finds them."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO

import msgspec

from headway.engine.servers.launcher import NOTED_FLAG
from headway.engine.servers.server_command import HOST, ServerCommand
from headway.engine.servers.server_process import GRACE_S, Server, error_told
from headway.errors import ConfigError, RecordError, UpstreamError
from headway.json_file import read_json, write_json

CODE_UNSEEN = 256
"""Stands for the unknown exit code of a process started by another gateway; no process ends with it."""
_STATE, _LOCK = "instances.json", "lock"
LOCK_PATIENCE_S = 1.0
_LAST_BYTES = 64 << 10
_POLL_S = 0.05
_OPEN_TO_OTHERS = 0o077


class KnownProcess(msgspec.Struct, frozen=True):
    """A process identified by its id and start time, since ids are reused."""

    pid: int
    started: str

    @property
    def is_running(self) -> bool:
        """Whether the process still runs."""
        return process_start(self.pid) == self.started != ""


class KeptInstance(KnownProcess, frozen=True):
    """An instance's process, its port, a digest of its start, and where its log begins.

    `users` are the gateways that use it; some may be gone. `ends`: the one remaining user is ending the instance.
    """

    port: int
    command: str
    log_start: int
    users: tuple[KnownProcess, ...] = ()
    ends: bool = False

    def used_by(self, gateway: KnownProcess) -> KeptInstance:
        """This instance with one more user. Raises UpstreamError if another gateway is ending it."""
        users = tuple(user for user in self.users if user.is_running and user != gateway)
        if self.ends and users:
            raise UpstreamError("another gateway is ending it; then it can be started again")
        return msgspec.structs.replace(self, users=(*users, gateway), ends=False)

    def left_by(self, gateway: KnownProcess) -> KeptInstance:
        """This instance with one user fewer. The last user stays listed until it has ended the instance."""
        users = tuple(user for user in self.users if user.is_running and user != gateway)
        return msgspec.structs.replace(self, users=users or (gateway,), ends=not users)


class _State(msgspec.Struct):
    """The folder's contents. `api_key` is the instances' key; `adapters` were loaded through a gateway."""

    api_key: str | None = None
    instances: dict[str, KeptInstance] = {}
    adapters: dict[str, tuple[str, bytes]] = {}


@dataclass(frozen=True, slots=True)
class Start:
    """How an instance is started, except for its port. `environment` extends that of this process."""

    program: Sequence[str]
    command: ServerCommand
    environment: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Digest that is equal only for starts of equal instances."""
        said = (self.command.arguments, sorted(self.environment.items()))
        return sha256(msgspec.json.encode(said)).hexdigest()


class InstancesFolder:
    """Registry of the running instances, shared by all gateways with this folder.

    Each change holds a lock, so that of two gateways in need of an instance one starts it and the other finds it. An
    instance with several users is ended by the last one that no longer needs it. Only this user may read the folder,
    since it holds the instances' key.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError for a folder that other users may read, or whose file is not valid."""
        self.folder = folder
        if not Path("/proc/self/stat").exists():
            raise ConfigError.of("keep_instances", str(folder), "on Linux, where /proc tells processes apart")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
        except OSError as error:
            raise ConfigError.of(
                "keep_instances", f"{folder} ({error.strerror})", "a folder to write to"
            ) from None
        if found.st_uid != os.geteuid() or found.st_mode & _OPEN_TO_OTHERS:
            whose = f"{folder}, of user {found.st_uid} with mode {found.st_mode & 0o777:o}"
            raise ConfigError.of("keep_instances", whose, f"a folder of user {os.geteuid()} with mode 700")
        self._gateway = KnownProcess(os.getpid(), process_start(os.getpid()))
        self._read()

    def key(self) -> str:
        """The instances' key, made together with the folder."""
        with self._changed() as state:
            state.api_key = state.api_key or secrets.token_urlsafe()
        return state.api_key

    def check(self, starts: Mapping[str, Start]) -> None:
        """Raise ConfigError if an instance runs that none of these starts describes."""
        running = {name: each for name, each in self._read().instances.items() if each.is_running}
        digests = {name: start.digest for name, start in starts.items()}
        others = [name for name, each in running.items() if digests.get(name) != each.command]
        if others:
            raise ConfigError(
                f"in {self.folder} run {', '.join(others)}, started with another model, key or flags, or under names "
                "that are not served now; accepted: the command that started them, another folder, or "
                f"`kill {' '.join(str(running[name].pid) for name in others)}` before"
            )

    def find_or_start(self, name: str, start: Start, prepare: Callable[[set[int]], int]) -> Server:
        """Return the instance of that name; start it if it does not run. O(instances).

        `prepare` is called before a start with the ports of the others, and returns a free port. Raises OSError or
        HeadwayError if the instance cannot be started.
        """
        with self._changed() as state:
            found = state.instances.get(name)
            if found is not None and found.is_running:
                if found.command != start.digest:
                    raise UpstreamError(
                        f"another gateway has started {name} with another model, key or flags"
                    )
                state.instances[name] = found.used_by(self._gateway)
                return _KeptServer(self, name, found, _Found(found), start)
            port = prepare({each.port for each in state.instances.values() if each.is_running})
            log_start, process = _started(start, port, self.log(name))
            kept = KeptInstance(process.pid, process_start(process.pid), port, start.digest, log_start)
            state.instances[name] = kept.used_by(self._gateway)
        assert process.stdin is not None
        with process.stdin as told:
            told.write(b".")
        return _KeptServer(self, name, kept, process, start)

    def let_go(self, name: str, process: KnownProcess) -> bool:
        """Stop using an instance's process. Returns True if no other gateway uses it, so that it is to be ended."""
        with self._changed() as state:
            found = state.instances.get(name)
            if found is None or (found.pid, found.started) != (process.pid, process.started):
                return True
            state.instances[name] = left = found.left_by(self._gateway)
        return left.ends

    def running(self) -> dict[str, int]:
        """Process ids of the running instances, by name."""
        return {name: each.pid for name, each in self._read().instances.items() if each.is_running}

    # ---- adapters ---------------------------------------------------------------------------------------------------

    def adapters(self) -> dict[str, tuple[str, bytes]]:
        """The loaded adapters: name -> path and body of the request that loaded it."""
        return self._read().adapters

    def keep_adapter(self, name: str, asked: tuple[str, bytes] | None) -> None:
        """Record that an adapter was loaded, or (None) unloaded."""
        with self._changed() as state:
            if asked is None:
                state.adapters.pop(name, None)
            else:
                state.adapters[name] = asked

    # ---- the file ---------------------------------------------------------------------------------------------------

    def log(self, name: str) -> Path:
        """The file for an instance's output."""
        return self.folder / f"{name}.log"

    def _read(self) -> _State:
        """Raises ConfigError for an unreadable file, since it may stand for running engines."""
        try:
            return read_json(self.folder / _STATE, _State) or _State()
        except RecordError as error:
            accepted = "a folder as a gateway left it, or an empty one once its instances are gone"
            raise ConfigError.of("keep_instances", str(error), accepted) from None

    @contextmanager
    def _changed(self) -> Iterator[_State]:
        with (self.folder / _LOCK).open("a") as lock:
            self._lock(lock)
            state = self._read()
            yield state
            write_json(self.folder / _STATE, state)

    def _lock(self, lock: IO[str]) -> None:
        """Wait for the lock, usually milliseconds. Raises UpstreamError if its holder hangs."""
        deadline_s = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise UpstreamError(
                        f"another gateway has held {self.folder / _LOCK} for {LOCK_PATIENCE_S:g} s"
                    ) from None
                time.sleep(_POLL_S / 10)


def process_start(pid: int) -> str:
    """Start time of a process in clock ticks of this boot; empty if it does not exist or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError):
        return ""
    return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def _started(start: Start, port: int, log: Path) -> tuple[int, subprocess.Popen[bytes]]:
    """Start a process. Returns where in the log its output begins, and the process.

    The process ends by itself unless it is told that it has been recorded.
    """
    with log.open("ab") as output:
        return output.tell(), subprocess.Popen(
            [*start.program, NOTED_FLAG, *start.command.on_port(port).arguments],
            env={**os.environ, **start.environment},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class _Found:
    """A process that another gateway started: see `server_process.Process`."""

    def __init__(self, kept: KeptInstance) -> None:
        self.pid = kept.pid
        self._kept = kept

    def poll(self) -> int | None:
        return None if self._kept.is_running else CODE_UNSEEN

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = float("inf") if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_S)
        return code


@dataclass(frozen=True, slots=True)
class _Log:
    """The log of an instance from byte `start` on."""

    file: Path
    start: int

    def last_words(self) -> str:
        with suppress(OSError), self.file.open("rb") as log:
            log.seek(max(self.start, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            told = filter(None, map(error_told, reversed(log.read().splitlines())))
            return next(told, "")
        return ""


class _KeptServer(Server):
    """A server that outlives its owner, and may have been started by another gateway."""

    def __init__(
        self,
        folder: InstancesFolder,
        name: str,
        kept: KeptInstance,
        process: _Found | subprocess.Popen[bytes],
        start: Start,
    ) -> None:
        output = _Log(folder.log(name), kept.log_start)
        super().__init__(process, (HOST, kept.port), output, GRACE_S + start.command.drain_s)
        self._let_go = partial(folder.let_go, name, kept)
        self._kept = kept

    def let_go(self) -> bool:
        """See `Server`. Raises OSError or HeadwayError if the folder cannot be updated."""
        return self._let_go()

    def _is_replaced(self) -> bool:
        return process_start(self.pid) not in ("", self._kept.started)
