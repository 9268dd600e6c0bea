"""Supervises one task: starts it, writes its output to log files, ends it, and records its end.

It communicates by files in the unit's folder: it reads `launch.json` and later `stop.json` (announced by SIGTERM), and
writes `running.json` before the program starts and `exit.json` when everything has ended. While it runs it holds a lock
on the file `lock`, which also shows its process id.
"""

import fcntl
import os
import select
import time

from mandor.engines.shim import groups, view
from mandor.engines.shim.entry import enter, read_launch
from mandor.engines.shim.kernel import become_subreaper
from mandor.engines.shim.light import close_from, encode, read, replace, signal, try_write_kernel
from mandor.engines.shim.logfile import LogFile, Stream
from mandor.engines.shim.task_user import Refused, TaskUser, find_task_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READY = 3
"""File descriptor of the pipe to the agent; one byte: the program runs."""
KILL_SECONDS_MAX = 30.0
RECORD_TRIES = 120


def supervise(folder: str) -> None:
    """Run the unit in `folder`, unless it has or had a supervisor."""
    os.chdir(folder)
    close_from(READY + 1)
    os.set_inheritable(READY, False)
    if not os.path.exists("launch.json"):
        return  # The start was cancelled.
    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # Another supervisor runs it.
    if os.path.exists("running.json") or os.path.exists("exit.json"):
        return  # It was started before.
    launch = read_launch(".")
    if launch is not None:
        Supervisor(launch).run()


class Supervisor:
    def __init__(self, launch: "dict[str, Any]") -> None:
        self._launch = launch
        self._groups = [group["path"] for group in launch["groups"]]
        self._started_at = 0.0
        self._task = 0
        self._init = 0
        """Process id of the first process of the task's namespaces; 0: there are none."""
        self._held: list[Any] = []
        """Sockets that hold the task's ports on the node."""
        self._over = False
        self._deadline: float | None = None
        self._killed = False
        self._bell, bell = os.pipe()
        for end in (self._bell, bell):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def run(self) -> None:
        if os.path.exists("stop.json"):
            self._record(128 + signal.SIGTERM, "Signalled", "stopped before it began")
            return
        become_subreaper()
        log = LogFile("log", bytes_max=self._launch["log_bytes"], files=self._launch["log_files"])
        try:
            self._leave_agent()
            task_user = find_task_user(self._launch["user"])
            for group in self._launch["groups"]:
                groups.make(group)
            self._check_user(task_user)
            self._prepare_folder(task_user)
            if self._launch.get("network"):
                from mandor.engines.shim import network  # other tasks save its memory

                self._held = network.enter(self._launch["network"])
            if self._launch.get("view"):
                self._init = view.start(self._launch, task_user)
            streams = self._begin(task_user, log)
        except Exception as error:
            self._sweep()
            if self._task:
                os.waitpid(self._task, 0)
            self._wait_init()
            self._record(None, "StartFailed", str(error) or repr(error))
            return
        self._announce()
        self._watch(streams)
        self._finish(streams)

    # Before the task.

    @staticmethod
    def _announce() -> None:
        """Notify the agent that the program runs; an agent that is gone reads it later."""
        try:
            os.write(READY, b".")
            os.close(READY)
        except OSError:
            return

    def _leave_agent(self) -> None:
        """Leave the agent's cgroups, so that a stop of the agent's service does not end the supervisor."""
        for group in self._launch["shims"]:
            groups.make_and_join(group)
        try_write_kernel("/proc/self/oom_score_adj", "-900")

    def _check_user(self, task_user: "TaskUser | None") -> None:
        """Refuse a confined task as root: root owns the files of the node, even without capabilities."""
        confined = self._launch.get("confined")
        if confined and (os.geteuid() if task_user is None else task_user.uid) == 0:
            raise Refused(f"the level {confined['level']} runs no process as root: set another `security.user`")

    def _prepare_folder(self, task_user: "TaskUser | None") -> None:
        """Create the unit's own folder with its files."""
        work = self._launch["work"]
        made = [work]
        os.makedirs(os.path.join(work, self._launch["below"]), exist_ok=True)
        os.chmod(work, 0o700)
        if self._launch.get("view"):
            os.makedirs(self._launch["view"]["root"], 0o700, exist_ok=True)
            os.makedirs(self._launch["view"]["tmp"], 0o700, exist_ok=True)
            made.append(self._launch["view"]["tmp"])
        memory = self._memory_folder()
        for number, (path, content, mode, secret) in enumerate(self._launch["files"]):
            target = os.path.join(work, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if secret and memory and self._launch.get("view"):
                source = os.path.join(memory, str(number))
                self._launch["view"]["steps"].append(("own", source, target))
                made.append(source)
                _write_file(target, "", 0o600)  # a mount point: its text is never on disk
                target = source
            _write_file(target, content, int(mode, 8))
        if task_user is not None and os.geteuid() == 0:
            for folder, folders, files in os.walk(work):
                made += [os.path.join(folder, name) for name in folders + files]
            for path in made:
                os.chown(path, task_user.uid, task_user.gid)
        # Last: the targets of links do not belong to the unit.
        for path, source in self._launch["links"]:
            link = os.path.join(work, path)
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(source, link)

    @staticmethod
    def _memory_folder() -> str:
        """Return the unit's folder in memory; empty: the node has none."""
        note = read("launch.json")
        return os.path.dirname(note["record"]) if note is not None and "record" in note else ""

    def _begin(self, task_user: "TaskUser | None", log: LogFile) -> list[Stream]:
        """Fork the task, which waits until the running record is written: a unit starts only once."""
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        gate, gate_end = os.pipe()
        trouble, trouble_end = os.pipe()
        # In the task's process namespace a supervisor outside of it has the id 0.
        supervisor = 0 if self._init else os.getpid()
        found = view.Namespaces(self._init) if self._init else None
        self._task = os.fork()
        if self._task == 0:
            self._become(task_user, supervisor, found, out_end, err_end, gate, gate_end, trouble_end)
        for end in (out_end, err_end, gate, trouble_end):
            os.close(end)
        self._started_at = time.time()
        running: dict[str, str | float | None] = {"pid": self._task, "init": self._init}
        running |= {"started_at": self._started_at, "boot": self._launch["boot"]}
        running["address"] = (self._launch.get("network") or {}).get("address", "")
        replace("running.json", encode(running))
        os.write(gate_end, b".")
        os.close(gate_end)
        streams = [Stream(out, b"o", log), Stream(err, b"e", log)]
        message = _read_all(trouble)
        if message:
            raise Refused(message)
        return streams

    def _become(
        self,
        task_user: "TaskUser | None",
        supervisor: int,
        found: "view.Namespaces | None",
        out: int,
        err: int,
        gate: int,
        gate_end: int,
        trouble: int,
    ) -> None:
        """In the child: wait for `gate`, then become the task; errors are written to `trouble`."""
        try:
            os.setsid()
            os.close(gate_end)
            if not os.read(gate, 1):
                os._exit(0)  # The supervisor died before it wrote the record.
            signal.set_wakeup_fd(-1)
            null = os.open("/dev/null", os.O_RDONLY)
            for number, end in enumerate((null, out, err)):
                os.dup2(end, number)
            enter(self._launch, task_user, self._launch["argv"], supervisor, found)
        except BaseException as error:
            os.write(trouble, str(error).encode() or repr(error).encode())
        finally:
            os._exit(127)

    # While it runs.

    def _watch(self, streams: list[Stream]) -> None:
        """Write its output to the log and handle stop orders until the task has ended."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for stream in streams:
            poll.register(stream.pipe, select.POLLIN)
        self._obey()
        while not self._over:
            ready = {number for number, _ in poll.poll(self._patience_ms())}
            for stream in streams:
                if stream.pipe in ready and not stream.pump() and not stream.open:
                    poll.unregister(stream.pipe)
            if self._bell in ready:
                self._answer()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._killed = True
                self._sweep()
                self._deadline = time.monotonic() + 1.0  # Repeated if it has not ended by then.

    def _patience_ms(self) -> "float | None":
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - time.monotonic()) * 1000 + 1

    def _answer(self) -> None:
        """Handle a signal: a child has ended, or a stop order was written."""
        while _read_some(self._bell):
            pass
        self._reap()
        self._obey()

    def _reap(self) -> None:
        """Reap ended children; the task itself is reaped last, so that its process id is not reused."""
        while not self._over:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid == self._task:
                self._over = True
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
            if ended.si_pid == self._init:
                self._init = 0

    def _obey(self) -> None:
        order = read("stop.json")
        if order is None or self._over:
            return
        until = time.monotonic() + order["grace"]
        if self._deadline is None:
            self._signal(order["signal"])
            self._signal(signal.SIGCONT)
        if self._deadline is None or until < self._deadline:
            self._deadline = until

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._task, number)
        except OSError:
            return  # It has ended.

    # After it.

    def _sweep(self) -> None:
        """Kill everything that is left of the task: process group, cgroups and descendants."""
        until = time.monotonic() + KILL_SECONDS_MAX
        if self._task:
            self._signal(signal.SIGKILL)
        if self._init:
            # The kernel kills the whole process namespace with it. It ends after the task was reaped.
            os.kill(self._init, signal.SIGKILL)
        while time.monotonic() < until:
            groups.kill(self._groups)
            # Orphaned descendants become children of this process, so none can escape.
            others = [pid for pid in _children() if pid not in {self._task, self._init}]
            for pid in others:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            self._reap()
            if not others and not any(pid != self._task for path in self._groups for pid in groups.members(path)):
                return
            time.sleep(0.002)

    def _wait_init(self) -> None:
        """Reap the first process of the namespaces; then the namespaces are empty."""
        until = time.monotonic() + KILL_SECONDS_MAX
        while self._init and time.monotonic() < until:
            try:
                if os.waitpid(self._init, os.WNOHANG)[0]:
                    self._init = 0
                else:
                    time.sleep(0.002)
            except ChildProcessError:
                self._init = 0

    def _finish(self, streams: list[Stream]) -> None:
        self._sweep()
        _, status = os.waitpid(self._task, 0)
        self._wait_init()
        for stream in streams:
            while stream.open and stream.pump():
                pass
            stream.close()
        code = os.waitstatus_to_exitcode(status)
        starved = groups.oom_kills(self._groups) if code else 0
        cpu = groups.cpu_seconds(self._groups)
        number = -code if code < 0 else 0
        if starved:
            reason, message = "OOMKilled", "it used more memory than its limit"
        elif number:
            reason, message = "Signalled", _name(number) + (" after the grace for stopping" if self._killed else "")
        else:
            reason, message = ("Completed", "") if code == 0 else ("Error", f"exit code {code}")
        self._record(128 + number if number else code, reason, message, cpu_seconds=cpu or 0.0)

    def _record(self, code: "int | None", reason: str, message: str, cpu_seconds: float = 0.0) -> None:
        groups.remove(self._groups, seconds=2.0)
        record: dict[str, str | float | None] = {
            "code": code,
            "reason": reason,
            "message": message,
            "started_at": self._started_at,
            "finished_at": time.time(),
            "cpu_seconds": cpu_seconds,
        }
        for _ in range(RECORD_TRIES):
            try:
                replace("exit.json", encode(record), durable=True)
                self._forget_launch()
                return
            except FileNotFoundError:
                return  # The unit was removed meanwhile.
            except OSError:
                time.sleep(0.5)  # The disk may be full only for a while.

    def _forget_launch(self) -> None:
        """Delete the launch in memory, which may have secrets, and the note on disk."""
        memory = self._memory_folder()
        os.unlink("launch.json")
        if memory:
            for name in os.listdir(memory):
                os.unlink(os.path.join(memory, name))
            os.rmdir(memory)


def _write_file(path: str, content: str, mode: int) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def _name(number: int) -> str:
    for name in dir(signal):
        if name.startswith("SIG") and not name.startswith("SIG_") and getattr(signal, name) == number:
            return name
    return f"signal {number}"


def _children() -> list[int]:
    """Return the children of this process."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return [other for other in _processes() if _parent(other) == pid]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _read_some(pipe: int) -> bytes:
    try:
        return os.read(pipe, 4096)
    except BlockingIOError:
        return b""


def _read_all(pipe: int) -> str:
    parts = []
    while part := os.read(pipe, 4096):
        parts.append(part)
    os.close(pipe)
    return b"".join(parts).decode(errors="replace")
