"""Events for other systems: signed webhooks (`verify` is for their receivers), NATS and Kafka."""

from mandor.notify.verify import verify

__all__ = ["verify"]
