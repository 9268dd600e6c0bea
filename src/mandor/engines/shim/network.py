"""The network of a confined task: a network namespace with an address on the bridge of the agent.

The supervisor itself enters the namespace, so the task and everything beside it inherit it. It first binds the ports of
the task on the node: no other program of the node can take them, and a port that is taken refuses the start.
"""

import _socket as socket
import os

from mandor.engines.shim import kernel
from mandor.engines.shim.task_user import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def enter(network: "dict[str, Any]") -> "list[socket.socket]":
    """Enter the network namespace of the instance, made anew unless another task has it; return the held ports."""
    held = [_hold(protocol, number) for protocol, number in network["ports"]]
    if network["join"]:
        kernel.join(_open_of_sibling(network["join"], network["supervisor"]), kernel.NEW_NET)
        return held
    node = _open("/proc/self/ns/net")
    kernel.unshare(kernel.NEW_NET)
    own = _open("/proc/self/ns/net")
    kernel.join(node, kernel.NEW_NET)
    batch = (network["ip"], "-batch", "-")
    _run(batch, network["outside"].replace("{namespace}", f"/proc/{os.getpid()}/fd/{own}"))
    kernel.join(own, kernel.NEW_NET)
    _run(batch, network["inside"])
    os.close(node)
    os.close(own)
    return held


def _hold(protocol: str, number: int) -> "socket.socket":
    """Bind a port on the node. Supervisors of one instance share it; the socket is never read."""
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    held = socket.socket(socket.AF_INET, kind | socket.SOCK_CLOEXEC)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("0.0.0.0", number))
    except OSError as error:
        raise Refused(f"port {number}/{protocol} of the node cannot be used: {error.strerror}") from None
    return held


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _open_of_sibling(pid: int, supervisor: int) -> int:
    """Open the network namespace of the first process of another task; a reused process id is refused."""
    try:
        found = _open(f"/proc/{pid}/ns/net")
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b") ")[2].split()[1])
    except OSError:
        parent = -1
    if parent != supervisor:
        raise Refused("the task whose network it shares has just ended")
    return found


def _run(command: "Sequence[str]", text: str = "") -> None:
    """Run a program of the node with this input; `Refused`: it failed."""
    source, source_end = os.pipe()
    out, out_end = os.pipe()
    os.write(source_end, text.encode())  # short enough for the buffer of a pipe
    os.close(source_end)
    actions = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in ((source, 0), (out_end, 1), (out_end, 2))]
    try:
        pid = os.posix_spawn(command[0], list(command), _ENVIRONMENT, file_actions=actions)
    except OSError as error:
        raise Refused(f"its network cannot be made: {command[0]}: {error.strerror}") from None
    finally:
        os.close(source)
        os.close(out_end)
    printed = b""
    while part := os.read(out, 4096):
        printed += part
    os.close(out)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise Refused(f"its network cannot be made: {printed.decode(errors='replace').strip()}")


def can_make(ip: str, nft: str, rules: str) -> bool:
    """Return whether bridges, pairs of interfaces and forwarding rules can be made, by an attempt in a namespace that
    ends with this process."""
    try:
        kernel.unshare(kernel.NEW_NET)
        for command in (
            (ip, "link", "add", "br0", "type", "bridge"),
            (ip, "link", "add", "v0", "type", "veth", "peer", "name", "v1"),
            (nft, rules),
        ):
            _run(command)
    except (OSError, Refused):
        return False
    return True
