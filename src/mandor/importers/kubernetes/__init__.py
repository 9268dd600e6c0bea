"""Kubernetes' objects as manifests."""
