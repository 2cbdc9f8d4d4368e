"""A child that does as its script says: ``dummy_child.py FOLDER --child ... --settings ...``.

The script is ``FOLDER/<role>-<name>``, one command a line, read anew by each incarnation:

    exit N          end with code N before being ready
    signal N        end by signal N before being ready
    hang            never be ready
    mute            close the ready pipe without a word, and live
    ignore-term     do not end on SIGTERM
    exit-after N    end with code N once ready
    idle            be ready, and never say that the work has begun
    descriptors     say which descriptors were inherited

It listens on its own socket, and on the addresses of its settings (a router) or a second
socket (a store), and answers nothing: enough for a supervisor, without the weight of gRPC.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from bramley.common.child import Child, ChildContext, parse_context


def open_descriptors() -> list[int]:
    """List the descriptors of this process, but for the one that lists them."""
    open_now: list[int] = []
    for name in os.listdir("/dev/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        open_now.append(int(name))
    return sorted(open_now)


async def listen(context: ChildContext, settings: dict[str, object]) -> dict[str, str]:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    addresses = {"socket": context.socket}
    await asyncio.start_unix_server(hang_up, context.socket.removeprefix("unix:"))
    if context.role == "store":
        data = context.socket.removeprefix("unix:").removesuffix(".sock") + ".data"
        await asyncio.start_unix_server(hang_up, data)
        return {**addresses, "data": data}
    for kind in ("grpc", "http"):
        if kind in settings:
            host, _, port = str(settings[kind]).rpartition(":")
            server = await asyncio.start_server(hang_up, host, int(port))
            addresses[kind] = f"{host}:{server.sockets[0].getsockname()[1]}"
    return addresses


async def live(context: ChildContext, settings: dict[str, object], script: dict[str, str]) -> int:
    child = Child(context)
    if "exit" in script:
        say(f"told to exit with {script['exit']}")
        return int(script["exit"])
    if "signal" in script:
        os.kill(os.getpid(), int(script["signal"]))
    if "ignore-term" in script:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    if "mute" in script:
        os.close(context.ready_fd)
    elif "hang" not in script:
        child.ready(await listen(context, settings))
        if "idle" not in script:
            child.works()
    if "exit-after" in script:
        say(f"told to exit with {script['exit-after']}")
        return int(script["exit-after"])
    say("stopped:", await child.until_stopped())
    return 0


def read_script(file: Path) -> dict[str, str]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {command: rest for command, _, rest in (line.partition(" ") for line in lines)}


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> int:
    inherited = open_descriptors()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--child", required=True)
    parser.add_argument("--settings", type=Path, required=True)
    arguments = parser.parse_args()
    context = parse_context(arguments.child)
    settings = msgspec.json.decode(arguments.settings.read_bytes(), type=dict[str, object])
    script = read_script(arguments.folder / f"{context.role}-{context.name}")
    if "descriptors" in script:
        meant = {0, 1, 2, context.ready_fd, context.owner_fd}
        say("unexpected descriptors:", sorted(set(inherited) - meant))
    return asyncio.run(live(context, settings, script))


if __name__ == "__main__":
    sys.exit(main())
