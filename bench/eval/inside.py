"""What a caged program is started by: ``inside.py LIMITS FD``, in the program's folder.

Gives up what it can: the network, the sight of other processes, root's rights; sets the limits;
becomes ``program.py``. FD is told what was given up. Standard library alone: it is run with
``-I -S``.
"""

import ctypes
import json
import os
import resource
import signal
import sys

_NOBODY = 65534
_NEW_USER, _NEW_PID, _NEW_NET, _NEW_IPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38
_SYSTEM = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Cage and run; return the program's exit code, or 128 and the number of its signal."""
    limits, told = json.loads(sys.argv[1]), int(sys.argv[2])
    kept = [_without_root(), _namespaces()]
    os.write(told, ", ".join(filter(None, kept)).encode() or b"limits alone")
    os.set_inheritable(told, False)
    # A PID namespace begins with a child, and ends with it, however many it has by then.
    child = os.fork()
    if not child:
        try:
            _become(limits)
        except (OSError, OverflowError, ValueError) as error:
            os.write(told, f"; not started: {error}".encode())
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(limits: "dict[str, int]") -> None:
    """Be the program; returns only with an error."""
    if sys.platform == "linux":
        _SYSTEM.prctl(_DEATH_SIGNAL, signal.SIGKILL)
        _SYSTEM.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, limits["cpu_s"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _limit(resource.RLIMIT_NOFILE, limits["files"])
    # Of a user: in a user namespace (Linux 5.14) only those in it count.
    _limit(resource.RLIMIT_NPROC, limits["processes"])
    if sys.platform == "linux":  # elsewhere it is refused, or counts what is not used
        _limit(resource.RLIMIT_AS, limits["memory_bytes"])
    os.execv(sys.executable, [sys.executable, "-I", "-S", "program.py"])  # noqa: S606


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (bound, bound))


def _without_root() -> str:
    """Be nobody instead of root, where nobody can read this Python.

    Where not, the real user alone is nobody, which counts for the number of processes.

    Returns:
        What was given up, if anything.
    """
    if os.geteuid() != 0:
        return ""
    os.chown(".", _NOBODY, _NOBODY)
    os.chown("program.py", _NOBODY, _NOBODY)
    os.setgroups([])
    os.seteuid(_NOBODY)
    can_read = os.access(os.__file__, os.R_OK, effective_ids=True) and _can_enter()
    os.seteuid(0)
    if can_read:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        return "user nobody"
    os.chown(".", 0, 0)
    os.setreuid(_NOBODY, 0)
    return ""


def _can_enter() -> bool:
    return os.access(sys.executable, os.X_OK, effective_ids=True)


def _namespaces() -> str:
    if sys.platform != "linux":
        return ""
    for names, flags in (
        ("no network, own processes", _NEW_USER | _NEW_PID | _NEW_NET | _NEW_IPC),
        ("no network", _NEW_USER | _NEW_NET),
    ):
        if _SYSTEM.unshare(flags) == 0:
            return names
    return ""


if __name__ == "__main__":
    sys.exit(main())
