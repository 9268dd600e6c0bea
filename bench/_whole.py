"""The whole control plane of a bench, in a process of its own: `mandor server` that tells what it uses."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from bench._api import allow_files
from bench._server import HOLDS, answer_questions, lateness
from mandor.bench.meter import percentiles
from mandor.lib import logs
from mandor.roots import server
from mandor.roots.settings import ServerSettings

READY_SECONDS = 120.0


async def main(settings: ServerSettings) -> None:
    allow_files()
    late: list[float] = []
    serving = asyncio.create_task(server.serve(settings))
    looking = asyncio.create_task(lateness(late))
    await _answers(settings.listen)
    tokens = {role: (settings.directory / f"{role}.token").read_text().strip() for role in ("join", "admin")}
    print(json.dumps({"url": f"http://{settings.listen}", "tokens": tokens}), flush=True)

    def more() -> dict[str, Any]:
        told = {**percentiles(sorted(late), 1), "most": round(max(late, default=0.0), 1)}
        late.clear()
        return {"loop_late_ms": told}

    await answer_questions(more)
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    looking.cancel()


async def _answers(listen: str) -> None:
    """Wait until the server is ready."""
    host, _, port = listen.partition(":")
    async with asyncio.timeout(READY_SECONDS):
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET /readyz HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % listen.encode())
                line = await reader.readline()
                writer.close()
                if b" 200 " in line:
                    return
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--store", default="")
    parser.add_argument("--trace", action="store_true", help="time every callback, on asyncio's own loop")
    options = parser.parse_args()
    logs.set_up("console", "warning")
    given = ServerSettings(data=options.data, listen=options.listen, store=options.store)
    if options.trace:
        HOLDS.trace()
        asyncio.run(main(given))
    else:
        uvloop.run(main(given))
