"""Names, balanced services and gateways of a node: pure planners, and one module per data path."""
