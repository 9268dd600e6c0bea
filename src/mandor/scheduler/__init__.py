"""The process around placement: queue, loop, binding."""
