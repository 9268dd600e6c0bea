"""Webhooks keep what every sink promises, and are signed so that only the right receiver's secret fits."""

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trustme

from mandor.errors import Invalid, Unavailable
from mandor.lib.egress import LOOPBACK, Egress
from mandor.lib.quantity import Seconds
from mandor.lib.secret_files import SecretFiles
from mandor.model.receiver import WebhookSpec
from mandor.notify import verify
from mandor.notify.sink import Sink
from mandor.notify.webhook import WebhookSink
from mandor.testing.sink import SinkSuite, message
from tests.unit.notify.receiver import Hook, listening

HERE = Egress(LOOPBACK)
SECRETS = {"hook": b"a-secret-of-some-length", "old": b"the-secret-before-this-one", "short": b"abc"}


async def read_secret(reference: str, namespace: str) -> bytes:
    return SECRETS[reference]


class TestWebhookSink(SinkSuite):
    @pytest.fixture
    async def sink(self) -> AsyncIterator[Sink]:
        async with listening() as self.hook:
            sink = WebhookSink(
                WebhookSpec(url=self.hook.url, secret="hook", timeout=Seconds(20)), read_secret, egress=HERE
            )
            yield sink
            await sink.close()

    async def arrived(self) -> list[tuple[str, bytes]]:
        return [(seen["X-Mandor-Delivery"], body) for seen, body in zip(self.hook.seen, self.hook.bodies, strict=True)]

    def away(self) -> AbstractAsyncContextManager[None]:
        return self.hook.away()

    @pytest.mark.req("S4-36")
    async def test_the_receiver_verifies_it_with_the_shared_secret_and_with_no_other(self, sink: Sink) -> None:
        await sink.send(message())
        body, headers = self.hook.bodies[0], self.hook.seen[0]
        assert verify("a-secret-of-some-length", body, headers)
        assert not verify("a-secret-of-another-one", body, headers)
        assert not verify("a-secret-of-some-length", body + b" ", headers)
        assert not verify("a-secret-of-some-length", body, headers, now=time.time() + 301), "a replay"
        assert not verify("a-secret-of-some-length", body, {})


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    async with listening() as found:
        yield found


async def sent(hook: Hook, **fields: object) -> str:
    spec = WebhookSpec(url=hook.url, **({"secret": "hook"} | fields))  # type: ignore[arg-type]
    sink = WebhookSink(spec, read_secret, egress=HERE, files=SecretFiles(str(Path(spec.ca).parent)))
    try:
        return await sink.send(message())
    finally:
        await sink.close()


async def test_while_the_secret_is_changed_both_fit(hook: Hook) -> None:
    await sent(hook, old_secret="old")
    for secret in (SECRETS["hook"], SECRETS["old"]):
        assert verify(secret, hook.bodies[0], hook.seen[0])
    assert not verify(b"neither-of-the-two", hook.bodies[0], hook.seen[0])


async def test_a_receiver_that_hangs_is_given_up_after_its_time(hook: Hook) -> None:
    hook.hang = True
    with pytest.raises(Unavailable, match="no answer within 200ms"):
        await sent(hook, timeout=Seconds(0.2))


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_not_now_is_no_fault_of_the_message(hook: Hook, status: int) -> None:
    hook.status, hook.headers = status, {"Retry-After": "7"}
    with pytest.raises(Unavailable, match=str(status)) as caught:
        await sent(hook)
    assert caught.value.facts["retry_seconds"] == 7.0


@pytest.mark.parametrize("status", [400, 401, 404, 500])
async def test_any_other_answer_is_a_refusal(hook: Hook, status: int) -> None:
    hook.status = status
    with pytest.raises(Invalid, match=f"{status} so it is"):
        await sent(hook)


async def test_redirects_are_not_followed(hook: Hook) -> None:
    async with listening() as other:
        hook.status, hook.headers = 307, {"Location": other.url}
        with pytest.raises(Invalid, match="redirects are not followed"):
            await sent(hook)
        assert not other.bodies


async def test_a_secret_that_is_too_short_signs_nothing(hook: Hook) -> None:
    with pytest.raises(Unavailable, match="shorter than 16 bytes"):
        await sent(hook, secret="short")
    assert not hook.bodies


async def test_over_https_the_receiver_shows_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    ca = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("localhost").configure_cert(context)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with listening(context) as hook:
        assert await sent(hook, ca=str(tmp_path / "ca.pem")) == "204"
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await sent(hook)
