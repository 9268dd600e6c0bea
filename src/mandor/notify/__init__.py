"""Events for others: signed webhooks (`verify` is for those who receive them), NATS and Kafka."""

from mandor.notify.verify import verify

__all__ = ["verify"]
