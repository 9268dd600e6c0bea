"""A server without an API: what its process needs, it has."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from mandor.roots.server import serve
from mandor.roots.settings import ServerSettings


@pytest.mark.parametrize("roles", [("api",), ("scheduler", "controllers")])
async def test_whatever_its_roles_no_long_collection_of_garbage_holds_it_up(
    tmp_path: Path, roles: tuple[str, ...]
) -> None:
    settings = ServerSettings(data=str(tmp_path), listen="127.0.0.1:0", roles=roles)
    serving = asyncio.ensure_future(serve(settings, dev=True))
    try:
        async with asyncio.timeout(60):
            while gc.isenabled():
                assert not serving.done()
                await asyncio.sleep(0.01)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert gc.isenabled()
