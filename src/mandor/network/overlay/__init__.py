"""The data path of networks that span nodes, made of bridges, VXLAN devices, routes and packet filter rules."""

from mandor.network.overlay.kernel import KernelOverlay

__all__ = ["KernelOverlay"]
