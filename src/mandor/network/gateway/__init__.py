"""Gateways: proxies that send requests from outside of the cluster to services, as routes describe."""
