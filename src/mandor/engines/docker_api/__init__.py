"""What engines with Docker's Engine API have in common: the docker and podman engines are built on it."""
