"""The certificate of a server, written when the authority changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mandor.api.certificates import CertificateAuthority
from mandor.lib.clock import ManualClock
from mandor.lib.sealing import Sealer
from mandor.roots.certificates import CHECK_SECONDS, ServerCertificates
from mandor.store.memory import MemoryStore


async def test_the_presented_authority_changes_one_check_after_the_certificate_was_written(tmp_path: Path) -> None:
    """A token with the fingerprint of an authority that the server does not present yet cannot be used."""
    clock = ManualClock()
    async with MemoryStore() as store:
        authority = CertificateAuthority(store, clock, Sealer.of("key"), everywhere=lambda: frozenset({"certificates"}))
        await authority.ensure("c1")
        certificates = ServerCertificates(authority, clock, tmp_path, ["localhost"])
        certificates.keep()
        old = authority.fingerprint
        assert certificates.presented == old
        running = asyncio.create_task(certificates.run("c1"))
        await clock.advance(0)
        before = (tmp_path / "server.pem").read_text()
        await authority.rotate("c1", 1000)
        await clock.advance(CHECK_SECONDS)
        assert (tmp_path / "server.pem").read_text() != before
        assert certificates.presented == old
        await clock.advance(CHECK_SECONDS)
        assert certificates.presented == authority.fingerprint != old
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
