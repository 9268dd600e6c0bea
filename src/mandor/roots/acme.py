"""Makes the controller of certificates from the settings of a server."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from mandor.acme.account import StoredAccount
from mandor.acme.client import AccountTerms, AcmeClient, trust
from mandor.acme.jws import from_base64url
from mandor.acme.transport import Transport
from mandor.controllers.certificate import CertificateController
from mandor.errors import Invalid
from mandor.lib.clock import Clock
from mandor.lib.egress import Egress
from mandor.lib.sealing import Sealer
from mandor.model.acme_account import FEATURE
from mandor.roots.settings import ServerSettings
from mandor.store.base import Store
from mandor.store.recorder import Recorder


@asynccontextmanager
async def certificate_controller(
    settings: ServerSettings,
    store: Store,
    clock: Clock,
    recorder: Recorder,
    sealer: Sealer | None,
    egress: Egress,
    everywhere: Callable[[], frozenset[str]],
) -> AsyncIterator[CertificateController]:
    """Yield the controller of certificates, with an account if the settings name a directory."""

    def upgraded() -> bool:
        return FEATURE in everywhere()

    if not settings.acme_directory:
        yield CertificateController(store, clock, recorder, upgraded=upgraded)
        return
    transport = Transport(settings.acme_directory, egress, _trusted(settings))
    stored = StoredAccount(store, sealer)
    try:
        client = AcmeClient(settings.acme_directory, stored, account_terms(settings), transport, clock)
        yield CertificateController(store, clock, recorder, client, sealer, upgraded=upgraded)
    finally:
        await transport.close()


def account_terms(settings: ServerSettings) -> AccountTerms:
    """Return how the account is registered; raise `Invalid` if the key of the external account cannot be used."""
    binding = ""
    if settings.acme_eab_id:
        try:
            binding = Path(settings.acme_eab_key_file).read_text(encoding="utf-8").strip()
            if not from_base64url(binding):
                raise ValueError("it is empty")
        except (OSError, ValueError) as error:
            raise Invalid(
                f"{settings.acme_eab_key_file} is not the key of an external account: {error}",
                hint="the file contains the HMAC key of the certificate authority in base64url",
            ) from error
    return AccountTerms(settings.acme_email, settings.acme_agree, settings.acme_eab_id, binding)


def check_acme(settings: ServerSettings) -> None:
    """Raise `Invalid` for files that cannot be used, before the server starts."""
    account_terms(settings)
    _trusted(settings)


def _trusted(settings: ServerSettings) -> ssl.SSLContext | bool:
    try:
        return trust(settings.acme_ca)
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot use the certificates in {settings.acme_ca}: {error}") from error
