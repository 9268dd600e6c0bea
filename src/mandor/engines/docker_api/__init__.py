"""Base of the docker and podman engines, which share Docker's Engine API."""
