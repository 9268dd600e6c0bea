"""Kafka sink: a message is delivered when all in-sync replicas have it; its id is in a header."""

import asyncio

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Sent

from mandor.errors import Invalid, Unavailable
from mandor.lib.egress import STRICT, Egress, host_of
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.receiver import EventBusSpec
from mandor.notify.message import CONTENT_TYPE, Message
from mandor.notify.secrets import ReadSecret
from mandor.notify.sink import Sink

KAFKA_PORT = 9092
_NOT_NOW = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._QUEUE_FULL,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._SSL,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class KafkaSink(Sink):
    """Sends to one topic; the message key is the object, so that its events stay in order in one partition."""

    def __init__(
        self,
        spec: EventBusSpec,
        read_secret: ReadSecret,
        *,
        egress: Egress = STRICT,
        files: SecretFiles = NO_FILES,
    ) -> None:
        self._spec, self._read_secret, self._egress, self._files = spec, read_secret, egress, files
        self._producer: Producer | None = None

    async def send(self, message: Message) -> str:
        try:
            if self._producer is None:
                self._producer = Producer(await self._settings())
            return await asyncio.to_thread(self._produce, self._producer, message)
        except (KafkaException, BufferError) as error:
            raise Invalid(f"kafka: {error}") from error

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await asyncio.to_thread(producer.purge)

    def _produce(self, producer: Producer, message: Message) -> str:
        outcome: list[tuple[KafkaError | None, Sent]] = []
        producer.produce(
            self._spec.topic,
            value=message.body(),
            key=message.subject,
            headers=[("id", message.id.encode()), ("content-type", CONTENT_TYPE.encode())],
            on_delivery=lambda error, sent: outcome.append((error, sent)),
        )
        producer.flush(float(self._spec.timeout))
        if not outcome:
            producer.purge()  # Otherwise the library could send it later, out of order.
            producer.flush(1.0)
        if not outcome:
            raise Unavailable(f"no answer within {self._spec.timeout}")
        error, sent = outcome[0]
        if error is None:
            return f"partition {sent.partition()} offset {sent.offset()}"
        raise (Unavailable if error.retriable() or error.code() in _NOT_NOW else Invalid)(error.str())

    def _check(self, hosts: list[str]) -> None:
        """Check the hosts of the bus. Kafka's library resolves names itself and connects to the brokers that the first
        one announces, so `*` is not enough: the administrator has to list every host."""
        for each in hosts:
            host, port = host_of(f"kafka://{each}", KAFKA_PORT)
            if not self._egress.lists(host, port):
                raise Unavailable(
                    f"{host} is not named in `egress_allow`", hint="`*` is not enough for Kafka: add the brokers"
                )

    async def _settings(self) -> dict[str, str | int | bool]:
        spec = self._spec
        scheme, _, hosts = spec.url.partition("://")
        self._check(hosts.split(","))
        found: dict[str, str | int | bool] = {
            "bootstrap.servers": hosts,
            "client.id": "mandor",
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": round(float(spec.timeout) * 1000),
            "log_level": 2,
        }
        secure = scheme == "kafkas"
        if secure and spec.ca:
            try:
                found["ssl.ca.location"] = str(self._files.path(spec.ca))
            except ValueError as error:
                raise Unavailable(str(error)) from error
        if spec.password is not None:
            password = (await self._read_secret(spec.password, spec.secret_namespace)).decode().strip()
            found |= {"sasl.mechanisms": "PLAIN", "sasl.username": spec.user, "sasl.password": password}
        kinds = {(False, False): "plaintext", (True, False): "ssl", (False, True): "sasl_plaintext"}
        return found | {"security.protocol": kinds.get((secure, spec.password is not None), "sasl_ssl")}
