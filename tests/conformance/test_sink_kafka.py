"""Kafka keeps what every sink promises, against the brokers that its own client can play, over the real protocol."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from mandor.errors import Unavailable
from mandor.lib.egress import LOOPBACK, Egress
from mandor.lib.quantity import Seconds
from mandor.lib.secret_files import SecretFiles
from mandor.model.receiver import EventBusSpec
from mandor.notify.kafka import KafkaSink
from mandor.notify.sink import Sink
from mandor.testing.sink import SinkSuite, message
from tests.components.ports import free_port


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """A cluster that lives as long as the producer that plays it."""
    playing = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "ignored", "log_level": 2})
    known = playing.list_topics(timeout=60).brokers.values()
    yield ",".join(f"{each.host}:{each.port}" for each in known)
    playing.flush(1)


async def password(reference: str, namespace: str) -> bytes:
    return b"of no use to whom needs none"


HERE, NAMED = Egress(LOOPBACK), Egress(["b"])
_topics = iter(range(1000))


@pytest.mark.req("S4-38")
class TestKafkaSink(SinkSuite):
    @pytest.fixture
    async def sink(self, brokers: str) -> AsyncIterator[Sink]:
        self.brokers, self.topic = brokers, f"events-{next(_topics)}"
        sink = KafkaSink(
            EventBusSpec(url=f"kafka://{brokers}", topic=self.topic, timeout=Seconds(60)), password, egress=HERE
        )
        yield sink
        await sink.close()

    async def arrived(self) -> list[tuple[str, bytes]]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[tuple[str, bytes]]:
        settings = {"bootstrap.servers": self.brokers, "group.id": f"of {self.topic}", "auto.offset.reset": "earliest"}
        reading = Consumer(settings | {"enable.partition.eof": True, "log_level": 2})
        try:
            return list(self._messages(reading))
        finally:
            reading.close()

    def _messages(self, reading: Consumer) -> Iterator[tuple[str, bytes]]:
        for partition in reading.list_topics(self.topic, timeout=60).topics[self.topic].partitions:
            reading.assign([TopicPartition(self.topic, partition, 0)])
            while True:
                found = reading.poll(60)
                assert found is not None, "no answer"
                error = found.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    break
                assert error is None, error
                identity, body = dict(found.headers() or []).get("id"), found.value()
                assert isinstance(identity, bytes)
                assert isinstance(body, bytes)
                yield identity.decode(), body

    async def test_an_unavailable_receiver_gets_all_messages_when_it_returns(self, sink: Sink) -> None:
        """Brokers that the client plays cannot come back at the same ports: this one is never there."""
        away = KafkaSink(
            EventBusSpec(url=f"kafka://127.0.0.1:{free_port()}", timeout=Seconds(0.5)), password, egress=HERE
        )
        try:
            with pytest.raises(Unavailable):
                await away.send(message())
        finally:
            await away.close()

    async def test_what_happens_to_one_object_is_in_one_partition(self, sink: Sink) -> None:
        said = {(await sink.send(message(number))).split(" offset")[0] for number in range(8)}
        assert len(said) == 1


def test_a_password_and_an_authority_are_handed_on() -> None:
    spec = EventBusSpec(url="kafkas://b:9093", user="mandor", password="bus/key", ca="/etc/ca.pem")
    found = asyncio.run(KafkaSink(spec, password, egress=NAMED, files=SecretFiles("/etc"))._settings())
    assert (found["security.protocol"], found["sasl.username"], found["ssl.ca.location"]) == (
        "sasl_ssl",
        "mandor",
        "/etc/ca.pem",
    )
    plain = asyncio.run(KafkaSink(EventBusSpec(url="kafka://b"), password, egress=NAMED)._settings())
    assert plain["security.protocol"] == "plaintext"
