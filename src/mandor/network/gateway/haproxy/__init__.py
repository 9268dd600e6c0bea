"""HAProxy as a gateway: a configuration for routes, the runtime API for endpoints, certificates and challenges."""

from mandor.network.gateway.haproxy.gateway import HaproxyGateway

__all__ = ["HaproxyGateway"]
